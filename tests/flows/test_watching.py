"""`autocoder status` and `autocoder metrics` on a workspace without a server."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from in_process import write_policy
from jobs import Job, answers, environment
from prometheus_client.parser import text_string_to_metric_families
from stack import free_port

from flows.commands.metrics import metrics
from storage.errors import InputError

Samples = dict[tuple[str, str], float]


def samples(text: str, label: str) -> Samples:
    """Values by name and one label."""
    return {
        (sample.name, sample.labels.get(label, "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_status_of_a_finished_job_wants_nobody(finished: Job) -> None:
    """Head, policy and budget; exit code 0."""
    done = finished.at(finished.home, env=environment()).command("status", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["server"] is None
    assert found["open_releases"] == found["plans"] == []
    assert found["budget"]
    assert all(float(line["epsilon_left"]) < float(line["epsilon_cap"]) for line in found["budget"])


def test_status_of_an_empty_workspace_makes_nothing(tmp_path: Path, new: Job) -> None:
    """No ledger yet is no error, and looking makes none."""
    home = tmp_path / "none"
    done = new.at(home, env=environment()).command("status")
    assert done.returncode == 0, done.stderr
    assert "ledger    none yet" in done.stdout
    assert not home.exists()


def test_a_plan_without_its_approval_wants_a_person(finished: Job, tmp_path: Path) -> None:
    """A policy that asks for two signatures: the plan is told with what is missing, and the exit code is 1."""
    job = finished.copy(tmp_path / "home").at(tmp_path / "home", env=environment())
    file = write_policy(tmp_path, "B. Officer", minimum=1)
    changed = job.command("ledger", "change-policy", "--policy", str(file), "--requester", "a", "--reason", "b")
    assert changed.returncode == 0, changed.stderr
    job.planned_as(finished)
    done = job.command("status")
    assert done.returncode == 1
    assert "approved by nobody, 1 missing" in done.stdout

    # the same for Prometheus, where a server is named that does not answer
    away = job.at(job.home, env=environment(PREFECT_API_URL="http://127.0.0.1:1/api"))
    told = away.command("metrics").stdout
    assert samples(told, "")[("autocoder_plans_waiting", "")] == 1
    assert samples(told, "part")[("autocoder_up", "server")] == 0
    refused = away.command("status")
    assert refused.returncode == 2
    assert "PREFECT_API_URL" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("address", ["9464", "127.0.0.1:http", "127.0.0.1:99999"])
def test_an_address_that_is_none_is_refused(tmp_path: Path, address: str) -> None:
    """With the option's name."""
    with pytest.raises(InputError, match="--serve"):
        metrics(home=tmp_path, serve=address)


def test_a_run_is_seen_by_prometheus(finished: Job) -> None:
    """Over HTTP: every stage with its time, those of the model with a rate, the budget; no count of records."""
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "flows.cli", "metrics", "--home", str(finished.home), "--serve", address]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL) as serving:
        try:
            while not answers(f"http://{address}/metrics"):
                assert serving.poll() is None, "it ended before it answered"
                time.sleep(0.25)
            text = httpx.get(f"http://{address}/metrics", timeout=60).text
        finally:
            serving.terminate()
    by_stage = samples(text, "stage")
    stages = {stage for name, stage in by_stage if name == "autocoder_stage_last_seconds"}
    assert len(stages) >= len(finished.stages())
    rated = {stage for name, stage in by_stage if name == "autocoder_stage_records_per_second"}
    assert any("SWAG" in stage or "fine-tune" in stage for stage in rated), rated
    assert all(by_stage[("autocoder_stage_records_per_second", stage)] > 0 for stage in rated)
    by_part = samples(text, "part")
    assert by_part[("autocoder_up", "ledger")] == 1
    by_population = samples(text, "population")
    left, cap = (by_population[(f"autocoder_budget_epsilon_{name}", "demo")] for name in ("left", "cap"))
    assert 0 < left < cap
    counts = [
        json.loads(manifest)["figures"]["train"]
        for name, manifest in finished.stages().items()
        if name.startswith("ingest")
    ]
    assert counts
    # a rate may happen to be the same number, in its two digits
    told = {value for (name, _), value in by_stage.items() if name != "autocoder_stage_records_per_second"}
    assert not told & set(counts)
