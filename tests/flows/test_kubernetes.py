"""deployments/kubernetes: valid for Kubernetes 1.34, as closed as docker-compose.yml, and with the
same secrets.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from prefect.utilities.templating import apply_values
from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration
from stack import settings_of_containers

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deployments" / "kubernetes"
JOBS = FOLDER / "overlays" / "jobs"
WATCHES = {"watch", "launcher"}
"""Deployments that docker-compose.yml does not have: there the services watch, and workers run."""


def kustomization(folder: Path) -> dict[str, Any]:
    return yaml.safe_load((folder / "kustomization.yaml").read_text())


def built(folder: Path) -> Iterator[dict[str, Any]]:
    """The resources of a kustomization and of those that it takes; patches are not applied."""
    for name in kustomization(folder)["resources"]:
        path = (folder / name).resolve()
        if path.is_dir():
            yield from built(path)
            continue
        for document in yaml.safe_load_all(path.read_text()):
            yield from document.get("items", [document])


def resources() -> list[dict[str, Any]]:
    return list(built(JOBS))


def pods(kind: str) -> dict[str, dict[str, Any]]:
    """Pod specifications by the name of their deployment or job."""
    return {
        item["metadata"]["name"]: item["spec"]["template"]["spec"]
        for item in resources()
        if item["kind"] == kind
    }


def every_pod() -> dict[str, dict[str, Any]]:
    return pods("Deployment") | pods("Job") | {"run": run_of_the_pool()["spec"]["template"]["spec"]}


def run_of_the_pool() -> dict[str, Any]:
    """The job that Prefect makes of the pool's template for a run."""
    template = json.loads((JOBS / "pool.json").read_text())
    values = {
        name: entry["default"]
        for name, entry in template["variables"]["properties"].items()
        if "default" in entry
    } | {"env": {}, "labels": {}, "name": "a-run"}
    filled = apply_values(template["job_configuration"], values)
    configured = KubernetesWorkerJobConfiguration.model_validate(filled)
    manifest = configured.job_manifest
    for name in ("parallelism", "completions"):
        # Prefect wants them where Kubernetes does not know them, and ignores them.
        del manifest["spec"]["template"]["spec"][name]
    # Values by name, which the worker writes out as a list.
    assert manifest["spec"]["template"]["spec"]["containers"][0].pop("env") == {}
    return manifest


def test_every_manifest_fits_the_schema_of_kubernetes() -> None:
    """But for the one whose kind the Prometheus operator brings."""
    names = [(item["kind"], item["metadata"]["name"]) for item in resources()]
    assert len(names) == len(set(names)) > 30
    foreign = [item for item in resources() if item["apiVersion"].startswith("monitoring.")]
    assert [item["kind"] for item in foreign] == ["ServiceMonitor"]
    for item in [*resources(), run_of_the_pool()]:
        if item not in foreign:
            kubernetes_validate.validate(item, "1.34", strict=True)


def test_a_kustomization_takes_every_file_and_patches_what_is_there() -> None:
    """No manifest lies beside it unused, no patch has a target that does not exist."""
    base = FOLDER / "base"
    there = {file.name for file in base.glob("*.yaml")} - {"kustomization.yaml"}
    assert there == set(kustomization(base)["resources"])
    known = {(item["kind"], item["metadata"]["name"]) for item in resources()}
    for folder in sorted((FOLDER / "overlays").iterdir()):
        for entry in kustomization(folder)["patches"]:
            patch = yaml.safe_load(entry["patch"])
            target = entry.get("target") or {
                "kind": patch["kind"],
                "name": patch["metadata"]["name"],
            }
            assert (target["kind"], target["name"]) in known


def test_image_and_tag_stand_in_one_place() -> None:
    """Manifests have bare names; an overlay gives each a registry and a tag."""
    named = {pod["containers"][0]["image"] for pod in (pods("Deployment") | pods("Job")).values()}
    assert named == {"autocoder", "autocoder-gpu"}
    given = {entry["name"] for entry in kustomization(FOLDER / "overlays" / "example")["images"]}
    assert given == named


@pytest.mark.parametrize("name", sorted(every_pod()))
def test_no_pod_is_root_writable_or_capable(name: str) -> None:
    """None reaches the cluster's API but the launcher, no volume in a pod grows without a limit,
    and each tells when it is ready.
    """
    pod = every_pod()[name]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    assert pod.get("automountServiceAccountToken", True) is (name == "launcher")
    closed = container["securityContext"]
    assert closed["readOnlyRootFilesystem"]
    assert closed["allowPrivilegeEscalation"] is False
    assert closed["capabilities"] == {"drop": ["ALL"]}
    assert {"memory", "ephemeral-storage"} <= set(container["resources"]["limits"])
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    empty = [volume["emptyDir"] for volume in pod["volumes"] if "emptyDir" in volume]
    assert empty
    assert all(volume["sizeLimit"] for volume in empty)
    if name in pods("Deployment") and name != "watch":
        assert "readinessProbe" in container


def test_the_releasing_step_stands_apart() -> None:
    """Its Secret and its account are its own, and trainings, which are jobs of the cluster, have
    neither the signing key nor a folder that anything leaves by.
    """

    def secrets(pod: dict[str, Any]) -> set[str]:
        return {v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v}

    having = [name for name, pod in every_pod().items() if "releasing" in secrets(pod)]
    assert having == ["worker-release"]
    accounts = {name: pod.get("serviceAccountName") for name, pod in every_pod().items()}
    assert [name for name, account in accounts.items() if account == "releasing"] == having
    run = every_pod()["run"]
    assert accounts["run"] == "run"
    paths = {mount["mountPath"] for mount in run["containers"][0]["volumeMounts"]}
    assert not paths & {"/outbox", "/workspace/bundles"}
    variables = json.loads((JOBS / "pool.json").read_text())["variables"]["properties"]
    assert not {"image", "service_account_name", "job_manifest"} & set(variables)


def test_pods_hold_what_the_services_of_compose_hold() -> None:
    """Same command; the same volumes, to write where Compose writes; secrets of the guide's
    commands.
    """
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    guide = (FOLDER / "README.md").read_text()
    for name, pod in pods("Deployment").items():
        if name in WATCHES:
            continue
        (container,) = pod["containers"]
        assert container["args"] == services[name]["command"]
        ours = {(m["mountPath"], bool(m.get("readOnly"))) for m in container["volumeMounts"]}
        theirs = {
            (v.removesuffix(":ro").rsplit(":", 1)[1], v.endswith(":ro"))
            for v in services[name]["volumes"]
        }
        assert ours - {("/tmp", False), ("/run/secrets", True)} == theirs, name
        for volume in pod["volumes"]:
            secret = volume.get("secret", {}).get("secretName")
            if secret in (None, "engine"):
                continue
            (command,) = (
                line for line in guide.splitlines() if f"secret generic {secret} " in line
            )
            files = {
                part.partition("=")[2].partition("=")[0]
                for part in command.split()
                if "--from-file" in part
            }
            assert files == set(services[name]["secrets"]) - {"storage_key"}, name


def test_workers_have_the_settings_of_compose() -> None:
    """Except for the address of a page that no one gave this house, and the colours
    of a terminal.
    """
    (worker,) = (item["data"] for item in resources() if item["kind"] == "ConfigMap")
    theirs = settings_of_containers("worker")
    assert theirs.items() - worker.items() == {
        (name, theirs[name]) for name in ("PREFECT_UI_URL", "PREFECT_LOGGING_COLORS")
    }


def test_volumes_and_settings_exist() -> None:
    claims = {
        item["metadata"]["name"] for item in resources() if item["kind"] == "PersistentVolumeClaim"
    }
    used = {
        volume["persistentVolumeClaim"]["claimName"]
        for pod in every_pod().values()
        for volume in pod["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert used == claims
    policies = [item["spec"] for item in resources() if item["kind"] == "NetworkPolicy"]
    closed = set()
    for spec in policies:
        if "Egress" in spec["policyTypes"]:
            selector = spec["podSelector"]
            closed |= set(selector.get("matchLabels", {}).values())
            closed |= {v for e in selector.get("matchExpressions", ()) for v in e["values"]}
    assert closed == set(every_pod()), "no pod may reach what it likes"
    budgets = [item for item in resources() if item["kind"] == "PodDisruptionBudget"]
    assert {item["metadata"]["name"] for item in budgets} <= set(pods("Deployment"))
