"""The same command against a Prefect server that runs: the run, its stages and its artifacts are in
the server.
"""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from jobs import Job

from tasks.parameters import RetrainParameters

pytestmark = pytest.mark.servers


def test_run_stages_and_artifacts_are_in_the_server(
    server: str, served: Job, finished: Job, tmp_path: Path
) -> None:
    """Unchanged command, PREFECT_API_URL set: a completed flow run, a task run a stage, table and
    release artifacts. Stages of a run without a server are reused.
    """
    job = finished.copy(tmp_path / "home").at(tmp_path / "home", env=served.env)
    done = job.run("--json")
    assert done.returncode == 0, done.stderr
    release = json.loads(done.stdout)["release"]
    assert job.stages() == finished.stages()
    runs = httpx.post(f"{server}/flow_runs/filter", json={}, timeout=60).json()
    (run,) = (run for run in runs if run["parameters"].get("home") == str(job.home))
    assert run["state_type"] == "COMPLETED"

    def of_run(what: str) -> list[dict[str, Any]]:
        body = {"flow_runs": {"id": {"any_": [run["id"]]}}, "limit": 100}
        return httpx.post(f"{server}/{what}/filter", json=body, timeout=60).json()

    tasks, seed = of_run("task_runs"), RetrainParameters.model_fields["seed"].default
    names = {task["name"] for task in tasks}
    assert {
        "ingest",
        "features",
        *(f"swag-ppm-reweighted{part}, seed {seed}" for part in (": base", ": weighted", "")),
        "release",
    } <= names
    assert all(task["state_type"] == "COMPLETED" for task in tasks)
    logs = httpx.post(
        f"{server}/logs/filter", json={"logs": {"flow_run_id": {"any_": [run["id"]]}}}, timeout=60
    ).json()
    reused = [line for line in logs if line["message"].endswith("(found finished).")]
    assert len(reused) == len(tasks) - 1, "all but the release"
    artifacts = {a["key"]: a for a in of_run("artifacts") if a["key"]}
    assert release["release_id"] in artifacts["release"]["data"]
    assert "asymptotic-local" in artifacts["release"]["data"]
    assert all(
        f"| {name} |" in artifacts["internal-figures"]["data"]
        for name in ("base", "weighted", "reweighted")
    )
