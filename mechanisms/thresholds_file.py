"""The fields of `thresholds.json`: thresholds of the score for target accuracies, and limits of
sets.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict


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
    fitted_on: str
    records: int
    confidence: float
    sets: NotRequired[SetLimits]
    release: NotRequired[str]
    bundle_digest: NotRequired[str]
