"""Without a flow run of Prefect's, steps and tasks are plain calls: no server is started, no artifact is sent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from storage.artifacts import ArtifactRef
from storage.paths import Workspace
from tasks.running.flow_run import call_task, in_flow_run, publish_markdown, publish_table
from tasks.running.progress import Listener, listening
from tasks.running.stage import Context, Step, Work, submit, submit_all


def _body(work: Work) -> Mapping[str, Any]:
    work.progress(1, 2)
    (work.out / "answer").write_text("42")
    return {"answer": 42}


def _step(number: int) -> Step:
    return Step(name="stage", label=f"stage {number}", config={"number": number}, inputs={}, body=_body)


class Labels(Listener):
    """Holds the labels of stages that ended, and of those that reported progress."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, bool]] = []
        self.reported: set[str] = set()

    def report(self, label: str, done: int, total: int | None) -> None:
        """Takes one label."""
        self.reported.add(label)

    def finished(self, label: str, figures: Mapping[str, Any], *, reused: bool, seconds: float) -> None:
        """Takes one label."""
        self.ended.append((label, reused))


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    """A workspace, and a server that must not start."""

    def start(*_: object, **__: object) -> None:
        raise AssertionError("a server of Prefect's was started")

    monkeypatch.setattr("prefect.server.api.server.SubprocessASGIServer.start", start)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_SERVER_ALLOW_EPHEMERAL_MODE", "true")
    Workspace(tmp_path).create()
    return Context(home=str(tmp_path))


def test_steps_are_stages_without_a_server(context: Context) -> None:
    """Computed, then reused; listeners hear of both, in threads too."""
    labels = Labels()
    with listening(labels):
        first = submit(context, _step(1))
        assert isinstance(first, ArtifactRef)
        assert submit(context, _step(1)) == first
        submit_all(context, [_step(2), _step(3)], slots=2)
    assert labels.ended[:2] == [("stage 1", False), ("stage 1", True)]
    assert sorted(labels.ended[2:]) == [("stage 2", False), ("stage 3", False)]
    assert labels.reported == {"stage 1", "stage 2", "stage 3"}


def test_a_failure_of_one_thread_is_raised(context: Context) -> None:
    """As from a task run: its own error, with the other stage finished."""

    def fails(work: Work) -> Mapping[str, Any]:
        raise ZeroDivisionError

    bad = Step(name="stage", label="bad", config={"number": 9}, inputs={}, body=fails, modules=(__name__,))
    with pytest.raises(RuntimeError, match="bad: ZeroDivisionError"):
        submit_all(context, [_step(1), bad], slots=2)
    assert submit(context, _step(1)) is not None


def test_a_task_is_its_function_and_artifacts_are_left_out(context: Context) -> None:
    """In this process, at once."""

    assert not in_flow_run()
    assert call_task("pid", os.getpid) == os.getpid()
    publish_markdown(key="text", markdown="text", description="a text")
    publish_table(key="table", table=[{"a": 1}], description="a table")
