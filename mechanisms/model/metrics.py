"""Quality of a classifier: F1 per code and over codes, accuracy, calibration, top-k accuracy, and
coverage.

Definitions follow Chew et al., section 3.3:

  F1_c        = 2 precision_c recall_c / (precision_c + recall_c)
  macro F1    = (1/N) sum_c F1_c
  weighted F1 = sum_c (n_c / n) F1_c,   n_c the true instances of class c

The N classes are those **with true instances in the held-out records**, as in the paper's table 3.
A class that is only ever predicted has no recall. Its wrong predictions already lower the recall of
the true classes. (scikit-learn's default averages over true and predicted classes together and
gives lower values.) A class that is never predicted has F1 0.

Labels and predictions are int64 [n] indices into one label space. Probabilities are float [n,
classes].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mechanisms.errors import MechanismError

CELLS = 1 << 20
"""Limits the memory: number of scores (records times codes) that are processed at once."""
_ZERO: Any = 0
"""Value of 0/0. (The type stubs of scikit-learn accept only words here, not numbers.)"""


@dataclass(frozen=True)
class PerCode:
    """F1 per code (table 3), for the codes with true instances, in the order of `code`.

    Attributes:
        code: int64 [N].
        size: int64 [N], true instances in the held-out records.
        precision: float64 [N].
        recall: float64 [N].
        f1: float64 [N].
    """

    code: np.ndarray
    size: np.ndarray
    precision: np.ndarray
    recall: np.ndarray
    f1: np.ndarray

    @property
    def balanced_accuracy(self) -> float:
        return float(self.recall.mean())


@dataclass(frozen=True)
class Averages:
    weighted_f1: float
    macro_f1: float

    @staticmethod
    def of(codes: PerCode, places: slice | np.ndarray = slice(None)) -> Averages:
        """Averages over the codes at these indices, int64 [<= N]; over all codes by default."""
        f1, size = codes.f1[places], codes.size[places]
        return Averages(weighted_f1=float(np.average(f1, weights=size)), macro_f1=float(f1.mean()))


@dataclass(frozen=True)
class Classification(Averages):
    """The paper's aggregate metrics (table 1), each in [0, 1]."""

    accuracy: float


def classification(labels: np.ndarray, predicted: np.ndarray) -> Classification:
    averages = Averages.of(per_code(labels, predicted))
    return Classification(
        **vars(averages), accuracy=float(np.mean(np.asarray(labels) == np.asarray(predicted)))
    )


def per_code(labels: np.ndarray, predicted: np.ndarray) -> PerCode:
    """Precision, recall and F1 of every code with true instances; 0 if a ratio is 0/0."""
    labels, predicted = np.asarray(labels), np.asarray(predicted)
    if labels.ndim != 1 or labels.shape != predicted.shape:
        raise MechanismError(
            f"labels {labels.shape} and predictions {predicted.shape} must be two vectors alike",
            kind="labels-and-predictions",
        )
    if not len(labels):
        raise MechanismError(
            "there are no held-out records to measure on. Hold some out", kind="no-test-records"
        )
    code = np.unique(labels)
    from sklearn.metrics import precision_recall_fscore_support

    precision, recall, f1, size = precision_recall_fscore_support(
        labels, predicted, labels=code, zero_division=_ZERO
    )
    return PerCode(
        code=code,
        size=np.asarray(size, dtype=np.int64),
        precision=np.asarray(precision),
        recall=np.asarray(recall),
        f1=np.asarray(f1),
    )


def quartiles(codes: PerCode) -> tuple[Averages, Averages]:
    """Averages over the (top, bottom) quartile of codes by class size, as in the paper's table 2.

    Each quartile has a quarter of the codes, rounded up. Ties in size are broken by code, so the
    split is reproducible.
    """
    order = np.lexsort((codes.code, codes.size))
    count = -(-len(order) // 4)
    return Averages.of(codes, order[::-1][:count]), Averages.of(codes, order[:count])


SUPPORT_BINS = ((0, 4), (5, 9), (10, 19), (0, 19), (20, 49), (50, None))
"""Bins of training records per code, both ends inclusive. 0 to 19 combines the three bins before
it.
"""


@dataclass(frozen=True)
class OfSupport:
    """The number of codes in one bin of training records, with their mean F1 and recall. Both are
    None for an empty bin.
    """

    codes: int
    macro_f1: float | None
    macro_recall: float | None


def by_support(codes: PerCode, trained_on: np.ndarray) -> dict[str, OfSupport]:
    """Metrics of the codes with true instances in the held-out records, by bin of training records
    per code (`SUPPORT_BINS`).

    Bins are fixed, so that a figure describes a single code only if its bin contains no other.

    Args:
        trained_on: int64 [classes], number of training records of every code in the label space.
    """
    support = np.asarray(trained_on)[codes.code]
    by_support = {}
    for low, high in SUPPORT_BINS:
        inside = (support >= low) & (support <= (np.inf if high is None else high))
        f1, recall = (
            float(v[inside].mean()) if inside.any() else None for v in (codes.f1, codes.recall)
        )
        by_support[f"{low}_up" if high is None else f"{low}_{high}"] = OfSupport(
            int(inside.sum()), f1, recall
        )
    return by_support


def records_at_once(classes: int) -> int:
    """Number of records in a block whose scores are processed at once."""
    return max(1, CELLS // max(classes, 1))


@dataclass(frozen=True)
class Ranked:
    """How records rank their true codes. Blocks of records are ranked one after another and joined,
    so that the probabilities of all records are never in memory together.

    Attributes:
        confidence: float64 [n], the highest probability of each record.
        correct: float64 [n], 1 if the most probable code is the true one, otherwise 0.
        place: int64 [n], number of codes before the true one. Ties go to the lower index. A record
            with a probability that is NaN has all codes before it.
        classes: number of codes.
    """

    confidence: np.ndarray
    correct: np.ndarray
    place: np.ndarray
    classes: int

    @staticmethod
    def of(labels: np.ndarray, probabilities: np.ndarray) -> Ranked:
        """Ranks the true codes `labels` [n] by `probabilities` [n, classes]."""
        labels, probabilities = np.asarray(labels), np.asarray(probabilities, dtype=np.float64)
        if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1]:
            raise MechanismError(
                f"labels {labels.shape} and probabilities {probabilities.shape} do not belong "
                "together",
                kind="labels-and-probabilities",
            )
        if not len(labels):
            raise MechanismError(
                "there are no held-out records to measure on. Hold some out", kind="no-test-records"
            )
        classes = probabilities.shape[1]
        of_true = np.take_along_axis(probabilities, labels[:, None], 1)
        tied = (probabilities == of_true) & (np.arange(classes) < labels[:, None])
        place = ((probabilities > of_true) | tied).sum(1)
        return Ranked(
            confidence=probabilities.max(axis=1),
            correct=(probabilities.argmax(axis=1) == labels).astype(np.float64),
            place=np.where(np.isnan(probabilities).any(1), classes, place),
            classes=classes,
        )

    @staticmethod
    def joined(parts: Sequence[Ranked]) -> Ranked:
        """Joins the ranks of consecutive records."""
        return Ranked(
            confidence=np.concatenate([part.confidence for part in parts]),
            correct=np.concatenate([part.correct for part in parts]),
            place=np.concatenate([part.place for part in parts]),
            classes=parts[0].classes,
        )


def expected_calibration_error(ranked: Ranked, *, bins: int = 15) -> float:
    """ECE in [0, 1] of the top prediction: sum_b (n_b/n) |accuracy_b - confidence_b| over
    equal-width bins (Guo et al. 2017, equation 3, with their 15 bins).

    A confidence on an edge belongs to the bin below it.
    """
    index = np.clip(np.ceil(ranked.confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    gap = np.bincount(index, weights=ranked.correct - ranked.confidence, minlength=bins)
    return float(np.abs(gap).sum() / len(ranked.correct))


def top_k_accuracy(ranked: Ranked, *, k: int) -> float:
    """Share of records whose code is among the k most probable. Ties go to the lower index."""
    if not 1 <= k <= ranked.classes:
        raise MechanismError(
            f"k is {k}, but it must lie between 1 and the {ranked.classes} classes",
            kind="k-out-of-range",
        )
    return float((ranked.place < k).mean())


def coverage_at(ranked: Ranked, *, threshold: float) -> tuple[float, float | None]:
    """Coverage and accuracy of automatic coding if records below `threshold` go to a human coder.

    Returns:
        Share of records coded automatically (confidence at or above the threshold), and accuracy
        among those; None if there are no such records.
    """
    above = ranked.confidence >= threshold
    return float(above.mean()), float(ranked.correct[above].mean()) if above.any() else None
