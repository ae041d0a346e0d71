"""docker-compose.yml, as Docker's own tool reads it: what is open, who holds which secret, what is reserved."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
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


def enter(folder: Path, *command: str, secrets: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The entrypoint with these secrets; in place of `prefect` stands what prints its environment."""
    (folder / "secrets").mkdir(exist_ok=True)
    for name, content in secrets.items():
        (folder / "secrets" / name).write_text(content)
    stub = folder / "bin" / "prefect"
    stub.parent.mkdir(exist_ok=True)
    stub.write_text("#!/bin/sh\nenv\n")
    stub.chmod(0o755)
    env = {"PATH": f"{stub.parent}:/usr/bin:/bin", "SECRETS": str(folder / "secrets"), "TMPDIR": str(folder)}
    script = str(ROOT / "deployments" / "images" / "entrypoint.sh")
    return subprocess.run(["bash", script, *command], env=env, capture_output=True, text=True, timeout=60)


def test_a_container_without_its_secrets_falls_back_to_nothing(tmp_path: Path) -> None:
    """No login: it ends. No password, no signing key: the same ledger all the same, and a key that is not there."""
    worker = ("worker", "cpu", "coding")
    ended = enter(tmp_path, *worker, secrets={})
    assert ended.returncode == 2
    assert "prefect_login is missing" in ended.stderr
    told = enter(tmp_path, *worker, secrets={"prefect_login": "operator:x"}).stdout.splitlines()
    assert "AUTOCODER_LEDGER_URL=postgresql+psycopg://autocoder@postgres:5432/ledger" in told
    assert f"AUTOCODER_SIGNING_KEY={tmp_path}/secrets/signing_key" in told
    told = enter(tmp_path, *worker, secrets={"ledger_password": "p", "signing_key": "KEY\n"}).stdout.splitlines()
    assert "AUTOCODER_LEDGER_URL=postgresql+psycopg://autocoder:p@postgres:5432/ledger" in told
    (copy,) = (line.partition("=")[2] for line in told if line.startswith("AUTOCODER_SIGNING_KEY="))
    assert Path(copy).read_text() == "KEY\n"
    assert Path(copy).stat().st_mode & 0o777 == 0o600


def test_a_secret_that_is_there_and_cannot_be_read_ends_the_container(tmp_path: Path) -> None:
    """A folder in its place, which nobody can read as a file, whoever runs this test."""
    (tmp_path / "secrets" / "ledger_password").mkdir(parents=True)
    ended = enter(tmp_path, "worker", "cpu", "default", secrets={"prefect_login": "operator:x"})
    assert ended.returncode != 0
    assert "AUTOCODER_LEDGER_URL" not in ended.stdout


def make_secrets(folder: Path) -> None:
    """`scripts/stack_secrets.sh` in this folder; a stub makes the key."""
    (folder / "scripts").mkdir(exist_ok=True)
    shutil.copy(ROOT / "scripts" / "stack_secrets.sh", folder / "scripts")
    stub = folder / "autocoder"
    stub.write_text("#!/bin/sh\nprintf KEY > secrets/signing-key.pem\n")
    stub.chmod(0o755)
    command = ["bash", str(folder / "scripts" / "stack_secrets.sh")]
    subprocess.run(command, env={"PATH": "/usr/bin:/bin", "BIN": str(folder)}, check=True, capture_output=True)


def test_secrets_are_closed_by_their_folder_and_open_to_the_containers(tmp_path: Path) -> None:
    """Each is mounted alone, into a container whose user is not the one who made it."""
    made: list[dict[str, str]] = []
    for _ in range(2):
        make_secrets(tmp_path)
        made.append({file.name: file.read_text() for file in sorted((tmp_path / "secrets").iterdir())})
    assert made[0] == made[1], "nothing that is there is overwritten"
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    named = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["secrets"]
    for entry in named.values():
        file = tmp_path / entry["file"]
        assert file.stat().st_mode & 0o777 == 0o444, file
        assert file.read_text()
    assert (tmp_path / "secrets" / "signing-key.pem").stat().st_mode & 0o077 == 0


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"),
    reason="needs root, to become another user, and setpriv (Debian: util-linux)",
)
def test_another_user_of_the_host_reads_no_secret() -> None:
    """Shown by the kernel: refused behind the closed folder, and read as soon as that is open."""
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to others anyway
        folder = Path(name)
        folder.chmod(0o755)
        make_secrets(folder)
        key = folder / "secrets" / "signing_key"
        other = ["setpriv", "--reuid=10001", "--regid=10001", "--clear-groups", "cat", str(key)]
        refused = subprocess.run(other, capture_output=True, text=True, check=False)
        assert refused.returncode != 0
        assert "Permission denied" in refused.stderr
        (folder / "secrets").chmod(0o755)
        assert subprocess.run(other, capture_output=True, text=True, check=True).stdout == "KEY"
