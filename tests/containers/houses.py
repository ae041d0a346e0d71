"""An agency's checkout whose docker-compose.yml runs in a real engine, as tests see it."""

import json
import os
import re
import shutil
import ssl
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from stacks import Stack

from storage.demo_data import write_demo_data

ROOT = Path(__file__).resolve().parents[2]
PAGE = "https://127.0.0.1:8443"
IMAGE = "autocoder:containers-test"
_CHECKOUT = (
    "docker-compose.yml",
    ".dockerignore",
    "requirements.lock",
    "pyproject.toml",
    "LICENSE",
    "scripts",
    "deployments",
    "autocoder",
    "flows",
    "service",
    "tasks",
    "mechanisms",
    "storage",
)

_OF_THE_PACKAGES = (
    "requirements.lock",
    "pyproject.toml",
    "LICENSE",
    "deployments/images/slim.sh",
    "deployments/images/imported.txt",
)


def compose_tool() -> list[str] | None:
    """Docker's own plugin or Debian's docker-compose, whichever is here."""
    if (
        shutil.which("docker")
        and subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0
    ):
        return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else None


@dataclass(frozen=True)
class House(Stack):
    """A stack whose components are containers; its folder is the checkout."""

    engine: dict[str, str]

    @property
    def api(self) -> str:
        return f"{PAGE}/api"

    @property
    def auth(self) -> tuple[str, str]:
        name, _, password = self.secret("prefect_login").partition(":")
        return name, password

    def asked(
        self, path: str, *, method: str = "GET", login: bool = True, body: Any = None
    ) -> httpx.Response:
        """A request to the proxy, by whom its own authority's certificate is checked."""
        trusting = ssl.create_default_context(cafile=str(self.folder / "caddy-root.crt"))
        auth = self.auth if login else None
        return httpx.request(
            method, f"{PAGE}{path}", json=body, auth=auth, verify=trusting, timeout=60
        )

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        def answer() -> httpx.Response | None:
            with suppress(httpx.TransportError):
                response = self.asked(f"/api{path}", method="POST", body=body or {})
                if response.status_code < 500:
                    return response
            return None

        return self.wait(f"an answer to {path}", answer)

    def run_here(self, *command: str, check: bool = True, **more: Any) -> str:
        """What a command prints, in the checkout, with the engine's address."""
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.shell(),
            capture_output=True,
            text=True,
            timeout=3000,
            **more,
        )
        assert done.returncode == 0 or not check, (
            f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
        return done.stdout

    def shell(self) -> dict[str, str]:
        """The environment of a person who works in the checkout: `autocoder` is on the path,
        settings are in .env.
        """
        kept = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("PREFECT_", "AUTOCODER_", "COMPOSE_"))
        }
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}{os.pathsep}/usr/sbin"
        return (
            kept
            | self.engine
            | {"PATH": path, "COMPOSE_PROJECT_NAME": "autocodertest", "DO_NOT_TRACK": "1"}
        )

    def compose(self, *arguments: str, **more: Any) -> str:
        return self.run_here(*(compose_tool() or ()), *arguments, **more)

    def container(self, service: str) -> str:
        """Id of a service's container, one that has ended too."""
        wanted = (
            f"label=com.docker.compose.service={service}",
            "label=com.docker.compose.project=autocodertest",
            "label=com.docker.compose.oneoff=False",
        )
        return self.run_here(
            "docker", "ps", "-aq", *(f"--filter={label}" for label in wanted)
        ).strip()

    def inspected(self, service: str) -> dict[str, Any]:
        return json.loads(self.run_here("docker", "inspect", self.container(service)))[0]

    def inside(self, service: str, *command: str) -> str:
        """What a command prints inside a running container."""
        return self.run_here("docker", "exec", self.container(service), *command)

    def cli(self, *arguments: str, check: bool = True) -> str:
        """`autocoder …` as the guide has it typed with Docker."""
        return self.compose(
            "run", "--rm", "--no-deps", "-T", "worker-release", "cli", *arguments, check=check
        )

    def services(self) -> dict[str, dict[str, Any]]:
        """Services of the file that stay, by name; not the GPU's."""
        told = yaml.safe_load((self.folder / "docker-compose.yml").read_text())["services"]
        return {
            name: s for name, s in told.items() if s.get("restart") != "no" and "profiles" not in s
        }

    def private(self) -> Path:
        """Where the engine keeps the volume of the private workspace."""
        told = self.run_here("docker", "volume", "inspect", "autocodertest_private")
        return Path(json.loads(told)[0]["Mountpoint"])

    def follow(self, *lines: str, **words: str) -> str:
        """Lines of the operator's pages in one shell, words in capitals filled in;
        what they print.
        """
        tool = compose_tool() or []
        text = "\n".join(("set -euo pipefail", *lines))
        for word, value in words.items():
            text = re.sub(rf"\b{word}\b", value, text)
        if tool == ["docker-compose"]:  # the older one has no `cp`
            text = re.sub(
                r"docker compose cp ([a-z]+):", r'docker cp "$(docker-compose ps -q \1)":', text
            )
            text = re.sub(r"docker compose run (?!.* -T )", "docker compose run -T ", text)
        return self.run_here(
            "bash", "-c", text.replace("docker compose", " ".join(tool)), umask=0o022
        )

    def healthy(self) -> set[str]:
        shown = '{{.Label "com.docker.compose.service"}}\t{{.Status}}'
        wanted = (
            "label=com.docker.compose.project=autocodertest",
            "label=com.docker.compose.oneoff=False",
        )
        told = self.run_here(
            "docker", "ps", *(f"--filter={label}" for label in wanted), "--format", shown
        )
        return {line.split("\t")[0] for line in told.splitlines() if line.endswith("(healthy)")}

    def unhealthy(self) -> list[str]:
        """Services that stay and are not, or not yet, healthy."""
        return sorted(set(self.services()) - self.healthy())

    def up(self) -> None:
        """Start what is not running, and wait until all answer."""
        self.compose("up", "-d")
        self.wait("health", lambda: not self.unhealthy(), pause=2)
        self.follow(
            "docker compose cp proxy:/data/caddy/pki/authorities/local/root.crt caddy-root.crt"
        )
        self.wait("the page", lambda: self.asked("/api/health").status_code == 200)

    def logs(self) -> str:
        return self.compose("logs", "--tail=15", check=False)[-8000:]


def start_engine() -> dict[str, str]:
    """The engine's address and what a build there needs; skips, by name, what this
    machine lacks.
    """
    if compose_tool() is None:
        pytest.skip(
            "containers need docker and its compose (Debian: docker.io docker-compose iptables "
            "mmdebstrap)"
        )
    if os.geteuid() != 0:
        pytest.skip("containers are killed from outside, by root alone")
    done = subprocess.run(
        ["bash", str(ROOT / "scripts" / "containers.sh"), "start"], capture_output=True, text=True
    )
    if done.returncode == 3:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


def move_in(folder: Path, engine: dict[str, str]) -> House:
    """A checkout under umask 077, its secrets, records and settings made as the guide says. Nothing
    is built yet.
    """
    before = os.umask(0o077)
    try:
        for name in _CHECKOUT:
            source, target = ROOT / name, folder / name
            if source.is_file():
                target.write_bytes(source.read_bytes())
                continue
            for file in sorted(
                p for p in source.rglob("*") if p.is_file() and "__pycache__" not in p.parts
            ):
                to = target / file.relative_to(source)
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(file.read_bytes())
    finally:
        os.umask(before)
    for name in _OF_THE_PACKAGES:  # whose modes are part of what the engine knows a layer by
        (folder / name).chmod(0o644)
    house = House(folder, {"DOCKER_HOST": engine["DOCKER_HOST"]})
    env = house.shell() | {"BIN": str(Path(sys.executable).parent)}
    subprocess.run(
        ["bash", "scripts/stack_secrets.sh"],
        cwd=folder,
        env=env,
        check=True,
        capture_output=True,
        umask=0o077,
    )
    write_demo_data(folder / "records", records=400, seed=1)
    for path in (folder, folder / "records", *(folder / "records").iterdir()):
        path.chmod(0o755)
    settings = {"AUTOCODER_RECORDS": "./records", "AUTOCODER_TAG": IMAGE.partition(":")[2]}
    settings |= {name: value for name, value in engine.items() if name != "DOCKER_HOST"}
    (folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return house
