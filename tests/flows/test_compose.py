"""docker-compose.yml, as Docker's own tool reads it: what is open, who holds which secret, what is reserved."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def composed() -> dict[str, Any]:
    """The file after `config`: references followed, defaults in place."""
    tool = ["docker-compose"] if shutil.which("docker-compose") else ["docker", "compose"]
    if not shutil.which(tool[0]) or subprocess.run([*tool, "version"], capture_output=True).returncode:
        pytest.skip("needs docker-compose (Debian: docker-compose); no engine has to run")
    done = subprocess.run([*tool, "-f", "docker-compose.yml", "config"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)


def _mounts(service: dict[str, Any]) -> list[str]:
    """Volumes as `source:target[:ro]`, in whichever form the tool prints them."""
    return [
        v if isinstance(v, str) else f"{v.get('source')}:{v['target']}{':ro' if v.get('read_only') else ''}"
        for v in service.get("volumes", [])
    ]


def secrets_of(service: dict[str, Any]) -> set[str]:
    return {entry if isinstance(entry, str) else entry["source"] for entry in service.get("secrets", [])}


def test_only_the_proxy_has_a_port_and_it_is_on_loopback(composed: dict[str, Any]) -> None:
    """Databases and workers are on a network without a way out."""
    open_ports = {name: service["ports"] for name, service in composed["services"].items() if service.get("ports")}
    assert list(open_ports) == ["proxy"]
    assert all("127.0.0.1" in str(port) for port in open_ports["proxy"])
    assert composed["networks"]["inside"]["internal"] is True
    for name, service in composed["services"].items():
        assert name == "proxy" or set(service["networks"]) == {"inside"}


def test_each_service_has_the_secrets_that_it_needs_and_no_other(composed: dict[str, Any]) -> None:
    """The key that signs bundles is the releasing worker's; the ledger owner's password is the migration's alone."""
    holders: dict[str, set[str]] = {}
    for name, service in composed["services"].items():
        for secret in secrets_of(service):
            holders.setdefault(secret, set()).add(name)
    assert holders["signing_key"] == {"worker-release"}
    assert holders["ledger_owner_password"] == {"migrate", "postgres"}
    assert holders["prefect_db_password"] == {"migrate", "postgres", "prefect-server", "prefect-services"}
    assert holders["ledger_password"] == {"metrics", "postgres", "worker-cpu", "worker-gpu", "worker-release"}
    for service in composed["services"].values():
        for name, value in (service.get("environment") or {}).items():
            assert not any(word in name for word in ("PASSWORD", "AUTH_STRING")) or name.endswith("_FILE"), (
                name,
                value,
            )


def test_only_the_releasing_worker_writes_bundles_and_the_gpu_is_reserved(composed: dict[str, Any]) -> None:
    """Training workers have the private workspace and no folder that anything leaves by."""
    mounts = {name: " ".join(_mounts(s)) for name, s in composed["services"].items()}
    bundles = {name: v for name, s in composed["services"].items() for v in _mounts(s) if "/workspace/bundles" in v}
    assert {name: v.endswith(":ro") for name, v in bundles.items()} == {"worker-release": False, "worker-coding": True}
    assert "/workspace/private" in mounts["worker-gpu"]
    assert mounts["metrics"].endswith(":ro")
    (device,) = composed["services"]["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    for name in ("postgres", "redis", "prefect-server"):
        assert composed["services"][name]["healthcheck"]


def test_the_coding_worker_has_neither_records_nor_ledger(composed: dict[str, Any]) -> None:
    """It serves the queue of `code-batch` alone; the others leave that queue to it."""
    coding = composed["services"]["worker-coding"]
    assert secrets_of(coding) == {"prefect_login"}
    assert not [v for v in _mounts(coding) if "/workspace/private" in v or ":/data" in v]
    file = yaml.safe_load((ROOT / "deployments" / "prefect.yaml").read_text())
    served: dict[tuple[str, str], list[str]] = {}
    for name, service in composed["services"].items():
        if service.get("command", [""])[0] == "worker":
            _, pool, *queues = service["command"]
            for queue in queues:
                served.setdefault((pool, queue), []).append(name)
    assert served["cpu", "coding"] == ["worker-coding"]
    for deployment in file["deployments"]:
        pool = deployment["work_pool"]
        assert served[pool["name"], pool["work_queue_name"]], deployment["name"]


def test_every_command_of_the_image_is_one_that_its_entrypoint_knows(composed: dict[str, Any]) -> None:
    """And the scripts are sound shell."""
    script = ROOT / "deployments" / "images" / "entrypoint.sh"
    text = script.read_text()
    ours = [s for s in composed["services"].values() if str(s.get("image", "")).startswith("autocoder:")]
    assert ours
    for service in ours:
        assert f"  {service['command'][0]})" in text
    for path in (script, ROOT / "deployments" / "postgres" / "10-roles.sh", ROOT / "scripts" / "stack_secrets.sh"):
        assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
