"""The fields of `thresholds.json`: thresholds of the score for target accuracies, and limits of
sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NotRequired, TypedDict

FittedOn = Literal["released-table", "generated", "coded-records"]
"""The records that thresholds were fitted on: the agency's held-out records, from the noisy table
that was released; generated narratives (of the demo); or records that people coded.
"""
FITTED_ON: Mapping[FittedOn, str] = {
    "released-table": "the agency's held-out records, counted with noise (the release's ε, charged "
    "once, covers these counts)",
    "generated": "generated narratives of injuries, which are not real agency records",
    "coded-records": "your own coded records",
}
"""The same in words, which follow `on`."""
_EARLIER: Mapping[str, FittedOn] = {
    "the agency's test records, counted with noise (the release's ε, charged once, covers these "
    "counts)": "released-table",
    "800 generated narratives of injuries, not real agency records": "generated",
    "800 generated narratives of injuries; no agency's records": "generated",
    "own coded records": "coded-records",
}
"""What files of version 0.3 have in the field, which was a sentence."""


def fitted_on(value: str) -> FittedOn:
    """Returns the type that a file has, also one of version 0.3.

    Raises:
        KeyError: no version wrote this value.
    """
    return next((known for known in FITTED_ON if known == value), None) or _EARLIER[value]


class Threshold(TypedDict):
    """The lowest score at which an accuracy is met. If there is none, the other fields are null."""

    target_accuracy: float
    threshold: float | None
    coverage: float | None
    """Share of records at or above the threshold."""
    accuracy: float | None
    """Share of these that are right."""
    low: NotRequired[float]
    high: NotRequired[float]


class Reached(TypedDict):
    """The best observed accuracy above any score, without a confidence statement."""

    accuracy: float
    threshold: float
    coverage: float
    accuracy_of_all: float


class SetLimit(TypedDict):
    """Limits of the sets for one coverage."""

    coverage: float
    limit: float
    records: int
    codes: dict[str, float]
    """Limits of the codes that have their own."""
    confidence: NotRequired[float]


class SetLimits(TypedDict):
    records: int
    coverages: list[SetLimit]


class Thresholds(TypedDict):
    """Content of the whole file."""

    schema: int
    temperature: float
    thresholds: list[Threshold]
    reached: NotRequired[Reached]
    fitted_on: FittedOn
    records: int
    confidence: float
    sets: NotRequired[SetLimits]
    release: NotRequired[str]
    bundle_digest: NotRequired[str]
