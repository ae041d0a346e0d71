"""The same command without a server: the same stages and release, and nothing of Prefect's runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jobs import Job, environment
from prefect import flow
from prefect.context import FlowRunContext
from prefect.exceptions import ParameterTypeError
from prefect.server.api.server import SubprocessASGIServer

from flows.server.run_flow import run_flow


def test_a_retrain_ends_as_with_a_server(finished: Job, tmp_path: Path) -> None:
    """Stages of a run with a server are reused, the release is made, and Prefect has no database."""
    job = finished.copy(tmp_path / "home")
    job = job.at(job.home, env=environment())
    done = job.run("--json")
    assert done.returncode == 0, done.stderr
    assert job.stages() == finished.stages()
    (row,) = job.releases()
    assert row["state"] == "committed"
    assert json.loads(done.stdout)["release"]["release_id"] == row["release_id"]
    assert "release" in done.stderr, "progress is shown"
    assert not list(job.home.rglob("prefect.db*")), "a server was started"
    assert list(finished.home.rglob("prefect.db")), "the other run had one"


def test_a_flow_is_its_function_with_checked_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters become what the annotations say, as within Prefect; wrong ones are refused."""

    def start(*_: object, **__: object) -> None:
        raise AssertionError("a server of Prefect's was started")

    monkeypatch.setattr(SubprocessASGIServer, "start", start)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)

    @flow
    def double(number: int) -> int:
        assert FlowRunContext.get() is None
        return 2 * number

    assert run_flow(double, "none", number="21") == 42
    with pytest.raises(ParameterTypeError, match="number"):
        run_flow(double, "none", number="many")
