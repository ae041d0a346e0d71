"""`status --check` as its users call it."""

import json
import os
import time
from pathlib import Path

import pytest
from jobs import Job

from flows.commands import checks
from storage import shared_store
from storage.errors import StorageError


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


def test_a_shared_storage_that_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is read once, since a store that can be opened need not answer."""
    (tmp_path / "store").mkdir(mode=0o700)
    monkeypatch.setenv(shared_store.VARIABLE, str(tmp_path / "store"))
    assert checks._storage(tmp_path).ok

    def refuse(*_: object) -> None:
        raise StorageError("the store does not answer", kind="store-unreachable")

    monkeypatch.setattr(shared_store.SharedStore, "manifest", refuse)
    found = checks._storage(tmp_path)
    assert not found.ok
    assert found.remedy == "the store does not answer"


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
