"""The fields of `thresholds.json`: what a score has to be for an accuracy, and limits of sets."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class Threshold(TypedDict):
    """The lowest score that reaches an accuracy; without one, the other fields are null."""

    target_accuracy: float
    threshold: float | None
    coverage: float | None
    """Share of records at or above the threshold."""
    accuracy: float | None
    """Share of these that are right."""
    low: NotRequired[float]
    high: NotRequired[float]


class Reached(TypedDict):
    """The best accuracy that was seen above a score, without any confidence."""

    accuracy: float
    threshold: float
    coverage: float
    accuracy_of_all: float


class SetLimit(TypedDict):
    """Limits of the sets with one coverage."""

    coverage: float
    limit: float
    records: int
    codes: dict[str, float]
    """Limits of codes that have one of their own."""
    confidence: NotRequired[float]


class SetLimits(TypedDict):
    records: int
    coverages: list[SetLimit]


class Thresholds(TypedDict):
    """The whole file."""

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
