#!/usr/bin/env python
"""Measures the cost of Prefect: a training run with and without it.

    python benchmarks/orchestration.py --data osha.csv --codelist oiics201_nature.csv [--profile osha-head]
    python benchmarks/orchestration.py --profile demo

Claim: orchestration takes less than 5 % of a training run of `osha-head`, and under 15 s of the demo, against the same
stages and the same release called in plain Python: each a process of its own, Prefect's import (which the plain one
can't avoid) counted to orchestration. The server runs already, as in production.
The server is Prefect's own, on SQLite unless --database names another, as production has. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PLAIN = """
import time
before = time.perf_counter()
import prefect.flows, prefect.tasks, prefect.client.orchestration, prefect.artifacts
result = {"import": time.perf_counter() - before, "stages": {}}
import json, sys
from pathlib import Path
from flows.commands import profiles
from tasks.releasing import publish
from tasks.retraining import run as retraining
from tasks.running.progress import Listener, listening
from tasks.running.stage import Context, run_step

class Seconds(Listener):
    def finished(self, label, figures, *, reused, seconds):
        result["stages"][label] = seconds

home, profile, data, codelist = sys.argv[1:]
parameters = profiles.parameters(profile, [], data=Path(data), codelist=Path(codelist))
context = Context(home=home)
context.workspace.create()
with listening(Seconds()):
    made = retraining.run(context, parameters, lambda step: run_step(context, step), prefect_run_id=None)
    planned, _ = publish.save_plan(context, made.planned, parameters.release)
    publish.release(context, planned, parameters.release)
print(json.dumps(result))
"""
"""A training run without a flow, a task or a server."""


def main() -> None:
    """Runs the requested part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="records (default: synthetic ones)")
    parser.add_argument("--codelist", type=Path, help="their code list")
    parser.add_argument("--profile", default="osha-head")
    parser.add_argument("--repeats", type=int, default=1, help="of the overhead, interleaved (default: 1)")
    parser.add_argument("--database", help="URL of an empty PostgreSQL database for Prefect's server (default: SQLite)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps({"cores": os.cpu_count()} | overhead(options, Path(folder)), indent=1))


# -- the claim -----------------------------------------------------------------------------------------------


def overhead(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The command against the same in plain Python; they take turns at being first."""
    data, codelist = records(options, folder, number=2000)
    job = [options.profile, str(data), str(codelist)]
    sides: dict[str, list[dict[str, Any]]] = {"plain": [], "orchestrated": []}
    with server(folder, options.database) as api:
        env = environment(PREFECT_API_URL=api)
        for repeat in range(options.repeats):
            for side in sorted(sides, reverse=repeat % 2 == 0):
                home = folder / f"{side}-{repeat}"
                sides[side].append(plain(home, *job) if side == "plain" else orchestrated(home, *job, env=env))
                shutil.rmtree(home)
    pairs = list(zip(sides["plain"], sides["orchestrated"], strict=True))
    costs = [b["wall"] - a["wall"] for a, b in pairs]
    return {
        "profile": options.profile,
        "seconds": {side: [shown(one) for one in runs] for side, runs in sides.items()},
        "costs_s": [round(cost, 1) for cost in costs],
        "cost_s": round(statistics.median(costs), 1),
        "cost_share": round(statistics.median(c / a["wall"] for c, (a, _) in zip(costs, pairs, strict=True)), 3),
        "cost_processor_s": round(statistics.median(b["processor"] - a["processor"] for a, b in pairs), 1),
        "targets": {"osha-head cost_share": 0.05, "demo cost_s": 15},
    }


def plain(home: Path, *job: str) -> dict[str, Any]:
    """Seconds of the plain process, by the clock and of its processor, and of its stages; without Prefect's import."""
    with processor() as used:
        wall, output = timed([sys.executable, "-c", PLAIN, str(home), *job], environment())
    inner = json.loads(output)
    away = inner["import"]
    return {"wall": wall - away, "processor": used[0] - away, "import": away, "stages": inner["stages"]}


def orchestrated(home: Path, profile: str, data: str, codelist: str, *, env: Mapping[str, str]) -> dict[str, Any]:
    """The same of the command, whose stages' seconds are those of its metrics."""
    from tasks.running import worker_metrics

    command = [sys.executable, "-m", "flows.cli", "retrain", "--release", "--home", str(home)]
    command += ["--profile", profile, "--data", data, "--codelist", codelist]
    with processor() as used:
        wall, _ = timed(command, env)
    samples = [sample for family in worker_metrics.families(home / "private") for sample in family.samples]
    seconds = {one.labels["stage"]: one.value for one in samples if one.name == "autocoder_stage_last_seconds"}
    return {"wall": wall, "processor": used[0], "stages": seconds}


def shown(one: dict[str, Any]) -> dict[str, Any]:
    """The seconds of a side, with what is left outside the stages."""
    outside = one["wall"] - sum(one["stages"].values())
    rounded = {name: round(s, 1) for name, s in one.items() if name != "stages"} | {"outside": round(outside, 1)}
    return rounded | {"stages": {label: round(s, 2) for label, s in one["stages"].items()}}


@contextmanager
def processor() -> Iterator[list[float]]:
    """Processor seconds of the processes that were started and ended within."""

    def used() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return children.ru_utime + children.ru_stime

    taken = [used()]
    yield taken
    taken[0] = used() - taken[0]


# -- surroundings ------------------------------------------------------------------------------------------


def records(options: argparse.Namespace, folder: Path, *, number: int) -> tuple[Path, Path]:
    """The files that were given, or synthetic ones."""
    from storage.demo_data import write_demo_data

    if options.data is not None and options.codelist is not None:
        return options.data.resolve(), options.codelist.resolve()
    if options.profile != "demo":
        sys.exit("--data and --codelist: name the records of this profile")
    written = write_demo_data(folder / "data", records=number, seed=1)
    return written.csv, written.codelist


def environment(**changes: str) -> dict[str, str]:
    """Returns the environment of a user without settings of ours or of Prefect's."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "AUTOCODER_"))}
    quiet = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "OMP_WAIT_POLICY": "PASSIVE"}
    return inherited | quiet | {"PYTHONPATH": str(Path(__file__).resolve().parent.parent)} | changes


def timed(command: list[str], env: Mapping[str, str]) -> tuple[float, str]:
    """Wall seconds of a command that must succeed, and its output."""
    started = time.perf_counter()
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return time.perf_counter() - started, done.stdout


@contextmanager
def server(folder: Path, database: str | None) -> Iterator[str]:
    """Prefect's server on the database, or on SQLite; gives the API's address."""
    import httpx

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    env = environment(PREFECT_HOME=str(folder / "server"))
    if database is not None:
        env["PREFECT_API_DATABASE_CONNECTION_URL"] = database
    process = start(command, env)
    try:
        for _ in range(900):
            try:
                if httpx.get(f"http://127.0.0.1:{port}/api/health", timeout=2).status_code == httpx.codes.OK:
                    break
            except httpx.HTTPError:
                pass
            time.sleep(0.2)
        else:
            sys.exit("the server did not start")
        yield f"http://127.0.0.1:{port}/api"
    finally:
        process.terminate()
        process.wait(60)


def start(command: list[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A process in the background."""
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
