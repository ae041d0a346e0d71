"""What reached a release without protection: told by how the records were sampled, labelled and dated."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.bundle.sentences import COUPLED
from tasks.releasing.claims import BOUNDS, COHORTS, LABELS, WEIGHTS, unprotected_inputs

FACTS: dict[str, Any] = {
    "label_space_source": "codelist",
    "cohorts": ["2015", "2016"],
    "cohorts_source": "declared",
    "sampling": "per-record",
}


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"sampling": "stratified"}, COUPLED),
        ({"label_space_source": "observed"}, LABELS),
        ({"cohorts_source": "records"}, COHORTS),
        ({"bounds_source": "records"}, BOUNDS),
    ],
)
def test_each_is_listed_where_it_holds(changed: dict[str, Any], line: str) -> None:
    """And only there."""
    assert line not in unprotected_inputs(FACTS, weights=False)
    assert line in unprotected_inputs(FACTS | changed, weights=False)


def test_weights_are_listed_where_there_are_any() -> None:
    """A formal branch has none."""
    assert WEIGHTS in unprotected_inputs(FACTS)
    assert WEIGHTS not in unprotected_inputs(FACTS, weights=False)


def test_records_ingested_before_there_was_a_choice() -> None:
    """They were sampled by code and took their cohorts from dates, unless all are of one."""
    before = {"label_space_source": "codelist", "cohorts": ["2015"]}
    assert {COUPLED, COHORTS} <= set(unprotected_inputs(before))
    assert COHORTS not in unprotected_inputs(before | {"cohorts": ["all"]})
