"""Process workers of a real Prefect server, and their ends; a run of theirs that stands still where
a test wants it.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient


@contextmanager
def workers(
    env: dict[str, str], folder: Path, number: int, *, pool: str = "gpu", queues: Sequence[str] = ()
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Workers of a pool, one run at a time each, with a workspace each in `folder`."""
    started = []
    served = [part for queue in queues for part in ("--work-queue", queue)]
    for i in range(number):
        own = {
            "PREFECT_HOME": str(folder / f"prefect-{i}"),
            "AUTOCODER_HOME": str(folder / f"worker-{i}"),
        }
        command = [
            sys.executable,
            "-m",
            "prefect",
            "worker",
            "start",
            "--pool",
            pool,
            *served,
            "--limit",
            "1",
        ]
        started.append(
            subprocess.Popen(
                [*command, "--name", f"{pool}-{i}"],
                env=env | own,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
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


def kill_a_run(
    server: str, flow: str, started: list[subprocess.Popen[bytes]], *, with_worker: bool = False
) -> str:
    """SIGKILL to all that a worker has started, once its run of the flow is at work; returns the
    run's id. Its processes are halted first, so that the run can't end before. With its worker it
    dies after its first heartbeat; `kill_with_worker` is for one that dies before.
    """
    while True:  # the test's own limit ends it
        for worker in started:
            at_work = psutil.Process(worker.pid).children(recursive=True)
            if not _running(server, flow, at_work):
                continue
            _signal(at_work, signal.SIGSTOP)
            time.sleep(0.5)  # what it had sent has arrived
            runs = _running(server, flow, at_work)
            if runs and (not with_worker or has_beaten(server, runs[0]["id"])):
                if with_worker:
                    worker.kill()
                _signal(at_work, signal.SIGKILL)
                return runs[0]["id"]
            _signal(at_work, signal.SIGCONT)
        time.sleep(0.2)


def _signal(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    """Sends a signal to all processes that are still there."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _running(server: str, flow: str, processes: Sequence[psutil.Process]) -> list[dict[str, Any]]:
    """Returns the runs of a flow that these processes are at; none unless all of them are `Running`
    on the server.
    """
    ids: set[str | None] = set()
    for process in processes:
        with suppress(psutil.Error):
            ids.add(process.environ().get("PREFECT__FLOW_RUN_ID"))
    runs = [run for run in runs_of(server, flow) if run["id"] in ids]
    return runs if all(run["state_type"] == "RUNNING" for run in runs) else []


def _stand_still(flow: Any, flow_run: Any, state: Any) -> None:
    """Name the process to the test. Prefect calls this when the server has the run as `Running`,
    and sends the first heartbeat afterwards.
    """
    folder = Path(flow_run.parameters["folder"])
    number = len(list(folder.glob("start-*")))
    named = folder / f"start-{number}.partial"
    named.write_text(str(os.getpid()))
    named.rename(folder / f"start-{number}")
    while number < flow_run.parameters["still"]:
        signal.pause()


@flow(name="audit", on_running=[_stand_still], persist_result=False)
def standing(folder: str, still: int) -> None:
    """A run of one of our flows' names. It has no task and logs nothing; it ends once the file `go`
    is in the folder.

    Args:
        folder: where it names its process, in a file for each start.
        still: so many starts stand still before their first heartbeat.
    """
    while not (Path(folder) / "go").exists():
        time.sleep(0.2)


def deployed(client: SyncPrefectClient, pool: str) -> Any:
    return client.create_deployment(
        client.create_flow_from_name("audit"),
        "standing",
        entrypoint="real_workers.standing",
        work_pool_name=pool,
        pull_steps=[{"prefect.deployments.steps.set_working_directory": {"directory": "/"}}],
    )


def kill_with_worker(folder: Path, number: int, started: list[subprocess.Popen[bytes]]) -> None:
    """SIGKILL to the worker whose run of `standing` is at this start, and to all that it has
    started.
    """
    named = folder / f"start-{number}"
    while not named.exists():  # the test's own limit ends it
        time.sleep(0.1)
    at_work = psutil.Process(int(named.read_text()))
    above = {process.pid for process in at_work.parents()}
    (worker,) = [worker for worker in started if worker.pid in above]
    below = psutil.Process(worker.pid).children(recursive=True)
    worker.kill()
    for process in below:
        process.kill()
    worker.wait()


def has_beaten(server: str, run: str) -> bool:
    """Whether the server got a heartbeat of the run."""
    beats = {
        "event": {"name": ["prefect.flow-run.heartbeat"]},
        "resource": {"id": [f"prefect.flow-run.{run}"]},
    }
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
