"""A running stack as tests see it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from storage.demo_data import write_demo_data

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Stack:
    """A running stack, and what a client of it needs."""

    folder: Path

    @property
    def state(self) -> dict[str, Any]:
        return json.loads((self.folder / "stack.json").read_text())

    def secret(self, name: str) -> str:
        return (self.folder / "secrets" / name).read_text()

    @property
    def api(self) -> str:
        return self.state["api"]

    @property
    def auth(self) -> tuple[str, str]:
        return "operator", self.secret("operator")

    @property
    def home(self) -> Path:
        return Path(self.state["home"])

    def ledger_url(self, role: str = "autocoder", database: str = "ledger") -> str:
        port = self.state["postgres"].rpartition(":")[2]
        return f"postgresql+psycopg://{role}:{self.secret(role)}@127.0.0.1:{port}/{database}"

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """A request as the operator; again while the server is away."""

        def answer() -> httpx.Response | None:
            with suppress(httpx.TransportError):
                response = httpx.post(
                    f"{self.api}{path}", json=body or {}, auth=self.auth, timeout=60
                )
                if response.status_code < 500:
                    return response
            return None

        return self.wait(f"an answer to {path}", answer)

    def deployment(self, name: str) -> dict[str, Any]:
        flow, _, own = name.partition("/")
        body = {"flows": {"name": {"any_": [flow]}}, "deployments": {"name": {"any_": [own]}}}
        (found,) = self.post("/deployments/filter", body).json()
        return found

    def runs(self, flow: str) -> list[dict[str, Any]]:
        """Runs of a flow, the oldest first, schedules of the future left out."""
        body = {"flows": {"name": {"any_": [flow]}}, "sort": "EXPECTED_START_TIME_ASC"}
        return [r for r in self.post("/flow_runs/filter", body).json() if not r["auto_scheduled"]]

    def run(self, run_id: str) -> dict[str, Any]:
        (found,) = self.post("/flow_runs/filter", {"flow_runs": {"id": {"any_": [run_id]}}}).json()
        return found

    def artifacts(self, run_id: str) -> list[dict[str, Any]]:
        """Artifacts of a run that have a key."""
        body = {"artifacts": {"flow_run_id": {"any_": [run_id]}}}
        return [a for a in self.post("/artifacts/filter", body).json() if a["key"]]

    def said(self, run_id: str) -> list[str]:
        """The log lines of a run that the server has."""
        return [
            r["message"]
            for r in self.post("/logs/filter", {"logs": {"flow_run_id": {"any_": [run_id]}}}).json()
        ]

    def wait(self, what: str, ready: Callable[[], Any], *, pause: float = 1.0) -> Any:
        """What `ready` gives, once it is something. Half an hour is for a machine that has much
        else to do.
        """
        deadline = time.monotonic() + 1800
        while time.monotonic() < deadline:
            found = ready()
            if found:
                return found
            time.sleep(pause)
        pytest.fail(f"{what} did not come about; logs:\n{self.logs()}")

    def logs(self) -> str:
        return "\n".join(
            f"== {p.name}\n{p.read_text(errors='replace')[-1500:]}"
            for p in (self.folder / "logs").glob("*")
        )

    def environment(self, **changes: str) -> dict[str, str]:
        """What a client or a worker of the stack needs."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "AUTOCODER_"))}
        return kept | {
            "PREFECT_API_URL": self.api,
            "PREFECT_API_AUTH_STRING": ":".join(self.auth),
            "AUTOCODER_HOME": str(self.home),
            "AUTOCODER_LEDGER_URL": self.ledger_url(),
            "DO_NOT_TRACK": "1",
            "COLUMNS": "200",
            **changes,
        }

    def command(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """`autocoder …`, as the officer or operator runs it beside the stack."""
        return subprocess.run(
            [sys.executable, "-m", "flows.cli", *arguments],
            env=self.environment(**changes),
            capture_output=True,
            text=True,
            timeout=1800,
        )


def missing() -> str | None:
    """What a stack needs and this machine lacks."""
    if not (shutil.which("initdb") or list(Path("/usr/lib/postgresql").glob("*/bin/initdb"))):
        return "the stack needs PostgreSQL's server programs (Debian: postgresql)"
    if not shutil.which("redis-server"):
        return "the stack needs Redis (Debian: redis-server)"
    return None


@contextmanager
def started(*, webhook: str | None = None) -> Iterator[Stack]:
    """A stack of its own, as `make stack` starts it, on 400 synthetic records; none of its
    processes is left behind.
    """
    folder = Path(tempfile.mkdtemp(prefix="autocoder-stack-"))
    folder.chmod(0o755)  # PostgreSQL's user must come through
    data = write_demo_data(folder / "data", records=400, seed=1)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "AUTOCODER_"))}
    process = subprocess.Popen(
        [
            *(
                sys.executable,
                str(ROOT / "scripts" / "stack.py"),
                "--folder",
                str(folder / "stack"),
                "--json",
            ),
            *("--data", str(data.csv), "--codelist", str(data.codelist)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env
        | {"AUTOCODER_STACK_QUERY_SECONDS": "2", "PYTHONUNBUFFERED": "1"}
        | ({"AUTOCODER_NOTIFY_WEBHOOK": webhook} if webhook else {}),
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("{"), f"the stack did not start: {line}{process.stdout.read()}"
        yield Stack(folder / "stack")
        pids = Stack(folder / "stack").state["processes"].values()
        process.send_signal(signal.SIGTERM)
        assert process.wait(600) == 0
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()], (
            "a component outlived the stack"
        )
    finally:
        process.kill()
        process.communicate()
        shutil.rmtree(folder, ignore_errors=True)


def with_officer(stack: Stack) -> Path:
    """Private key of the one officer whom the budget policy names; the first use puts that policy
    in force.
    """
    keys = stack.folder / "officer"
    if not keys.exists():
        made = stack.command("keys", "new", "--out", str(keys))
        assert made.returncode == 0, made.stderr
        approvers = {"officer": (keys / "signing-key.pub.pem").read_text()}
        policy = {
            "name": "agency",
            "approvals": {"minimum": 1, "approvers": approvers},
            "default": {"asymptotic-local": {"epsilon": 1000}},
        }
        file = stack.folder / "policy.yaml"
        file.write_text(yaml.safe_dump(policy))
        changed = stack.command(
            *(
                "ledger",
                "change-policy",
                "--policy",
                str(file),
                "--requester",
                "lead",
                "--reason",
                "start",
            )
        )
        assert changed.returncode == 0, changed.stderr
    return keys / "signing-key.pem"
