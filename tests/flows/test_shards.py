"""Shards on real workers, each with a workspace of its own, that share nothing but a Prefect server and a bucket."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from jobs import Job, environment, prefect_server
from real_workers import kill_a_run, online, runs_of, workers

AWS = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION")


@pytest.fixture
def ephemeral_server(tmp_path: Path) -> Iterator[str]:
    """A Prefect server of its own, since deployments and their rules are applied to it."""
    with prefect_server(tmp_path) as url:
        yield url


@pytest.mark.servers
@pytest.mark.timeout(900)
def test_two_workers_and_a_kill_end_as_one_process(
    ephemeral_server: str, finished: Job, s3_bucket: Callable[[], str], tmp_path: Path
) -> None:
    """The risk pass is the unbroken single process's, byte for byte, so that all after it is reused.

    The shard that died ran again, alone.
    """
    place = s3_bucket()
    shared = {"AUTOCODER_STORAGE": place, "PREFECT_API_URL": ephemeral_server} | {
        name: os.environ[name] for name in AWS
    }
    env = environment() | shared | {"PREFECT_WORKER_QUERY_SECONDS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    applied = subprocess.run([sys.executable, "-m", "flows.cli", "deploy"], env=env, capture_output=True, text=True)
    assert applied.returncode == 0, applied.stderr
    job = finished.copy(tmp_path / "home")
    job = job.at(job.home, settings=(*job.settings, "release.enabled=false"), env=env)
    shutil.rmtree(job.home / "private" / "stages" / "risks")
    with workers(env, tmp_path, 2) as started:
        while online(ephemeral_server) < 2:
            assert all(worker.poll() is None for worker in started)
            time.sleep(0.2)
        process = subprocess.Popen(
            job.arguments("--shards", "3"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env
        )
        try:
            kill_a_run(ephemeral_server, "shard", started)
            _, said = process.communicate(timeout=500)
        finally:
            process.kill()
    assert process.returncode == 0, said

    stages = {name: manifest for name, manifest in job.stages().items() if not name.startswith("risk-shard/")}
    assert stages == finished.stages()
    runs = runs_of(ephemeral_server, "shard")
    states = sorted(run["state_type"] for run in runs)
    assert states == ["COMPLETED", "COMPLETED", "COMPLETED", "CRASHED"]
    for run in runs:
        text = json.dumps(run)
        assert place not in text, "storage is the worker's own affair"
        assert os.environ["AWS_SECRET_ACCESS_KEY"] not in text
        assert set(run["parameters"]["shard"]) == {"settings", "inputs", "key"}
    computed = [len(list((tmp_path / f"worker-{i}" / "private" / "stages" / "risk-shard").iterdir())) for i in range(2)]
    assert sum(computed) == 3, "on the workers, each once"
    assert all(computed)
