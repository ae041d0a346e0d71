"""`diagnose` and `retrain --target-epsilon` as their users run them, on a copy of a finished job."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from in_process import CommandRunner, command
from jobs import Job

from storage.errors import InputError
from storage.ledger import Ledger
from storage.paths import Workspace


@pytest.fixture(scope="module")
def job(finished: Job, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The finished job's stages in a workspace that may be written to."""
    copied = finished.copy(tmp_path_factory.mktemp("diagnose") / "home")
    return replace(copied, settings=(*finished.settings, "release.enabled=false"))


def rows(job: Job) -> list:
    """The ledger's rows."""
    return list(Ledger.open(Workspace(job.home).ledger_url).rows())


def test_diagnose_writes_one_private_page_and_releases_nothing(job: Job) -> None:
    """Stages are reused; verdicts as JSON, a page under private/, a row that charges nothing."""
    before = job.stages()
    done = job.command("diagnose", *job.options(), "--leave-out", "4", "--draws", "10", "--no-refits", "--json")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    page = Path(made["report"])
    assert page.is_relative_to(job.home / "private")
    assert (job.home / "private").stat().st_mode & 0o077 == 0
    assert made["epsilon"] > 0
    assert re.search(r"these diagnostics: about [\d.]+ (s|min) \(", done.stderr), "said before work begins"
    assert {"left-out", "fit-gap", "coverage", "running", "studies"} <= set(made["verdicts"])
    assert set(before) < set(job.stages()), "what the retrain finished is still there"
    assert all(job.stages()[name] == content for name, content in before.items())
    text = page.read_text()
    assert "Private. This page is computed from the records" in text
    assert not re.search(r"[Ee]mployee|[Ww]orker", text)
    (row,) = rows(job)
    assert row.label == "diagnostics of a retrain"
    assert row.charges == ()
    assert not list((job.home / "bundles").glob("*"))


def test_diagnose_refuses_what_it_cannot_leave_out(job: Job, told: CommandRunner) -> None:
    """A head on the first token has no batched refit; the text names the option that leaves it out."""
    code, error = told("diagnose", *job.options(), "--home", job.home, "--set", "model.pooling=first", "--quiet")
    assert (code, error.count("\n")) == (2, 1), error
    assert "--leave-out 0" in error


def test_a_target_is_searched_planned_and_audited(job: Job) -> None:
    """The dry run says that fits are decided one by one; the plan's claim meets the target and says that it was tuned;
    an audit with the same option measures the plan's own candidate.
    """
    target = replace(job, settings=(*job.settings, "pseudo_posterior.target_epsilon=3"))
    dry = json.loads(job.run("--dry-run", "--json", "--target-epsilon", "3").stdout)
    assert "at most 8" in dry["search"]
    assert [stage["stage"] for stage in dry["stages"]][-1] == "risks"
    assert json.loads(job.run("--dry-run", "--json").stdout)["search"] is None

    done = job.run("--target-epsilon", "3", "--quiet", "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(Path(json.loads(done.stdout)["plan"]).read_text())
    claim = plan["plan"]["claim"]
    assert 2.4 < claim["epsilon"] <= 3.0
    assert any("searched for a target epsilon" in line for line in claim["unprotected_inputs"])
    tuned = [row for row in rows(job) if row.label.startswith("tuning for epsilon 3: ")]
    assert 2 <= len(tuned) <= 8
    assert all(row.epsilon and row.charges == () for row in tuned)

    audited = job.command("audit", *target.options(), "--trials", "0", "--quiet", "--json")
    assert audited.returncode == 0, audited.stderr
    (one,) = json.loads(audited.stdout)["branches"]
    (row,) = [row for row in rows(job) if row.kind == "audit"]
    assert row.artifact_digests["audited"] == plan["candidate"]["fitted"]["sha256"]
    assert one["epsilon"] == pytest.approx(claim["epsilon"])


def test_a_target_that_cannot_be_is_named(job: Job, tmp_path: Path) -> None:
    """Before anything runs."""
    given = ("retrain", *job.options(), "--home", str(tmp_path / "home"))
    with pytest.raises(InputError, match=r"pseudo_posterior\.target_epsilon"):
        command(*given, "--target-epsilon", "-1")
    assert not (tmp_path / "home").exists()
