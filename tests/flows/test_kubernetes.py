"""deployments/kubernetes: valid for Kubernetes 1.34, as closed as docker-compose.yml, and with the
same secrets.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from stack import settings_of_containers

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deployments" / "kubernetes"


def resources() -> Iterator[dict[str, Any]]:
    for file in sorted(FOLDER.glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            yield from document.get("items", [document])


def deployments() -> dict[str, dict[str, Any]]:
    """Pod specifications by the name of their deployment."""
    return {
        item["metadata"]["name"]: item["spec"]["template"]["spec"]
        for item in resources()
        if item["kind"] == "Deployment"
    }


def test_every_manifest_fits_the_schema_of_kubernetes() -> None:
    names = [(item["kind"], item["metadata"]["name"]) for item in resources()]
    assert len(names) == len(set(names)) > 12
    for item in resources():
        kubernetes_validate.validate(item, "1.34", strict=True)


@pytest.mark.parametrize("name", sorted(deployments()))
def test_no_pod_is_root_writable_or_capable(name: str) -> None:
    pod = deployments()[name]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["automountServiceAccountToken"] is False
    closed = container["securityContext"]
    assert closed["readOnlyRootFilesystem"]
    assert closed["allowPrivilegeEscalation"] is False
    assert closed["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["limits"]["memory"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_pods_hold_what_the_services_of_compose_hold() -> None:
    """Same command; the same volumes, to write where Compose writes; secrets of the guide's
    commands.
    """
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    guide = (FOLDER / "README.md").read_text()
    for name, pod in deployments().items():
        (container,) = pod["containers"]
        assert container["args"] == services[name]["command"]
        ours = {(m["mountPath"], bool(m.get("readOnly"))) for m in container["volumeMounts"]}
        theirs = {
            (v.removesuffix(":ro").rsplit(":", 1)[1], v.endswith(":ro"))
            for v in services[name]["volumes"]
        }
        assert ours - {("/tmp", False), ("/run/secrets", True)} == theirs
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
    """Except for the address of a page that no one gave this house, and the colours of a terminal."""
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
        for pod in deployments().values()
        for volume in pod["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert used == claims
    (closed,) = (item for item in resources() if item["metadata"]["name"] == "closed")
    (expression,) = closed["spec"]["podSelector"]["matchExpressions"]
    assert set(expression["values"]) == set(deployments())
