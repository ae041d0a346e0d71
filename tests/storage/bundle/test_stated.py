"""What a partner reads of a bundle's accuracy, and whether its own records agree."""

from typing import Any

import pytest

from storage.bundle.folder import ACCURACY
from storage.bundle.stated import (
    NO_GROUPS,
    NOT_STATED,
    accuracy_lines,
    clear_scores,
    difference,
    errs_in_rare_groups,
    stated_accuracy,
)


def figure(estimate: float, width: float = 0.04) -> dict[str, float]:
    return {"estimate": estimate, "low": estimate - width / 2, "high": estimate + width / 2}


def told(**changed: Any) -> Any:
    groups = [
        {"names": [name], "share": 0.3, "right": figure(right), "among_3_best": figure(0.9)}
        for name, right in (("1 Burns", 0.9), ("2 Sprains", 0.55), ("3 Others", 0.4))
    ]
    return {
        "schema": 1,
        "stated": True,
        "test_half": {"dated_from": "2016-05-01", "unit": "record"},
        "records": 3678,
        "right": figure(0.67),
        "among_3_best": figure(0.84),
        "groups": groups,
    } | changed


def test_the_groups_that_it_is_worst_at_are_named() -> None:
    first, worst, second = accuracy_lines(told())
    assert "67.0% (65.0 to 69.0) right" in first
    assert "3,678" in first
    assert "dated from 2016-05-01 on" in first
    assert "3 Others" in worst
    assert "2 Sprains" in second
    assert len(accuracy_lines(told(groups=told()["groups"][:1]))) == 1
    together = [told()["groups"][0] | {"names": list("abcd")}]
    for hidden in (together, []):
        assert accuracy_lines(told(groups=hidden))[1:] == [NO_GROUPS]
    several = [group | {"names": list("abcd")} for group in told()["groups"]]
    assert "all other groups together" in accuracy_lines(told(groups=several))[1]


@pytest.mark.parametrize("contents", [{}, {ACCURACY: {"stated": False}}])
def test_a_bundle_without_a_table_states_nothing(contents: dict[str, Any]) -> None:
    assert accuracy_lines(stated_accuracy(contents)) == [NOT_STATED]
    assert difference(stated_accuracy(contents), 0.5, 300) == ""


@pytest.mark.parametrize(
    ("right", "records", "said"),
    [
        (0.65, 300, "agrees"),
        (0.55, 300, "less than"),
        (0.8, 300, "the best code is right for 80.0% of your 300 records, significantly more than"),
        (0.55, 30, "agrees"),
    ],
)
def test_own_records_are_held_against_it(right: float, records: int, said: str) -> None:
    """By a test at 95 %, with the uncertainty of both figures."""
    assert said in difference(told(), right, records)
    part = difference(told(), right, records, set_aside=148)
    assert f"of {records} of your {records + 148} records" in part
    assert "The other 148 set the temperature of the scores" in part


@pytest.mark.parametrize(
    ("rare", "width", "errs"), [(0.4, 0.1, True), (0.7, 0.1, False), (0.4, 0.8, False)]
)
def test_rare_groups_err_only_where_the_intervals_show_it(
    rare: float, width: float, errs: bool
) -> None:
    groups = [
        {"names": ["burns"], "share": 0.1, "right": figure(rare, width)},
        {"names": ["cuts"], "share": 0.9, "right": figure(0.7, 0.04)},
    ]
    assert errs_in_rare_groups(told(groups=groups)) == errs
    assert not errs_in_rare_groups(told(groups=[]))
    assert not errs_in_rare_groups(told(groups=groups[:1]))


def test_scores_that_few_records_have_are_left_out() -> None:
    """And the steps end where the next one begins."""
    shares, widths = (0.5, 0.2, 0.005, 0.2), (0.04, 0.04, 0.04, 0.6)
    steps = [
        {"score": score, "share": share, "right": figure(0.7, width)}
        for score, share, width in zip((0.9, 0.8, 0.7, 0.6), shares, widths, strict=True)
    ]
    clear = clear_scores(told(scores=steps))
    assert [(one["score"], one["up_to"]) for one in clear] == [(0.9, 1.0), (0.8, 0.9)]
