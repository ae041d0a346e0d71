"""The same command without a server: the same stages and release, and nothing of Prefect's runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from jobs import Job
from prefect import flow
from prefect.context import FlowRunContext
from prefect.exceptions import ParameterTypeError
from pydantic import ValidationError

from flows.server.run_flow import run_flow
from tasks.running.flow_run import PlainJob

_WITHOUT_PREFECT = """
import sys
from flows.cli import main
try:
    main()
finally:
    print("prefect was imported" if "prefect" in sys.modules else "prefect was not imported", file=sys.stderr)
"""


@pytest.mark.servers
def test_a_retrain_brings_nothing_of_prefects(finished: Job, tmp_path: Path) -> None:
    """It ends in a release. Nothing of Prefect is imported, which takes a second of each command, and it has no
    database.
    """
    job = finished.copy(tmp_path / "home")
    command = [sys.executable, "-c", _WITHOUT_PREFECT, *job.arguments("--json")[3:]]
    done = subprocess.run(command, env=job.env, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    (row,) = job.releases()
    assert row["state"] == "committed"
    assert json.loads(done.stdout)["release"]["release_id"] == row["release_id"]
    assert "release" in done.stderr, "progress is shown"
    assert done.stderr.rstrip().endswith("prefect was not imported")
    assert not list(job.home.rglob("prefect.db*")), "a server was started"


def test_a_job_without_prefect_checks_and_converts_its_parameters() -> None:
    """As a flow does, its defaults included; made a flow, it is the same function."""

    def half(number: int, divisor: int = 2) -> int:
        return number // divisor

    plain: PlainJob[..., int] = PlainJob(half, {"name": "half"})
    assert run_flow(plain, "none", number="42") == 21
    with pytest.raises(ValidationError, match="number"):
        run_flow(plain, "none", number="many")
    assert run_flow(PlainJob(half, {"validate_parameters": False}), "none", number=43) == 21
    assert (plain.flow().name, plain.flow().fn) == ("half", half)


def test_a_flow_is_its_function_with_checked_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters become what the annotations say, as within Prefect; wrong ones are refused."""

    def start(*_: object, **__: object) -> None:
        raise AssertionError("a server of Prefect's was started")

    monkeypatch.setattr("prefect.server.api.server.SubprocessASGIServer.start", start)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)

    @flow
    def double(number: int) -> int:
        assert FlowRunContext.get() is None
        return 2 * number

    assert run_flow(double, "none", number="21") == 42
    with pytest.raises(ParameterTypeError, match="number"):
        run_flow(double, "none", number="many")
