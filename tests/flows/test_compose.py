"""docker-compose.yml, as Docker's own tool reads it: what is open, who holds which secret, what is
reserved.
"""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import stack as scripts_stack
import yaml
from prefect.settings import PREFECT_UI_ENABLED, PREFECT_UI_STATIC_DIRECTORY, temporary_settings
from printed_pages import code_blocks
from starlette.testclient import TestClient

from tasks.coding.coder import CLOSED

ROOT = Path(__file__).resolve().parents[2]
GUIDE = "\n".join(
    (ROOT / "docs" / "how-to" / f"{page}.md").read_text()
    for page in ("operate", "back-up-and-recover", "scale-out")
)
PROFILES = [part for name in ("gpu", "storage", "serve", "cluster") for part in ("--profile", name)]


@cache
def _tool() -> list[str]:
    """Docker's own, as words; empty where it isn't installed."""
    tool = ["docker-compose"] if shutil.which("docker-compose") else ["docker", "compose"]
    if not shutil.which(tool[0]):
        return []
    done = subprocess.run([*tool, "version"], capture_output=True)
    return [] if done.returncode else tool


def config(*overrides: Path, **settings: str) -> dict[str, Any]:
    """The file after `config`, all profiles included: references followed, these settings in place
    of .env.
    """
    tool = _tool()
    if not tool:
        pytest.skip("needs docker-compose (Debian: docker-compose); no engine has to run")
    files = [part for file in ("docker-compose.yml", *overrides) for part in ("-f", str(file))]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("AUTOCODER_", "COMPOSE_"))}
    with tempfile.NamedTemporaryFile("w", suffix=".env") as own:
        own.write("".join(f"{name}={value}\n" for name, value in settings.items()))
        own.flush()
        command = [*tool, "--env-file", own.name, *files, *PROFILES, "config"]
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return yaml.safe_load(done.stdout)


@pytest.fixture(scope="module")
def composed() -> dict[str, Any]:
    return config()


def _mounts(service: dict[str, Any]) -> list[str]:
    """Volumes as `source:target[:ro]`, in whichever form the tool prints them."""
    return [
        v
        if isinstance(v, str)
        else f"{v.get('source')}:{v['target']}{':ro' if v.get('read_only') else ''}"
        for v in service.get("volumes", [])
    ]


def ours(composed: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = {
        name: s for name, s in composed["services"].items() if s["image"].startswith("autocoder")
    }
    assert len(found) > 8
    return found


def secrets_of(service: dict[str, Any]) -> set[str]:
    return {
        entry if isinstance(entry, str) else entry["source"] for entry in service.get("secrets", [])
    }


def environment(service: dict[str, Any]) -> dict[str, str | None]:
    """Variables of a service; one that is handed on and not set is left out, in whichever form the
    tool prints it.
    """
    return {
        name: value
        for name, value in (service.get("environment") or {}).items()
        if value is not None
    }


def test_only_the_proxies_have_ports_and_they_are_on_loopback(composed: dict[str, Any]) -> None:
    """Databases and workers are on a network without a way out; what sends notifications has one,
    and no records.
    """
    open_ports = {
        name: service["ports"]
        for name, service in composed["services"].items()
        if service.get("ports")
    }
    assert set(open_ports) == {"proxy", "coder-proxy"}
    assert all("127.0.0.1" in str(port) for ports in open_ports.values() for port in ports)
    assert composed["networks"]["inside"]["internal"] is True
    assert not (composed["networks"]["outside"] or {}).get("internal")
    out = {name: s for name, s in composed["services"].items() if set(s["networks"]) != {"inside"}}
    assert {name: set(s["networks"]) for name, s in out.items()} == {
        "proxy": {"inside", "outside"},
        "prefect-services": {"inside", "outside"},
        "coder": {"coding"},
        "coder-proxy": {"coding", "outside"},
    }
    for service in out.values():
        assert not secrets_of(service) & {"ledger_password", "ledger_owner_password", "signing_key"}
        assert not [v for v in _mounts(service) if "/workspace/private" in v or ":/data:ro" in v]


def test_the_coding_service_is_behind_a_proxy_with_deadlines(
    composed: dict[str, Any], tmp_path: Path
) -> None:
    """Asked for by its profile; no one but the proxy is on its network, which has no way out; it
    reads bundles, the public key and the clients' keys.
    """
    coder, proxy = composed["services"]["coder"], composed["services"]["coder-proxy"]
    assert coder["profiles"] == proxy["profiles"] == ["serve"]
    assert {n for n, s in composed["services"].items() if "coding" in s["networks"]} == {
        "coder",
        "coder-proxy",
    }
    assert composed["networks"]["coding"]["internal"] is True
    assert secrets_of(coder) == {"signing_public", "api_keys"}
    assert [v.split(":", 1)[1] for v in _mounts(coder)] == ["/workspace/bundles:ro"]
    assert not secrets_of(proxy)
    assert any(
        v.endswith("deployments/serve.Caddyfile:/etc/caddy/Caddyfile:ro") for v in _mounts(proxy)
    )
    assert environment(proxy)["AUTOCODER_SERVICE"] == "coder:8321"
    assert "depends_on" in proxy
    assert set(proxy["depends_on"]) == {"coder"}
    names = {
        environment(config(AUTOCODER_SITE="coder.example")["services"][n])["AUTOCODER_SITE"]
        for n in ("coder", "coder-proxy")
    }
    assert names == {"coder.example"}
    ended = enter(tmp_path, "serve", secrets={"api_keys": "a key of sixteen"})
    assert ended.returncode == 2
    assert "signing_public is missing" in ended.stderr
    said = enter(
        tmp_path, "serve", secrets={"signing_public": "P"}, AUTOCODER_SITE="coder.example"
    ).stdout
    assert said.startswith("serve --host 0.0.0.0 --proxy * --allowed-host coder.example --key")
    assert "--no-key" not in said


def test_a_webhook_reaches_what_applies_the_rules_and_nothing_else(
    composed: dict[str, Any],
) -> None:
    """From .env; not set it is not there at all, since an empty address would be one."""
    name = "AUTOCODER_NOTIFY_WEBHOOK"
    assert not [s for s in composed["services"].values() if name in environment(s)]
    told = config(**{name: "https://chat.example/hook"})
    assert [n for n, s in told["services"].items() if name in environment(s)] == ["deploy"]
    assert environment(told["services"]["deploy"])[name] == "https://chat.example/hook"


def test_the_gpu_worker_has_an_image_with_cuda(composed: dict[str, Any]) -> None:
    """The same recipe and commit under another name, with PyPI's torch; all others have the build
    for the CPU.
    """
    told = config(AUTOCODER_TAG="abc")
    for services, tag, commit in (
        (composed["services"], "dev", ""),
        (told["services"], "abc", "abc"),
    ):
        images = {name: s["image"] for name, s in services.items() if "build" in s}
        assert images.pop("worker-gpu") == f"autocoder-gpu:{tag}"
        assert set(images.values()) == {f"autocoder:{tag}"}
        for name, service in services.items():
            if "build" in service:
                args = service["build"]["args"]
                assert args["COMMIT"] == commit
                assert args["TORCH_INDEX"].endswith(
                    "pypi.org/simple" if name == "worker-gpu" else "/whl/cpu"
                )
    recipe = (ROOT / "deployments" / "images" / "autocoder.Dockerfile").read_text()
    assert "ARG TORCH_INDEX" in recipe
    assert '--index-url "$TORCH_INDEX"' in recipe


def test_each_container_ends_when_it_is_asked_to_and_leaves_no_dump(
    composed: dict[str, Any],
) -> None:
    """An init hands SIGTERM on, which the first process of a container otherwise ignores; dumps
    have one byte.
    """
    for name, service in ours(composed).items():
        assert service["init"] is True, name
        assert service["stop_grace_period"] in ("2m", "2m0s"), name
        limit = service["ulimits"]["core"]
        assert (limit if isinstance(limit, int) else limit["hard"]) == 1, name


def test_containers_reach_no_port_of_the_host(composed: dict[str, Any]) -> None:
    """The network without a way out has no address of the host's either; the guide says how an old
    one goes.
    """
    options = composed["networks"]["inside"]["driver_opts"]
    assert str(options["com.docker.network.bridge.inhibit_ipv4"]).lower() == "true"
    assert "docker compose down" in GUIDE


def test_no_container_is_root_writable_or_capable(composed: dict[str, Any]) -> None:
    """The image's user is a number, databases run as their own, all on a root file system that is
    only read. Proxies alone are root, without a capability but the one that their image's program
    is marked with.
    """
    for name, service in composed["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service.get("cap_add", []) == (
            ["NET_BIND_SERVICE"] if name in ("proxy", "coder-proxy") else []
        ), name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert any(mount.startswith("/tmp") for mount in service["tmpfs"]), name
    assert {name: composed["services"][name]["user"] for name in ("postgres", "redis")} == {
        "postgres": "postgres",
        "redis": "redis",
    }
    recipe = (ROOT / "deployments" / "images" / "autocoder.Dockerfile").read_text()
    assert re.findall(r"^USER (\d+)$", recipe, re.MULTILINE) == ["10001"]
    command = composed["services"]["redis"]["command"][-1]
    assert "--requirepass" not in command, "arguments are seen by anyone who lists processes"
    assert subprocess.run(["sh", "-n", "-c", command], check=False).returncode == 0


def test_every_container_has_bounds_and_its_log_is_turned_over(composed: dict[str, Any]) -> None:
    """Of memory, processes and its weight among others; no log fills the disk, and a worker comes
    last.
    """
    for name, service in composed["services"].items():
        assert re.fullmatch(r"[1-9]\d*[bkmg]?", str(service["mem_limit"])), name
        assert int(service["pids_limit"]) > 0, name
        assert service["logging"]["options"] == {"max-size": "10m", "max-file": "5"}, name
        works = service.get("command", [""])[0] in ("worker", "engine-worker", "metrics")
        assert int(service["cpu_shares"]) == (512 if works else 1024), name


def test_two_stacks_in_one_folder(tmp_path: Path) -> None:
    """The second is refused; once the first has ended, the folder is free."""
    first = scripts_stack.claim(tmp_path)
    with pytest.raises(SystemExit, match="another stack is running in"):
        scripts_stack.claim(tmp_path)
    os.close(first)
    os.close(scripts_stack.claim(tmp_path))


def test_every_service_that_stays_has_a_health_check(composed: dict[str, Any]) -> None:
    """What runs once has none."""
    for name, service in composed["services"].items():
        assert ("healthcheck" in service) is (service["restart"] != "no"), name


def test_services_that_hang_are_told(tmp_path: Path) -> None:
    """The file that the health check of the background services looks at is touched while the loop
    turns.
    """
    import asyncio

    from flows.server.services import alive

    async def turn() -> list[int]:
        sign = asyncio.ensure_future(alive(tmp_path / "alive", every=0.01))
        seen: set[int] = set()
        while len(seen) < 3:
            await asyncio.sleep(0.001)
            if (tmp_path / "alive").exists():
                seen.add((tmp_path / "alive").stat().st_mtime_ns)
        sign.cancel()
        return sorted(seen)

    assert len(asyncio.run(turn())) == 3


def test_the_operators_browser_asks_this_server_alone(composed: dict[str, Any]) -> None:
    """The page's policy, and the server's own for pages of other origins; logs name the page that
    can be opened.
    """
    (policy,) = re.findall(
        r'header Content-Security-Policy "(.*)"', (ROOT / "deployments" / "Caddyfile").read_text()
    )
    rules = {name: words for name, *words in (rule.split() for rule in policy.split(";"))}
    assert rules["connect-src"] == ["'self'", "wss://{hostport}"]
    assert rules["frame-ancestors"] == rules["object-src"] == ["'none'"]
    services, page = composed["services"], "https://127.0.0.1:8443"
    assert (
        environment(services["prefect-server"])["PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS"] == page
    )
    assert {
        environment(services[name])["PREFECT_UI_URL"]
        for name in services
        if name.startswith("worker-")
    } == {f"{page}/v2"}


def test_encoders_lie_where_models_are_trained_and_released(composed: dict[str, Any]) -> None:
    """At one path, to read only: the release builds the model by the name that the training run had
    for it.
    """
    holding = {
        n: v for n, s in composed["services"].items() for v in _mounts(s) if ":/encoders" in v
    }
    assert set(holding) == {"engine-worker", "worker-cpu", "worker-gpu", "worker-release"}
    assert all(v.endswith(f"{os.sep}encoders:/encoders:ro") for v in holding.values())
    assert "encoder: /encoders/distilroberta-base" in GUIDE
    assert "--local-dir encoders/distilroberta-base" in GUIDE


def test_the_proxy_has_a_certificate_for_whoever_names_no_server() -> None:
    """A client that asks for an address names none, and in its container the proxy has another than
    the host's.
    """
    file = (ROOT / "deployments" / "Caddyfile").read_text()
    (site,) = re.findall(r"^https://([0-9.]+):8443 \{$", file, re.MULTILINE)
    assert re.findall(r"^\tdefault_sni (\S+)$", file, re.MULTILINE) == [site]


def test_neither_a_release_nor_upkeep_waits_for_a_training(composed: dict[str, Any]) -> None:
    """Natively and in Docker no worker of the pool `cpu` that serves the queue of trainings serves
    theirs.
    """
    native = {name: (pool, queues) for name, (pool, _, queues) in scripts_stack.WORKERS.items()}
    commands = {
        n: s["command"]
        for n, s in composed["services"].items()
        if s.get("command", [""])[0] == "worker"
    }
    docker = {name: (command[1], tuple(command[2:])) for name, command in commands.items()}
    file = yaml.safe_load((ROOT / "deployments" / "prefect.yaml").read_text())
    asked = {
        (d["work_pool"]["name"], d["work_pool"]["work_queue_name"]) for d in file["deployments"]
    }
    for workers in (native, docker):
        served = [queues for pool, queues in workers.values() if pool == "cpu"]
        assert all(served), "none serves every queue"
        (training,) = (queues for queues in served if "default" in queues)
        assert not {"release", "upkeep"} & set(training)
        assert {queue for pool, queue in asked if pool == "cpu"} <= {
            queue for queues in served for queue in queues
        }
    upkeep = composed["services"]["worker-upkeep"]
    assert secrets_of(upkeep) == {"prefect_login", "ledger_password"}
    assert [v.partition(":")[2].removesuffix(":rw") for v in _mounts(upkeep)] == [
        "/workspace/private"
    ]


def test_each_service_has_the_secrets_that_it_needs_and_no_other(composed: dict[str, Any]) -> None:
    """The key that signs bundles is the releasing worker's; the ledger owner's password is the
    migration's alone.
    """
    holders: dict[str, set[str]] = {}
    for name, service in composed["services"].items():
        for secret in secrets_of(service):
            holders.setdefault(secret, set()).add(name)
    assert holders["signing_key"] == {"worker-release"}
    assert holders["ledger_owner_password"] == {"migrate", "postgres"}
    assert holders["prefect_db_password"] == {
        "migrate",
        "postgres",
        "prefect-server",
        "prefect-services",
    }
    with_ledger = {"metrics", "worker-cpu", "worker-gpu", "worker-upkeep"}
    assert holders["ledger_release_password"] == {"postgres", "worker-release"}
    assert holders["ledger_password"] == {"postgres", *with_ledger}
    for service in composed["services"].values():
        for name, value in (service.get("environment") or {}).items():
            assert not any(word in name for word in ("PASSWORD", "AUTH_STRING")) or name.endswith(
                "_FILE"
            ), (
                name,
                value,
            )


def test_the_storage_is_asked_for_and_its_key_is_told_to_whoever_reads_stages(
    composed: dict[str, Any],
) -> None:
    """Workers of shared stages hold the key; no argument and no variable of the file does. Without
    the two settings of .env a worker keeps to its workspace.
    """
    storage = composed["services"]["storage"]
    assert storage["profiles"] == ["storage"]
    assert storage["user"] == "10001:10001"
    assert list(storage["networks"]) == ["inside"]
    holders = {
        name
        for name, service in composed["services"].items()
        if "storage_key" in secrets_of(service)
    }
    assert holders == {"storage", "engine-worker", "worker-cpu", "worker-gpu", "worker-release"}
    command = storage["command"] if isinstance(storage["command"], str) else storage["command"][-1]
    assert (
        subprocess.run(["sh", "-n", "-c", command.replace("$$", "$")], check=False).returncode == 0
    )
    assert "/run/secrets/storage_key" in command
    settings = {
        "AUTOCODER_STORAGE": "s3://stages/autocoder",
        "AWS_ENDPOINT_URL": "http://storage:7070",
    }
    told = config(**settings)
    for name in holders - {"storage"}:
        assert not environment(composed["services"][name]).keys() & settings.keys()
        assert environment(told["services"][name]).items() >= settings.items()


def test_a_worker_takes_the_storages_key_where_it_shares_stages(tmp_path: Path) -> None:
    """From its secret, by the environment; other credentials, and a worker that shares nothing, are
    left alone.
    """
    secrets = {"prefect_login": "operator:x", "storage_key": "abc"}
    shared = {"AUTOCODER_STORAGE": "s3://stages/autocoder"}
    told = enter(
        tmp_path, "worker", "cpu", "default", secrets=secrets, **shared
    ).stdout.splitlines()
    assert {"AWS_ACCESS_KEY_ID=autocoder", "AWS_SECRET_ACCESS_KEY=abc"} <= set(told)
    own = {"AWS_ACCESS_KEY_ID": "own", "AWS_SECRET_ACCESS_KEY": "own"}
    told = enter(tmp_path, "worker", "cpu", "default", secrets=secrets, **shared, **own).stdout
    assert "AWS_SECRET_ACCESS_KEY=own" in told
    assert "abc" not in told
    assert "AWS_" not in enter(tmp_path, "worker", "cpu", "default", secrets=secrets).stdout


def test_the_engine_has_certificates_and_neither_records_nor_ledger(
    composed: dict[str, Any], tmp_path: Path
) -> None:
    """Its profile starts a scheduler and two workers; the training workers use it where .env names
    it.
    """
    engine, worker = composed["services"]["engine"], composed["services"]["engine-worker"]
    assert engine["profiles"] == worker["profiles"] == ["cluster"]
    assert not secrets_of(engine)
    assert secrets_of(worker) == {"storage_key"}
    assert [v for v in _mounts(worker) if "/data:" in v or "/bundles" in v] == []
    address = {"AUTOCODER_ENGINE": "tls://engine:8786"}
    for name in ("worker-cpu", "worker-gpu"):
        assert not environment(composed["services"][name]).keys() & address.keys()
        service = config(**address)["services"][name]
        assert environment(service).items() >= address.items()
        assert any(mount.partition(":")[2].startswith("/run/engine") for mount in _mounts(service))
    told = enter(tmp_path, "engine-worker", address["AUTOCODER_ENGINE"], secrets={}).stdout
    assert told.startswith("engine --join tls://engine:8786\n")
    assert "AUTOCODER_NO_LEDGER=yes" in told


def test_only_the_releasing_worker_writes_bundles_and_the_gpu_is_reserved(
    composed: dict[str, Any],
) -> None:
    """Training workers have the private workspace and no folder that anything leaves by."""
    mounts = {name: " ".join(_mounts(s)) for name, s in composed["services"].items()}
    bundles = {
        name: v
        for name, s in composed["services"].items()
        for v in _mounts(s)
        if "/workspace/bundles" in v
    }
    assert {name: v.endswith(":ro") for name, v in bundles.items()} == {
        "worker-release": False,
        "worker-coding": True,
        "coder": True,
    }
    assert "/workspace/private" in mounts["worker-gpu"]
    assert mounts["metrics"].endswith(":ro")
    (device,) = composed["services"]["worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    for name in ("postgres", "redis", "prefect-server"):
        assert composed["services"][name]["healthcheck"]


def test_the_coding_worker_has_neither_records_nor_ledger(composed: dict[str, Any]) -> None:
    """It serves only the queue of `code-batch`; the others leave that queue to it."""
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


def test_every_command_of_the_image_is_one_that_its_entrypoint_knows(
    composed: dict[str, Any],
) -> None:
    """And the scripts are sound shell."""
    script = ROOT / "deployments" / "images" / "entrypoint.sh"
    text = script.read_text()
    for service in ours(composed).values():
        assert f"  {service['command'][0]})" in text
    for path in (
        script,
        ROOT / "deployments" / "postgres" / "10-roles.sh",
        ROOT / "scripts" / "stack_secrets.sh",
    ):
        assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0


def enter(
    folder: Path, *command: str, secrets: dict[str, str], **more: str
) -> subprocess.CompletedProcess[str]:
    """The entrypoint with these secrets; in place of the commands stands what prints arguments and
    environment.
    """
    (folder / "secrets").mkdir(exist_ok=True)
    for name, content in secrets.items():
        (folder / "secrets" / name).write_text(content)
    stubs = folder / "bin"
    stubs.mkdir(exist_ok=True)
    for name in ("prefect", "autocoder"):
        (stubs / name).write_text('#!/bin/sh\necho "$@"\nenv\n')
        (stubs / name).chmod(0o755)
    env = {
        "PATH": f"{stubs}:/usr/bin:/bin",
        "SECRETS": str(folder / "secrets"),
        "TMPDIR": str(folder),
    }
    env |= more
    script = str(ROOT / "deployments" / "images" / "entrypoint.sh")
    return subprocess.run(
        ["bash", script, *command], env=env, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("card", [True, False])
def test_a_worker_for_gpus_does_not_start_without_one(tmp_path: Path, card: bool) -> None:
    """Else it would look well, and every run that it takes would fail. The cause is said."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text(f"#!/bin/sh\nexit {int(not card)}\n")
    (tmp_path / "bin" / "python").chmod(0o755)
    ended = enter(tmp_path, "worker", "gpu", "default", secrets={"prefect_login": "a:b"})
    assert ended.returncode == int(not card)
    assert ("worker start --pool gpu" in ended.stdout) is card
    assert ("no CUDA device" in ended.stderr) is not card


def test_a_container_without_its_secrets_falls_back_to_nothing(tmp_path: Path) -> None:
    """No login: it ends. No password, no signing key: the same ledger all the same, and a key that
    is not there.
    """
    worker = ("worker", "cpu", "coding")
    ended = enter(tmp_path, *worker, secrets={})
    assert ended.returncode == 2
    assert "prefect_login is missing" in ended.stderr
    told = enter(tmp_path, *worker, secrets={"prefect_login": "operator:x"}).stdout.splitlines()
    assert "AUTOCODER_LEDGER_URL=postgresql+psycopg://autocoder@postgres:5432/ledger" in told
    assert f"{CLOSED}=yes" in told, "what was revoked it is told by a list"
    assert f"AUTOCODER_SIGNING_KEY={tmp_path}/secrets/signing_key" in told
    told = enter(
        tmp_path, *worker, secrets={"ledger_password": "p", "signing_key": "KEY\n"}
    ).stdout.splitlines()
    assert "AUTOCODER_LEDGER_URL=postgresql+psycopg://autocoder:p@postgres:5432/ledger" in told
    assert not [line for line in told if line.startswith(CLOSED)]
    (copy,) = (line.partition("=")[2] for line in told if line.startswith("AUTOCODER_SIGNING_KEY="))
    assert Path(copy).read_text() == "KEY\n"
    assert Path(copy).stat().st_mode & 0o777 == 0o600


def test_a_secret_that_is_there_and_cannot_be_read_ends_the_container(tmp_path: Path) -> None:
    """A folder in its place, which no one can read as a file, anyone who runs this test."""
    (tmp_path / "secrets" / "ledger_password").mkdir(parents=True)
    ended = enter(tmp_path, "worker", "cpu", "default", secrets={"prefect_login": "operator:x"})
    assert ended.returncode != 0
    assert "AUTOCODER_LEDGER_URL" not in ended.stdout


@pytest.mark.parametrize(
    ("command", "more", "server"),
    [
        (("cli", "ledger", "change-policy", "--reason", "board decision"), {}, "postgres:5432"),
        (("flow-run",), {"AUTOCODER_POSTGRES": "db.agency.example:5433"}, "db.agency.example:5433"),
    ],
)
def test_a_person_and_a_run_in_a_container_have_its_ledger_and_login(
    command: tuple[str, ...], more: dict[str, str], server: str, tmp_path: Path
) -> None:
    """No ledger of their own is opened beside it; PostgreSQL is where the environment says."""
    done = enter(
        tmp_path, *command, secrets={"prefect_login": "operator:x", "ledger_password": "p"}, **more
    )
    assert done.returncode == 0, done.stderr
    said, *told = done.stdout.splitlines()
    assert said == (" ".join(command[1:]) or "flow-run execute")
    assert f"AUTOCODER_LEDGER_URL=postgresql+psycopg://autocoder:p@{server}/ledger" in told
    assert "PREFECT_API_AUTH_STRING=operator:x" in told


def test_an_empty_webhook_is_none(tmp_path: Path) -> None:
    """As a line of .env without a value gives it."""
    login = {"prefect_login": "operator:x"}
    for value in ("", "https://chat.example"):
        done = enter(tmp_path, "deploy", secrets=login, AUTOCODER_NOTIFY_WEBHOOK=value)
        assert done.returncode == 0, done.stderr
        assert ("AUTOCODER_NOTIFY_WEBHOOK" in done.stdout) is bool(value)


def test_the_stack_prints_the_ledger_that_its_workers_have(tmp_path: Path) -> None:
    """What a shell makes of the lines is the workers' ledger, workspace and login; the lines hold
    no password.
    """
    stack = scripts_stack.Stack(tmp_path / "a folder", "", "")
    stack.postgres_address = "127.0.0.1:5432"
    lines = stack.exports()
    assert not [name for name in ("autocoder", "operator") if stack.secret(name) in "".join(lines)]
    script = "\n".join(("set -eu", *lines, "env"))
    done = subprocess.run(
        ["bash", "-c", script], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    told = {
        name: value for name, _, value in (line.partition("=") for line in done.stdout.splitlines())
    }
    assert told["AUTOCODER_LEDGER_URL"] == stack.database("autocoder", "ledger", "psycopg")
    assert told["AUTOCODER_HOME"] == str(tmp_path / "a folder" / "home")
    assert (told["PREFECT_API_URL"], told["PREFECT_API_AUTH_STRING"]) == (stack.api, stack.auth)


def test_prefects_pages_connect_to_their_own_server_alone(tmp_path: Path) -> None:
    """As the server serves them from the stack's copy, both of its pages: before any script, and
    once.
    """
    from prefect.server.api.server import create_ui_app  # takes seconds

    with temporary_settings({PREFECT_UI_STATIC_DIRECTORY: str(tmp_path), PREFECT_UI_ENABLED: True}):
        client = TestClient(create_ui_app(ephemeral=False))
    scripts_stack.close_pages(tmp_path)
    scripts_stack.close_pages(tmp_path)
    for address in ("/v2/", "/v2/runs", "/runs"):
        page = client.get(address, headers={"Accept": "text/html"}).text
        assert page.count("Content-Security-Policy") == 1, address
        assert page.index(scripts_stack.CONNECT_TO_SELF) < page.index("<script"), address


def _blocks(language: str) -> list[str]:
    return [block for name, block in code_blocks(GUIDE) if name == language]


def test_the_guides_commands_name_what_is_there(composed: dict[str, Any]) -> None:
    """Each container that the guide has a person type into has the ledger and the login; each
    option is the tool's.
    """
    lines = [line for block in _blocks("") for line in block.splitlines()]
    typed = [
        shlex.split(line, comments=True) for line in lines if line.startswith("docker compose run ")
    ]
    assert typed
    for words in typed:
        (name,) = (word for word in words if word in composed["services"])
        assert {"prefect_login"} <= secrets_of(composed["services"][name])
        assert {"ledger_password", "ledger_release_password"} & secrets_of(
            composed["services"][name]
        )
        if "--entrypoint" not in words:
            assert words[words.index(name) + 1] == "cli"
    for words in (
        shlex.split(line, comments=True) for line in lines if "ledger change-policy" in line
    ):
        assert {"--policy", "--requester", "--reason"} <= set(words), words


def test_the_guides_overrides_are_taken(tmp_path: Path) -> None:
    """Stages shared by the workers."""
    (stages,) = _blocks("yaml")
    (tmp_path / "stages.yml").write_text(stages)
    services = config(tmp_path / "stages.yml")["services"]
    sharing = {
        n for n, s in services.items() if environment(s).get("AUTOCODER_STORAGE") == "/stages"
    }
    assert sharing == {"worker-cpu", "worker-gpu", "worker-release"}
    for name in sharing:
        mounted = [v.split(":")[1] for v in _mounts(services[name])]
        assert {"/stages", "/workspace/private", "/encoders"} <= set(mounted)


def test_the_example_of_settings_has_every_variable_and_its_default() -> None:
    """What docker-compose.yml reads is in .env.example, and nothing else is but Compose's own; a
    default that it shows is the file's.
    """
    text = (ROOT / "docker-compose.yml").read_text()
    read = dict(re.findall(r"\$\{([A-Z_]+)(?::-([^}]*))?\}", text))
    handed_on = set(re.findall(r"^ +- ([A-Z_]+)$|environment: \[([A-Z_]+)\]", text, re.M))
    wanted = set(read) | {name for names in handed_on for name in names if name}
    example = (ROOT / ".env.example").read_text()
    shown = dict(re.findall(r"^(?:# )?([A-Z_]+)=(.*)$", example, re.M))
    assert set(shown) == wanted | {"COMPOSE_PROFILES"}
    for name, default in read.items():
        assert shown[name] == default or not default, name


def test_what_a_house_adds_is_not_gits() -> None:
    """Settings, secrets, and the folders that hold records and narratives by default."""
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("needs git, and a checkout")
    named = (
        ".env",
        "docker-compose.override.yml",
        "secrets/x",
        "data/x",
        "narratives/x",
        "encoders/x",
    )
    done = subprocess.run(["git", "check-ignore", *named], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == list(named)


def make_secrets(folder: Path, umask: int = 0o022) -> None:
    """`scripts/stack_secrets.sh` in this folder; a stub makes the keys, as closed as the umask has
    them.
    """
    (folder / "scripts").mkdir(exist_ok=True)
    shutil.copy(ROOT / "scripts" / "stack_secrets.sh", folder / "scripts")
    stub = folder / "autocoder"
    stub.write_text(
        "#!/bin/sh\nif [ $1 = engine ]; then mkdir secrets/engine; cd secrets/engine; printf C > "
        "engine.pem; "
        "printf K > engine-key.pem; else cd secrets; printf KEY > signing-key.pem; printf P > "
        "signing-key.pub.pem; fi\n"
    )
    stub.chmod(0o755)
    command = ["bash", str(folder / "scripts" / "stack_secrets.sh")]
    env = {"PATH": "/usr/bin:/bin", "BIN": str(folder)}
    subprocess.run(command, env=env, check=True, capture_output=True, umask=umask)


def test_secrets_are_closed_by_their_folder_and_open_to_the_containers(tmp_path: Path) -> None:
    """Each is mounted alone, into a container whose user is not the one who made it."""
    made: list[dict[str, str]] = []
    for _ in range(2):
        make_secrets(tmp_path)
        files = sorted(file for file in (tmp_path / "secrets").rglob("*") if file.is_file())
        made.append({file.name: file.read_text() for file in files})
    assert made[0] == made[1], "nothing that is there is overwritten"
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    named = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["secrets"]
    for entry in named.values():
        file = tmp_path / entry["file"]
        assert file.stat().st_mode & 0o777 == 0o444, file
        assert file.read_text()
    assert all(
        file.stat().st_mode & 0o777 == 0o444 for file in (tmp_path / "secrets" / "engine").iterdir()
    )
    assert (tmp_path / "secrets" / "signing-key.pem").stat().st_mode & 0o077 == 0
    assert (tmp_path / "secrets" / "signing-key.pub.pem").stat().st_mode & 0o777 == 0o444, (
        "containers check with it"
    )


def test_a_checkout_that_is_closed_to_others(tmp_path: Path) -> None:
    """Under umask 077: what containers read of it is opened, in the image and beside it; narratives
    have a folder.
    """
    (tmp_path / "deployments").mkdir()
    shutil.copytree(ROOT / "deployments" / "postgres", tmp_path / "deployments" / "postgres")
    shutil.copy(ROOT / "deployments" / "Caddyfile", tmp_path / "deployments")
    for path in [
        tmp_path / "deployments" / "Caddyfile",
        *(tmp_path / "deployments" / "postgres").rglob("*"),
    ]:
        path.chmod(0o600)
    (tmp_path / "deployments" / "postgres").chmod(0o700)
    make_secrets(tmp_path, umask=0o077)
    for path in (tmp_path / "deployments" / "postgres").rglob("*"):
        assert path.stat().st_mode & 0o044 == 0o044
    assert (tmp_path / "deployments" / "postgres").stat().st_mode & 0o055 == 0o055
    assert (tmp_path / "deployments" / "Caddyfile").stat().st_mode & 0o044 == 0o044
    narratives = (tmp_path / "narratives").stat()
    assert narratives.st_mode & 0o077 == 0
    assert os.geteuid() != 0 or narratives.st_uid == 10001
    recipe = (ROOT / "deployments" / "images" / "autocoder.Dockerfile").read_text()
    copied = max(match.start() for match in re.finditer(r"^COPY ", recipe, re.MULTILINE))
    assert (
        copied
        < recipe.index("chmod -R a+rX /app /usr/local/bin/entrypoint.sh")
        < recipe.index("USER 10001")
    )


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
