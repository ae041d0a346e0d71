"""The noise of SAD-DPSGD against beta, gamma and n: what the paper's figures 3 to 5 show."""

import doctest
from itertools import pairwise
from pathlib import Path

import pytest

from mechanisms.privacy import gaussian_cost
from mechanisms.privacy.events import DpSgdEvent
from studies import __main__ as commands
from studies import results, schedules


def test_every_schedule_costs_the_target() -> None:
    """By the accountant, from the phases as they are: epsilon 3 at delta 1e-3."""
    phases = schedules.segments(schedules.sad("n", 3), epsilon=3.0, epochs=30, sampling_prob=1.0)
    event = DpSgdEvent(sampling_prob=1.0, segments=phases)
    spent = gaussian_cost.epsilon_of_event(event, delta=schedules.DELTA)
    assert spent == pytest.approx(3.0, abs=0.01)


def test_the_papers_tendencies_hold(tmp_path: Path) -> None:
    """With beta up, mean and variance fall and the first noise rises; with gamma down, all fall and
    the first phase shortens; with n up, mean and variance rise and the first noise falls.
    """
    given = ["schedules", "--sampling-prob", "1", "--out", str(tmp_path)]
    assert commands.main(given) == 0
    rows = results.load(tmp_path / "schedules.csv")

    def steps(name: str, figure: str) -> list[bool]:
        own = [row[figure] for row in rows if row["setting"] == name]
        assert len(own) == 5
        return [after > before for before, after in pairwise(own)]

    for name, figure, rises in (
        ("beta", "mean", False),
        ("beta", "variance", False),
        ("beta", "first", True),
        ("gamma", "mean", True),
        ("gamma", "variance", True),
        ("gamma", "first", True),
        ("gamma", "first_share", True),
        ("n", "mean", True),
        ("n", "variance", True),
        ("n", "first", False),
    ):
        assert steps(name, figure) == [rises] * 4, (name, figure)
    for name in schedules.SWEEPS:
        assert (tmp_path / f"schedules-{name}.svg").stat().st_size > 10_000
    assert {row["commit"] for row in rows} == {results.commit()}


def test_the_example_of_the_figures_is_right() -> None:
    assert not doctest.testmod(schedules).failed
