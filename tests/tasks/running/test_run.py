"""A plain run calls steps; what surrounds a run hears of each, and is an argument, never a module
that was imported.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from storage.artifacts import ArtifactRef
from storage.paths import Workspace
from tasks.running.progress import Listener, listening
from tasks.running.run import Run
from tasks.running.stage import Context, Step, Work, submit


def _body(work: Work) -> Mapping[str, Any]:
    work.progress(1, 2)
    (work.out / "answer").write_text("42")
    return {"answer": 42}


def _step(number: int) -> Step:
    return Step(
        name="stage", label=f"stage {number}", config={"number": number}, inputs={}, body=_body
    )


class Labels(Listener):
    """Holds the labels of stages that ended, and of those that reported progress."""

    def __init__(self) -> None:
        self.ended: list[tuple[str, bool]] = []
        self.reported: set[str] = set()

    def report(self, label: str, done: int, total: int | None) -> None:
        self.reported.add(label)

    def finished(
        self, label: str, figures: Mapping[str, Any], *, reused: bool, seconds: float
    ) -> None:
        self.ended.append((label, reused))


@pytest.fixture
def context(tmp_path: Path) -> Context:
    Workspace(tmp_path).create()
    return Context(home=str(tmp_path))


def test_steps_are_stages(context: Context) -> None:
    """Computed, then reused; listeners hear of both."""
    labels = Labels()
    with listening(labels):
        first = submit(context, _step(1))
        assert isinstance(first, ArtifactRef)
        assert submit(context, _step(1)) == first
    assert labels.ended == [("stage 1", False), ("stage 1", True)]
    assert labels.reported == {"stage 1"}


def test_each_step_is_a_unit_of_the_run_that_is_given(context: Context) -> None:
    """By its names; Prefect, which the tests have imported, is not asked."""
    units: list[tuple[str, str]] = []

    class Noted(Run):
        def call(self, name: str, label: str, function: Any, *args: Any, **kwargs: Any) -> Any:
            units.append((name, label))
            return function(*args, **kwargs)

    noted = context.model_copy(update={"run": Noted()})
    first = submit(noted, _step(1))
    assert units == [("stage", "stage 1")]
    assert submit(context, _step(1)) == first, "the same stage in either run"
    assert len(units) == 1
