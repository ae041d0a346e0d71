"""Shards on real workers, each with a workspace of its own, that share nothing but a Prefect server and a bucket."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from jobs import Job, prefect_server
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Running

from tasks.fitting.shard_runs import ShardRuns

AWS = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A Prefect server of its own; gives the API's address."""
    with prefect_server(tmp_path) as url:
        yield url


@contextmanager
def workers(env: dict[str, str], folder: Path, number: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Workers of the GPU pool, one run at a time each."""
    started = []
    for i in range(number):
        own = {"PREFECT_HOME": str(folder / f"prefect-{i}"), "AUTOCODER_HOME": str(folder / f"worker-{i}")}
        command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "gpu", "--limit", "1"]
        started.append(
            subprocess.Popen(
                [*command, "--name", f"gpu-{i}"], env=env | own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
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


def shard_runs(server: str) -> list[dict[str, Any]]:
    """Runs of shards, as the server has them."""
    named = {"flows": {"name": {"any_": ["risk-shard"]}}}
    return httpx.post(f"{server}/flow_runs/filter", json=named, timeout=30).json()


def kill_a_shard(server: str, started: list[subprocess.Popen[bytes]]) -> None:
    """SIGKILL to all that a worker has started, once a shard runs."""
    for _ in range(1200):
        if any(run["state_type"] == "RUNNING" for run in shard_runs(server)):
            for worker in started:
                children = psutil.Process(worker.pid).children(recursive=True)
                for child in children:
                    os.kill(child.pid, signal.SIGKILL)
                if children:
                    return
        time.sleep(0.1)
    pytest.fail("no shard ever ran")


@pytest.mark.slow
def test_what_is_taken_back_is_cancelled_by_the_server(server: str) -> None:
    """At once what has not begun, by its worker what runs; a run that nobody took back goes on. More than one request.

    Slow: a server.
    """
    with temporary_settings({PREFECT_API_URL: server}), get_client(sync_client=True) as client:
        deployment = client.create_deployment(client.create_flow_from_name("risk-shard"), "risk-shard")
        states = [Running(), *[None] * 60]
        made = [client.create_flow_run_from_deployment(deployment, state=state) for state in states]
        ids = [str(run.id) for run in made]
        runs = ShardRuns(client, deployment, None, "auto")
        runs.cancel(ids[:-1])
        seen = runs.states(ids)
    expected = [StateType.CANCELLING, *[StateType.CANCELLED] * 59, StateType.SCHEDULED]
    assert [seen[run][0] for run in ids] == expected


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_workers_and_a_kill_end_as_one_process(
    server: str, finished: Job, s3_bucket: Callable[[], str], tmp_path: Path
) -> None:
    """The risk pass is the unbroken single process's, byte for byte, so that all after it is reused.

    The shard that died ran again, alone.

    Slow: a server, two workers and four runs of shards, a process each.
    """
    place = s3_bucket()
    shared = {"AUTOCODER_STORAGE": place, "PREFECT_API_URL": server} | {name: os.environ[name] for name in AWS}
    env = finished.env | shared | {"PREFECT_WORKER_QUERY_SECONDS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    applied = subprocess.run([sys.executable, "-m", "flows.cli", "deploy"], env=env, capture_output=True, text=True)
    assert applied.returncode == 0, applied.stderr
    job = Job(tmp_path / "home", finished.data, finished.codelist, (*finished.settings, "release.enabled=false"), env)
    shutil.copytree(finished.home / "private", job.home / "private")
    shutil.rmtree(job.home / "private" / "stages" / "risks")
    with workers(env, tmp_path, 2) as started:
        process = subprocess.Popen(
            job.arguments("--shards", "3"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env
        )
        try:
            kill_a_shard(server, started)
            _, said = process.communicate(timeout=500)
        finally:
            process.kill()
    assert process.returncode == 0, said

    stages = {name: manifest for name, manifest in job.stages().items() if not name.startswith("risk-shard/")}
    assert stages == finished.stages()
    runs = shard_runs(server)
    states = sorted(run["state_type"] for run in runs)
    assert states == ["COMPLETED", "COMPLETED", "COMPLETED", "CRASHED"]
    for run in runs:
        text = json.dumps(run)
        assert place not in text, "storage is the worker's own affair"
        assert os.environ["AWS_SECRET_ACCESS_KEY"] not in text
        assert set(run["parameters"]["shard"]) == {"draws", "inputs", "key"}
    computed = [len(list((tmp_path / f"worker-{i}" / "private" / "stages" / "risk-shard").iterdir())) for i in range(2)]
    assert sum(computed) == 3, "on the workers, each once"
    assert all(computed)
