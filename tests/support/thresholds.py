"""Thresholds files as tests need them."""

from collections.abc import Sequence

from mechanisms.model.config import SCHEMA
from mechanisms.thresholds_file import Threshold, Thresholds


def thresholds_file(
    found: Sequence[tuple[float, float | None]] = (), *, temperature: float = 1.0
) -> Thresholds:
    """A file with these accuracies and the scores that reach them."""
    entries: list[Threshold] = [
        {"target_accuracy": target, "threshold": score, "coverage": None, "accuracy": None}
        for target, score in found
    ]
    return {
        "schema": SCHEMA,
        "temperature": temperature,
        "thresholds": entries,
        "fitted_on": "coded-records",
        "records": 100,
        "confidence": 0.95,
    }
