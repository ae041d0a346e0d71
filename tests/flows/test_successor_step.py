"""A plan whose population has a release is compared with it before anyone decides; Prefect learns the path alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from jobs import Job

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def planned(finished: Job, served: Job, tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, dict[str, Any]]:
    """A workspace with a release, and the answer of a second retrain, which has a server and plans alone."""
    job = finished.copy(tmp_path_factory.mktemp("succession") / "home")
    first = job.run("--json")
    assert first.returncode == 0, first.stderr
    assert not list((job.home / "private" / "plans").glob("*.successor*")), "the first plan has no predecessor"
    return job, _plan(job.at(job.home, env=served.env), "second")


def _plan(job: Job, label: str) -> dict[str, Any]:
    done = job.run("--set", f"release.label={label}", "--set", "release.enabled=false", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_officers_page_names_the_comparison(planned: tuple[Job, dict[str, Any]], tmp_path: Path) -> None:
    """The page lies in the private folder, has figures by code and no narrative; the plan's page links to it."""
    job, answer = planned
    (page,) = (job.home / "private" / "plans").glob("*.successor.html")
    text, (release,) = page.read_text(), job.releases()
    assert f"Should the planned release follow {release['release_id']}?" in text
    assert "held-out records of this plan" in text
    assert text.count("<tr>") > 5, "it has figures by code"
    assert "Employee" not in text
    shown = job.command("plan", answer["plan"], "--html", str(tmp_path / "plan.html"))
    assert shown.returncode == 0, shown.stderr
    assert f'href="file://{page}"' in (tmp_path / "plan.html").read_text()
    assert not answer["warnings"]


def test_prefect_learns_the_path_alone(planned: tuple[Job, dict[str, Any]], server: str) -> None:
    """The step is a task of the run. No artifact, log, parameter or state of the run has a finding of the page."""
    job, _ = planned
    (page,) = (job.home / "private" / "plans").glob("*.successor.html")
    runs = httpx.post(f"{server}/flow_runs/filter", json={}, timeout=60).json()
    ours = [run["id"] for run in runs if run["parameters"].get("home") == str(job.home)]
    body = {"flow_runs": {"id": {"any_": ours}}, "limit": 200}
    tasks = httpx.post(f"{server}/task_runs/filter", json=body, timeout=60).json()
    assert [task["state_type"] for task in tasks if task["name"] == "successor"] == ["COMPLETED"]
    artifacts = httpx.post(f"{server}/artifacts/filter", json=body, timeout=60).json()
    assert any(str(page) in str(one["data"]) for one in artifacts if one["key"] == "release-plan")
    logs = httpx.post(f"{server}/logs/filter", json={"logs": {"flow_run_id": {"any_": ours}}}, timeout=60).json()
    stored = json.dumps([runs, tasks, artifacts, logs])
    sentence = page.read_text().partition("<strong>")[2].partition("</strong>")[0]
    assert len(sentence) > 50
    for words in (sentence, sentence[:40], "coded records right", "By code", "McNemar"):
        assert words not in stored


def test_a_release_that_cannot_be_read_is_named_and_nothing_stops(planned: tuple[Job, dict[str, Any]]) -> None:
    """Changed, or gone: the plan is made all the same, with a warning and without a page."""
    job, _ = planned
    (release,) = job.releases()
    folder = job.home / "bundles" / release["release_id"]
    before = set((job.home / "private" / "plans").glob("*.successor*"))
    aside = shutil.move(folder, job.home / "aside")
    answer = _plan(job, "third")
    assert f"release {release['release_id']}, now in use, has no bundle" in str(answer["warnings"])
    shutil.move(aside, folder)
    (folder / "README.md").write_text("changed")
    stage = next(path for path in (job.home / "private" / "stages" / "successor").iterdir())
    shutil.rmtree(stage)
    answer = _plan(job, "fourth")
    assert "is not the committed one" in str(answer["warnings"])
    assert set((job.home / "private" / "plans").glob("*.successor*")) == before
