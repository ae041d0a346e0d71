"""Process workers of a real Prefect server, and their ends."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil


@contextmanager
def workers(
    env: dict[str, str], folder: Path, number: int, *, pool: str = "gpu", queues: Sequence[str] = ()
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Workers of a pool, one run at a time each, with a workspace each in `folder`."""
    started = []
    served = [part for queue in queues for part in ("--work-queue", queue)]
    for i in range(number):
        own = {"PREFECT_HOME": str(folder / f"prefect-{i}"), "AUTOCODER_HOME": str(folder / f"worker-{i}")}
        command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool, *served, "--limit", "1"]
        started.append(
            subprocess.Popen(
                [*command, "--name", f"{pool}-{i}"], env=env | own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        )
    try:
        yield started
    finally:
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def runs_of(server: str, flow: str) -> list[dict[str, Any]]:
    """Runs of a flow, as the server has them; asked again while it is too busy to answer."""
    return _asked(f"{server}/flow_runs/filter", {"flows": {"name": {"any_": [flow]}}})


def kill_a_run(server: str, flow: str, started: list[subprocess.Popen[bytes]], *, with_worker: bool = False) -> str:
    """SIGKILL to all that a worker has started, once its run of the flow is at work; returns the run's id.

    Its processes are halted first, so that the run can't end before. With its worker it dies after its first
    heartbeat: of a run that never had one, the rule `zombies` knows nothing.
    """
    while True:  # the test's own limit ends it
        for worker in started:
            with suppress(psutil.Error):
                at_work = psutil.Process(worker.pid).children(recursive=True)
                for process in at_work:
                    process.suspend()
                ids = {process.environ().get("PREFECT__FLOW_RUN_ID") for process in at_work}
                time.sleep(0.5)  # what it had sent has arrived
                runs = [run for run in runs_of(server, flow) if run["id"] in ids]
                at_work_there = runs and all(run["state_type"] == "RUNNING" for run in runs)
                if at_work_there and (not with_worker or _has_beaten(server, runs[0]["id"])):
                    if with_worker:
                        worker.kill()
                    for process in at_work:
                        process.kill()
                    return runs[0]["id"]
                for process in at_work:
                    process.resume()
        time.sleep(0.2)


def _has_beaten(server: str, run: str) -> bool:
    beats = {"event": {"name": ["prefect.flow-run.heartbeat"]}, "resource": {"id": [f"prefect.flow-run.{run}"]}}
    return bool(_asked(f"{server}/events/filter", {"filter": beats})["events"])


def online(server: str, pool: str = "gpu") -> int:
    """Workers of a pool that have told the server of themselves."""
    found = _asked(f"{server}/work_pools/{pool}/workers/filter", {})
    return sum(worker["status"] == "ONLINE" for worker in found)


def _asked(url: str, what: dict[str, Any]) -> Any:
    while True:  # the test's own limit ends it
        with suppress(httpx.TransportError):
            answer = httpx.post(url, json=what, timeout=60)
            if answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR:
                answer.raise_for_status()
                return answer.json()
        time.sleep(1)
