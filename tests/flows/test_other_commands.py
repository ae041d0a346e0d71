"""`status --check` as its users call it."""

from __future__ import annotations

import json

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
    job = finished.at(finished.home, env=finished.env | {"PREFECT_API_URL": "http://127.0.0.1:1/api"})
    done = job.command("status", "--check")
    assert done.returncode == 1
    assert "does not answer" in done.stdout
    assert "prefect server start" in done.stdout
