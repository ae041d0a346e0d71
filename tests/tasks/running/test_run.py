"""A plain run calls steps; what surrounds a run hears of each, and is an argument, never a module that was imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from storage.artifacts import ArtifactRef
from storage.paths import Workspace
from tasks.running.progress import Listener, listening
from tasks.running.run import Run
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
def context(tmp_path: Path) -> Context:
    """A workspace."""
    Workspace(tmp_path).create()
    return Context(home=str(tmp_path))


def test_steps_are_stages(context: Context) -> None:
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


def test_each_step_is_a_unit_of_the_run_that_is_given(context: Context) -> None:
    """By its names, in threads too; Prefect, which the tests have imported, is not asked."""
    units: list[tuple[str, str]] = []

    class Noted(Run):
        def call(self, name: str, label: str, function: Any, *args: Any, **kwargs: Any) -> Any:
            units.append((name, label))
            return function(*args, **kwargs)

    noted = context.model_copy(update={"run": Noted()})
    first = submit(noted, _step(1))
    submit_all(noted, [_step(2), _step(3)], slots=2)
    assert sorted(units) == [("stage", "stage 1"), ("stage", "stage 2"), ("stage", "stage 3")]
    assert submit(context, _step(1)) == first, "the same stage in either run"
    assert len(units) == 3
