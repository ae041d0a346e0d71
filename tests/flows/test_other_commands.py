"""`status --check` as its users call it."""

import json
import os
import time
from pathlib import Path

from jobs import Job


def test_doctor_tells_what_is_here(finished: Job) -> None:
    """Every check by name, as JSON; nothing is missing where a job has just run."""
    done = finished.command("status", "--check", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {entry["check"]: entry for entry in json.loads(done.stdout)}
    assert {"torch", "encoder packaged-minilm", "ledger", "prefect", "disk"} <= set(found)
    assert all(entry["ok"] for entry in found.values())


def test_doctor_names_a_server_that_does_not_answer(finished: Job) -> None:
    """With what to do, and exit code 1."""
    job = finished.at(
        finished.home, env=finished.env | {"PREFECT_API_URL": "http://127.0.0.1:1/api"}
    )
    done = job.command("status", "--check")
    assert done.returncode == 1
    assert "does not answer" in done.stdout
    assert "prefect server start" in done.stdout


def test_purge_lists_then_removes_and_the_ledger_has_it(finished: Job, tmp_path: Path) -> None:
    """Nothing is removed without --yes, nothing young ever; the ledger records how many folders
    went.
    """
    job = finished.copy(tmp_path / "home")
    stages = job.home / "private" / "stages"
    assert "is older than" in job.command("purge", "--older-than", "30").stdout
    plans = sorted((job.home / "private" / "plans").rglob("*"))
    before = time.time() - 100 * 86_400
    for path in (job.home / "private").rglob("*"):
        os.utime(path, times=(before, before))
    listed = job.command("purge", "--older-than", "30")
    assert listed.returncode == 0, listed.stderr
    assert "would remove" in listed.stdout
    assert list(stages.glob("*/*"))
    removed = job.command("purge", "--older-than", "30", "--yes")
    assert removed.returncode == 0, removed.stderr
    assert not list(stages.glob("*/*"))
    assert sorted((job.home / "private" / "plans").rglob("*")) == plans
    rows = json.loads(job.command("ledger", "show", "--all", "--json").stdout)["rows"]
    assert [row["subject"]["kind"] for row in rows if row["subject"]][-1] == "purge"
