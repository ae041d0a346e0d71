"""Calibrates scores: a temperature, and scores above which answers are right as
often as is asked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mechanisms.errors import MechanismError
from mechanisms.model.config import SCHEMA, TARGETS
from mechanisms.model.scorer import softmax
from mechanisms.thresholds_file import Reached, Threshold, Thresholds

if TYPE_CHECKING:
    from torch import Tensor

CONFIDENCE = 0.95
"""That the accuracy above a threshold reaches its target, on records like those it was fitted on.
"""

_GRID = 100
_FEWEST = 50
_SHARE = 4
FEWEST_RECORDS = 2 * _FEWEST
_LOG_TEMPERATURE = (math.log(0.05), math.log(20.0))


def thresholds_for(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    fitted_on: str,
    targets: Sequence[float] = TARGETS,
) -> Thresholds:
    """Temperature and thresholds, as the content of `thresholds.json`.

    The temperature T minimises -sum log softmax(logits / T)[label] (Guo et al. 2017, section 4.2).
    It is fitted on a quarter of the records (every fourth) and the thresholds on the others, since
    a threshold found on the records that shaped its scores would promise too much. One number needs
    few records; a threshold needs all that it can have.

    A threshold is the lowest score above which the accuracy reaches the target with the stated
    confidence. Candidates are tried from the strictest down, each by an exact binomial test, up to
    the first that fails: testing in a fixed sequence keeps the confidence over all of them
    (Angelopoulos et al. 2021, "Learn then test", section 2.3). Several sequences that share the
    failure probability, or one that begins at more records, found fewer thresholds.

    Args:
        logits: float [n, codes], in any order of records that owes nothing to the answers.
        labels: int64 [n], index of the right code; -1 where the model has no such code, which no
            answer gets right.
        fitted_on: what the records are; shown with each threshold.

    Returns:
        `{schema, temperature, thresholds, reached, fitted_on, records, confidence}`. Each threshold
        holds `target_accuracy`, `threshold` (a score in [0, 1]; null where no score reaches the
        target), `coverage` (share of records at or above it) and `accuracy` among those; null
        without a threshold. `reached` is the best that was seen above any score that fifty records
        or more have, without any confidence: its `accuracy`, `threshold` and `coverage`, and
        `accuracy_of_all`.
    """
    logits, labels = np.asarray(logits, np.float64), np.asarray(labels)
    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        raise MechanismError(
            f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)} do not belong together",
            kind="shapes-differ",
        )
    if not np.isfinite(logits).all():
        raise MechanismError(
            "calibration: a score is not a number. Check that the model is whole",
            kind="score-not-a-number",
        )
    if len(labels) < FEWEST_RECORDS:
        raise MechanismError(
            f"calibration needs at least {FEWEST_RECORDS} records, but there are {len(labels)}",
            kind="too-few-calibration-records",
        )
    if not all(0 < target < 1 for target in targets):
        raise MechanismError("a target accuracy must be between 0 and 1", kind="target-accuracy")
    shapes = fits_temperature(len(labels))
    temperature = fit_temperature(logits[shapes], labels[shapes])
    scores = softmax(logits[~shapes] / temperature)
    ranked = _Ranked.of(scores.max(1), scores.argmax(1) == labels[~shapes])
    return {
        "schema": SCHEMA,
        "temperature": round(temperature, 4),
        "thresholds": [ranked.threshold(target) for target in sorted(set(targets))],
        "reached": ranked.reached(),
        "fitted_on": fitted_on,
        "records": len(labels),
        "confidence": CONFIDENCE,
    }


def fits_temperature(records: int) -> NDArray[np.bool_]:
    """Returns which of the records fit the temperature, bool [records]: every fourth."""
    return np.arange(records) % _SHARE == 0


def fit_temperature(logits: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Finds the T in [0.05, 20] under which the right codes are most likely, of records with labels
    other than -1.
    """
    coded = labels >= 0
    if not coded.any():
        raise MechanismError(
            "calibration: none of the records has a code that the model knows",
            kind="no-known-codes",
        )
    logits, labels = logits[coded], labels[coded]
    right = np.take_along_axis(logits, labels[:, None], 1).mean()
    low, high = _LOG_TEMPERATURE
    while high - low > 1e-6:
        middle = (low + high) / 2
        # the loss is convex in 1/T; its slope there is the mean of the scores that are expected,
        # less the right ones'
        expected = (softmax(logits / math.exp(middle)) * logits).sum(1).mean()
        low, high = (middle, high) if expected > right else (low, middle)
    return math.exp((low + high) / 2)


@dataclass(frozen=True)
class _Ranked:
    score: NDArray[np.float64]
    hits: NDArray[np.int64]
    """How many of the first k + 1 answers are right."""

    @staticmethod
    def of(score: NDArray[np.float64], right: NDArray[np.bool_]) -> _Ranked:
        score = (
            np.floor(score * 1e6) / 1e6
        )  # as answers are written, so that a score read back is on the same side
        order = np.argsort(-score, kind="stable")
        return _Ranked(score[order], np.cumsum(right[order], dtype=np.int64))

    def candidates(self, first: int) -> list[int]:
        """Numbers of records to be kept, from `first` on: of records that have the same score all
        or none.
        """
        if first > len(self.score):
            return []
        sizes = np.unique(np.linspace(first, len(self.score), _GRID).astype(int))
        return sorted(
            {
                int(np.searchsorted(-self.score, -self.score[count - 1], side="right"))
                for count in sizes
            }
        )

    def threshold(self, target: float) -> Threshold:
        """The lowest score that passes; one passes wrongly with probability 1 - `CONFIDENCE`."""
        from scipy.special import bdtrc  # scipy.stats takes half a second of every release

        failure = 1 - CONFIDENCE
        # Below this many records not even a faultless run would pass, and the sequence would end
        # before it began.
        first = max(_FEWEST, math.ceil(math.log(failure) / math.log(target)))
        passed = 0
        for count in self.candidates(first):
            # How likely so many right answers are, were the accuracy only just below the target.
            if bdtrc(self.hits[count - 1] - 1, count, target) > failure:
                break
            passed = count
        return {
            "target_accuracy": target,
            "threshold": self._score_of(passed) if passed else None,
            "coverage": self._share_of(passed) if passed else None,
            "accuracy": self._accuracy_of(passed) if passed else None,
        }

    def reached(self) -> Reached:
        best = max(
            self.candidates(_FEWEST), key=lambda count: (self.hits[count - 1] / count, count)
        )
        return {
            "threshold": self._score_of(best),
            "coverage": self._share_of(best),
            "accuracy": self._accuracy_of(best),
            "accuracy_of_all": self._accuracy_of(len(self.hits)),
        }

    def _score_of(self, count: int) -> float:
        return round(float(self.score[count - 1]), 6)

    def _share_of(self, count: int) -> float:
        return round(count / len(self.score), 4)

    def _accuracy_of(self, count: int) -> float:
        return round(float(self.hits[count - 1] / count), 4)


def autocoded_shares(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Returns shares that could be coded without a person, by name: `coverage_at_80`, that of
    records which the threshold for 80 % right lets through (0 without one), and so on;
    `best_accuracy` and `best_coverage`, the best.

    Args:
        logits: float [n, codes], or logarithms of probabilities.
        labels: int64 [n], index of the right code.

    Returns:
        Nothing where there are too few records to say, or scores that are no numbers.
    """
    import torch

    if len(labels) < FEWEST_RECORDS or bool(logits.isnan().any()):
        return {}
    # an order that owes nothing to the answers: records of a test half may stand by code
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    thresholds = thresholds_for(
        logits[order].clamp(-1e4, 1e4).cpu(), labels.cpu()[order], fitted_on="the test half"
    )
    alone = {
        f"coverage_at_{round(100 * threshold['target_accuracy'])}": threshold["coverage"] or 0.0
        for threshold in thresholds["thresholds"]
    }
    return alone | {
        "best_accuracy": thresholds["reached"]["accuracy"],
        "best_coverage": thresholds["reached"]["coverage"],
    }
