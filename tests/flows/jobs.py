"""A small job that runs through the real command."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import warm
from stack import free_port

from storage.ledger.records import VARIABLE
from storage.paths import Workspace

SMALL = (
    *(
        "method.fine_tune.epochs=2",
        "method.collect.epochs=4",
        "method.moments.rank=3",
        "method.pseudo_posterior.risk_draws=40",
    ),
    "method.pseudo_posterior.sensitivity_draws=40",
)
"""Settings that make the demo profile take seconds."""

ENCODED = ("ingest", "features")
"""Stages that every job on the same records has."""

MARKER = "zebrafinch quicksilver marzipan"
"""Words that no code, template or vocabulary holds; every tenth narrative of the data ends with
them.
"""


def environment(**changes: str) -> dict[str, str]:
    """The environment of a user who has set nothing of ours or of Prefect's but the tests' one
    registry key; one thread: files run two at once.
    """
    shared = {
        k: v
        for k, v in os.environ.items()
        if k == VARIABLE or not k.startswith(("PREFECT_", "AUTOCODER_"))
    }
    quiet = {
        "NO_COLOR": "1",
        "COLUMNS": "200",
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    }
    return shared | quiet | {"OMP_NUM_THREADS": "1"} | changes


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def start_server(folder: Path, **settings: str) -> tuple[subprocess.Popen[bytes], str]:
    """Start a Prefect server, on SQLite in `folder` without other settings; the process and the
    API's address, once it answers.
    """
    port = free_port()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "prefect",
            "server",
            "start",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ],
        env=environment(PREFECT_HOME=str(folder), **settings),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}/api"
    while not answers(f"{url}/health"):
        assert process.poll() is None, "the Prefect server ended before it answered"
        time.sleep(0.2)
    return process, url


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=10).status_code == 200
    except httpx.HTTPError:
        return False


@contextmanager
def prefect_server(folder: Path, **settings: str) -> Iterator[str]:
    """A Prefect server of its own, on SQLite in `folder` without other settings; gives the API's
    address.
    """
    process, url = start_server(folder / "server", **settings)
    try:
        yield url
    finally:
        process.terminate()
        process.wait(60)


def start_warm(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start the process that commands are forks of; it takes commands as soon as its socket is
    there.
    """
    address = (
        Path(tempfile.mkdtemp(prefix="autocoder-")) / "socket"
    )  # a socket's path must be short
    command = [sys.executable, str(Path(__file__).with_name("warm.py")), str(address)]
    process = subprocess.Popen(
        command, env=environment(**warm.AT_LOADING, PYTHONPATH=os.pathsep.join(sys.path))
    )
    while not address.exists():
        assert process.poll() is None, "the process for commands ended before it took one"
        time.sleep(0.05)
    return process, str(address)


@dataclass(frozen=True)
class Job:
    """One workspace and the command that works on it."""

    home: Path
    data: Path
    codelist: Path
    warm: Path
    """Where commands are forked."""
    env: dict[str, str]
    settings: tuple[str, ...] = SMALL

    def at(self, home: Path, **changes: Any) -> Job:
        """The same job in another workspace, or otherwise changed."""
        return replace(self, home=home, **changes)

    def copy(self, home: Path, *names: str) -> Job:
        """The same job in a workspace where its stages, or those of these names, are finished;
        nothing was released.
        """
        private, stages = Workspace(home).create().private, self.home / "private" / "stages"
        for name in names or [folder.name for folder in stages.iterdir()]:
            shutil.copytree(stages / name, private / "stages" / name, copy_function=os.link)
        return self.at(home)

    def planned_as(self, other: Job) -> Path:
        """The plan of another job as this workspace would have made it: of its own artifacts, under
        its own ledger.
        """
        from storage.ledger import Ledger
        from storage.ledger.journal import journals_of
        from tasks.releasing.plan import PlannedRelease
        from tasks.running.stage import Context

        (made,) = (other.home / "private" / "plans").glob("*.json")
        content = json.loads(
            made.read_text().replace(str(other.home.resolve()), str(self.home.resolve()))
        )
        content["plan"]["ledger"] = None
        workspace, context = Workspace(self.home), Context(home=str(self.home))
        ledger = Ledger.open(workspace.ledger_url, journals=journals_of(workspace))
        return (
            PlannedRelease.model_validate_json(json.dumps(content))
            .attach_ledger(ledger, context)
            .save(context)
        )

    def options(self) -> list[str]:
        """Data and settings, as `retrain`, `compare` and `audit` take them."""
        settings = [part for setting in self.settings for part in ("--set", setting)]
        return [
            "--profile",
            "demo",
            "--data",
            str(self.data),
            "--codelist",
            str(self.codelist),
            *settings,
        ]

    def arguments(self, *extra: str) -> list[str]:
        """The training run as a command line, for a process of its own."""
        command = (sys.executable, "-m", "flows.cli", "retrain", "--home", str(self.home))
        return [*command, *self.options(), *extra]

    def run(self, *extra: str) -> subprocess.CompletedProcess[str]:
        return self.command("retrain", *self.options(), *extra)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return warm.command(
            self.warm, *arguments, "--home", str(self.home), env=self.env, timeout=500
        )

    def stages(self) -> dict[str, bytes]:
        """Manifest of each finished stage: it holds the digest of every file."""
        root = self.home / "private" / "stages"
        return {
            str(p.parent.relative_to(root)): p.read_bytes()
            for p in sorted(root.rglob("manifest.json"))
        }

    def ledger(self) -> list[dict[str, Any]]:
        return json.loads(self.command("ledger", "show", "--json").stdout)["rows"]

    def releases(self) -> list[dict[str, Any]]:
        return [row for row in self.ledger() if row["kind"] == "release"]
