"""Calibrates scores: a temperature, and thresholds above which answers are right with the requested
accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mechanisms.errors import MechanismError
from mechanisms.model.config import SCHEMA, TARGETS
from mechanisms.model.metrics import records_at_once
from mechanisms.model.scorer import softmax
from mechanisms.thresholds_file import FittedOn, Reached, Threshold, Thresholds

if TYPE_CHECKING:
    from torch import Tensor

    from mechanisms.model.inputs import FeatureInputs

CONFIDENCE = 0.95
"""Confidence that the accuracy above a threshold meets its target, on records like those it was
fitted on.
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
    fitted_on: FittedOn,
    targets: Sequence[float] = TARGETS,
) -> Thresholds:
    """Fits temperature and thresholds; returns the content of `thresholds.json`.

    The temperature T minimises -sum log softmax(logits / T)[label] (Guo et al. 2017, section 4.2).
    It is fitted on every fourth record and the thresholds on the others, because a threshold from
    the records that determined its scores would be too optimistic. A single number needs few
    records; thresholds need as many as possible.

    A threshold is the lowest score above which the accuracy meets the target with the confidence
    `CONFIDENCE`. Candidates are tested from the strictest to the most lenient, each with an exact
    binomial test, up to the first failure. Testing in a fixed sequence keeps the confidence over
    all candidates (Angelopoulos et al. 2021, "Learn then test", section 2.3). Several sequences
    that share the failure probability, or a sequence that starts at more records, found fewer
    thresholds.

    Args:
        logits: float [n, codes], in any record order that does not depend on the answers.
        labels: int64 [n], index of the right code; -1 if the model lacks the code, which counts as
            a wrong answer.
        fitted_on: description of the records, shown with each threshold.
        targets: accuracies for which a threshold is searched.

    Returns:
        `{schema, temperature, thresholds, reached, fitted_on, records, confidence}`. Each threshold
        has `target_accuracy`, `threshold` (a score in [0, 1]; null if no score meets the target),
        `coverage` (share of records at or above it) and `accuracy` among those (null without a
        threshold). `reached` is the best accuracy observed above any score that at least fifty
        records have, without a confidence statement: its `accuracy`, `threshold` and `coverage`,
        and `accuracy_of_all`.

    Raises:
        MechanismError: inconsistent shapes, scores that are not finite, too few records, or a
            target that is not a probability.
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
    return _thresholds(
        _Scores.of(logits), labels, np.arange(len(labels)), fitted_on=fitted_on, targets=targets
    )


@dataclass(frozen=True)
class _Scores:
    """Scores of records, which are read in blocks."""

    read: Callable[[NDArray[np.int64]], NDArray[np.float64]]
    """Returns the scores [b, codes] of the records at these indices [b]."""
    codes: int

    @staticmethod
    def of(logits: NDArray[np.float64]) -> _Scores:
        return _Scores(logits.__getitem__, logits.shape[1])


def _of_each(
    scores: _Scores,
    index: NDArray[np.int64],
    number: Callable[[NDArray[np.float64], NDArray[np.int64]], NDArray[Any]],
) -> NDArray[Any]:
    """Computes a number, or a row of numbers, of each of these records, in the order of `index`.
    The scores are read in blocks, in the order in which they lie.

    Args:
        number: returns the numbers of a block, from its scores and its indices.
    """
    ascending, size = np.argsort(index, kind="stable"), records_at_once(scores.codes)
    parts = []
    for start in range(0, len(index), size):
        block = index[ascending[start : start + size]]
        parts.append(number(scores.read(block), block))
    joined = np.concatenate(parts)
    found = np.empty_like(joined)
    found[ascending] = joined
    return found


def _thresholds(
    scores: _Scores,
    labels: NDArray[np.int64],
    order: NDArray[np.int64],
    *,
    fitted_on: FittedOn,
    targets: Sequence[float],
) -> Thresholds:
    shapes = fits_temperature(len(order))
    temperature = _temperature(scores, labels, order[shapes])
    measured = order[~shapes]

    def answer(block: NDArray[np.float64], index: NDArray[np.int64]) -> NDArray[np.float64]:
        probabilities = softmax(block / temperature)
        right = probabilities.argmax(1) == labels[index]
        return np.column_stack([probabilities.max(1), right])

    best, right = _of_each(scores, measured, answer).T
    ranked = _Ranked.of(best, right > 0)
    return {
        "schema": SCHEMA,
        "temperature": round(temperature, 4),
        "thresholds": [ranked.threshold(target) for target in sorted(set(targets))],
        "reached": ranked.reached(),
        "fitted_on": fitted_on,
        "records": len(order),
        "confidence": CONFIDENCE,
    }


def fits_temperature(records: int) -> NDArray[np.bool_]:
    """Selects the records that fit the temperature, bool [records]: every fourth."""
    return np.arange(records) % _SHARE == 0


def fit_temperature(logits: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """Finds the T in [0.05, 20] that maximises the likelihood of the right codes, ignoring records
    with label -1.
    """
    return _temperature(_Scores.of(logits), labels, np.arange(len(labels)))


def _temperature(scores: _Scores, labels: NDArray[np.int64], index: NDArray[np.int64]) -> float:
    coded = index[labels[index] >= 0]
    if not len(coded):
        raise MechanismError(
            "calibration: none of the records has a code that the model knows",
            kind="no-known-codes",
        )

    def of_label(block: NDArray[np.float64], index: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.take_along_axis(block, labels[index, None], 1)[:, 0]

    right = _of_each(scores, coded, of_label).mean()
    low, high = _LOG_TEMPERATURE
    while high - low > 1e-6:
        middle = (low + high) / 2
        scale = math.exp(middle)
        # The loss is convex in 1/T. Its slope is the expected score minus the score of the right
        # code, on average over records.
        expected = _of_each(
            scores, coded, lambda block, _, scale=scale: (softmax(block / scale) * block).sum(1)
        ).mean()
        low, high = (middle, high) if expected > right else (low, middle)
    return math.exp((low + high) / 2)


@dataclass(frozen=True)
class _Ranked:
    score: NDArray[np.float64]
    hits: NDArray[np.int64]
    """Number of right answers among the first k + 1."""

    @staticmethod
    def of(score: NDArray[np.float64], right: NDArray[np.bool_]) -> _Ranked:
        score = (
            np.floor(score * 1e6) / 1e6
        )  # rounded as in written answers, so that a score that is read back is on the same side
        order = np.argsort(-score, kind="stable")
        return _Ranked(score[order], np.cumsum(right[order], dtype=np.int64))

    def candidates(self, first: int) -> list[int]:
        """Candidate numbers of records above the threshold, from `first` on. Records with equal
        scores are kept together.
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
        """The lowest score that passes all tests. The result is wrong with probability at most 1 -
        `CONFIDENCE`.
        """
        from scipy.special import bdtrc  # scipy.stats takes half a second of every release

        failure = 1 - CONFIDENCE
        # With fewer records even an errorless run would fail, and the sequence would end
        # immediately.
        first = max(_FEWEST, math.ceil(math.log(failure) / math.log(target)))
        passed = 0
        for count in self.candidates(first):
            # Probability of this many right answers if the accuracy were just below the target.
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


def autocoded_shares(scores: FeatureInputs, labels: Tensor) -> dict[str, float]:
    """Shares of records that could be coded automatically. `coverage_at_80` is the share above the
    threshold for 80 % accuracy (0 without a threshold), and so on. `best_accuracy` and
    `best_coverage` are those of the best threshold.

    Args:
        scores: logits or log probabilities, float [n, codes], possibly mapped from a file. They are
            read in blocks.
        labels: int64 [n], index of the right code.

    Returns:
        Empty if there are too few records, or if a score is NaN.
    """
    import torch

    if len(labels) < FEWEST_RECORDS:
        return {}
    codes = scores.features.shape[1]
    if any(bool(block.isnan().any()) for block in scores.blocks(records_at_once(codes))):
        return {}

    def read(index: NDArray[np.int64]) -> NDArray[np.float64]:
        block = scores.batch(torch.from_numpy(index), torch.device("cpu"))["features"]
        return block.clamp(-1e4, 1e4).double().numpy()

    # shuffled, because the records held out may be sorted by code
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    thresholds = _thresholds(
        _Scores(read, codes),
        labels.cpu().numpy(),
        order.numpy(),
        fitted_on="coded-records",
        targets=TARGETS,
    )
    coverages = {
        f"coverage_at_{round(100 * threshold['target_accuracy'])}": threshold["coverage"] or 0.0
        for threshold in thresholds["thresholds"]
    }
    return coverages | {
        "best_accuracy": thresholds["reached"]["accuracy"],
        "best_coverage": thresholds["reached"]["coverage"],
    }
