"""A small job that runs through the real command."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

SMALL = (
    "fit.adamw.epochs=2",
    "fit.sgd.epochs=4",
    "fit.swag.rank=3",
    "pseudo_posterior.risk_draws=40",
    "pseudo_posterior.sensitivity_draws=40",
)
"""Settings that make the demo profile take seconds."""


def environment(**changes: str) -> dict[str, str]:
    """The environment of a user who has set nothing of ours or of Prefect's."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "AUTOCODER_"))}
    return kept | {"NO_COLOR": "1", "COLUMNS": "200"} | changes


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextmanager
def prefect_server(folder: Path) -> Iterator[str]:
    """A Prefect server of its own, on SQLite in `folder`; gives the API's address."""
    port = free_port()
    env = environment(PREFECT_HOME=str(folder / "server"), PREFECT_SERVER_ANALYTICS_ENABLED="false", DO_NOT_TRACK="1")
    (folder / "server").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}/api"
    try:
        for _ in range(600):
            try:
                if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                    break
            except httpx.HTTPError:
                time.sleep(0.2)
        else:
            pytest.fail("the Prefect server did not start")
        yield url
    finally:
        process.terminate()
        process.wait(60)


@dataclass(frozen=True)
class Job:
    """One workspace and the command that works on it."""

    home: Path
    data: Path
    codelist: Path
    settings: tuple[str, ...] = SMALL
    env: dict[str, str] = field(default_factory=environment)

    def arguments(self, *extra: str) -> list[str]:
        """The retrain command."""
        settings = [part for setting in self.settings for part in ("--set", setting)]
        return [
            *(sys.executable, "-m", "flows.cli", "retrain", "--profile", "demo", "--home", str(self.home)),
            *("--data", str(self.data), "--codelist", str(self.codelist), *settings, *extra),
        ]

    def run(self, *extra: str) -> subprocess.CompletedProcess[str]:
        """Retrain, to the end."""
        return subprocess.run(self.arguments(*extra), capture_output=True, text=True, env=self.env, timeout=500)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Any other command on the workspace."""
        return subprocess.run(
            [sys.executable, "-m", "flows.cli", *arguments, "--home", str(self.home)],
            capture_output=True,
            text=True,
            env=self.env,
            timeout=300,
        )

    def stages(self) -> dict[str, bytes]:
        """Manifest of each finished stage: it holds the digest of every file."""
        root = self.home / "private" / "stages"
        return {str(p.parent.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("manifest.json"))}

    def ledger(self) -> list[dict[str, Any]]:
        """Rows of the ledger, each release's newest."""
        return json.loads(self.command("ledger", "list", "--json").stdout)

    def releases(self) -> list[dict[str, Any]]:
        """Rows of releases."""
        return [row for row in self.ledger() if row["kind"] == "release"]
