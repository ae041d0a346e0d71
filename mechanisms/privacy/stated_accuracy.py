"""Accuracy of a model with intervals that include the noise, computed only from the noisy table.

All of this is post-processing of an `AccuracyTable`. The counts are its least-squares solution
under consistency constraints (Hay et al. 2010; Li et al. 2015, "The matrix mechanism"): the number
of right answers is the same by score and by group, and the number of records is the same by score
and by the right code's probability. The solution is linear in the noisy rows, so the covariance of
every count is known exactly.

**Accuracy.** For an accuracy p of N records, W of them wrong, only W + e is observed, with e the
noise of the wrong answers relative to the right ones, of variance s^2 = a' C a for a = (1 - p, -p).
The ends of its interval are the p at which E[F(W + e; N, 1 - p)], with F the binomial distribution
function and e normal, is 2.5 % and 97.5 %. This is the interval of Clopper and Pearson 1934
averaged over the noise, with half the probability of the observed count, so that its coverage is
close to nominal. N is the noisy number.

**A threshold** for an accuracy is the lowest edge of a bin that passes a test with the full
probability of the observed count, at `CONFIDENCE`. Edges are tested from the strictest to the most
lenient in a fixed sequence up to the first failure (Angelopoulos et al. 2021, "Learn then test",
section 2.3), starting at the first edge at which a model with half of the allowed errors would
pass.

**A limit of sets** for a coverage is the highest edge of the right code's probability that passes
the same test for the records above it, starting from the most lenient edge. Sets of the codes above
the limit contain the right code with at least the coverage, with `CONFIDENCE` over records and
noise. Split conformal prediction instead guarantees an average over calibrations, and noise in its
counts breaks that guarantee without a similar margin (Angelopoulos et al. 2021, arXiv 2102.06202,
has one for pure epsilon).

Simulations check all three (`tests/mechanisms/privacy/test_stated_accuracy.py`,
`benchmarks/stated.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mechanisms.privacy.accuracy_table import (
    LIMITS,
    SCORES,
    AccuracyTable,
    Layout,
    temperature_of,
)
from mechanisms.privacy.events import GaussianReleaseEvent
from mechanisms.thresholds_file import Reached, SetLimit, Threshold

Reals = NDArray[np.float64]

CONFIDENCE = 0.95
FEWEST = 100
"""Minimum number of records for any accuracy to be reported."""
WIDEST = 0.2
"""Largest width of the accuracy interval for any accuracy to be reported."""
ABOVE_NOISE = 6
"""Minimum size of a group, in standard deviations of its noise."""
WIDEST_OF_GROUP = 0.3
"""Largest width of a group's accuracy interval. Smaller groups are combined."""
_WIDEST_OF_BIN = 0.5
"""Largest width of the accuracy interval of a score range. Smaller ranges have no interval."""
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
_WEIGHTS /= _WEIGHTS.sum()
_STEPS = 26
_BEGIN = 0.5
"""Fraction of the errors allowed by a target. The sequence starts at the first edge at which a
model with this fraction would pass.
"""


class IntervalEntry(TypedDict):
    """An `Interval` in a file."""

    estimate: float
    low: float
    high: float


class StatedBin(TypedDict):
    """A range of scores with its share of answers and their accuracy."""

    score: float
    """The lowest score in the bin."""
    share: float
    """Share of all answers."""
    right: IntervalEntry


@dataclass(frozen=True)
class Interval:
    """A share with its 95 % interval."""

    estimate: float
    low: float
    high: float

    def as_json(self) -> IntervalEntry:
        return {
            "estimate": round(self.estimate, 4),
            "low": round(self.low, 4),
            "high": round(self.high, 4),
        }


@dataclass(frozen=True)
class Solution:
    """The least-squares solution for a layout: counts are `matrix @ rows`, with `covariance` per
    unit of the noise's variance.
    """

    matrix: Reals
    covariance: Reals


@lru_cache(maxsize=8)
def solution_of(groups: int) -> Solution:
    """Solves min |S x - y|^2 under the consistency constraints, for equal noise variances."""
    layout = Layout(groups)
    rows = layout.matrix.astype(np.float64)
    bins, size = len(SCORES), rows.shape[1]
    right = np.zeros(size)
    right[:bins], right[2 * bins : 2 * bins + groups] = 1, -1
    wrong = np.zeros(size)
    wrong[bins : 2 * bins], wrong[2 * bins + groups : 2 * bins + 3 * groups] = 1, -1
    all_counts = np.zeros(size)
    all_counts[: 2 * bins], all_counts[2 * bins + 3 * groups :] = 1, -1
    agreements = np.stack([right, wrong, all_counts])
    normal = rows.T @ rows
    saddle = np.block([[normal, agreements.T], [agreements, np.zeros((3, 3))]])
    covariance = np.linalg.inv(saddle)[:size, :size]
    return Solution(covariance @ rows.T, np.asarray(covariance, np.float64))


def counts_of(noisy: Reals, groups: int) -> Reals:
    """The counts [..., counts] of noisy rows [..., rows]."""
    return noisy @ solution_of(groups).matrix.T


def tail(
    wrong: ArrayLike, records: ArrayLike, accuracy: ArrayLike, std: ArrayLike, *, half: bool
) -> Reals:
    """E[F(wrong + e; records, 1 - accuracy)] with e normal: the probability of at most this many
    wrong answers.

    All arrays must be broadcastable to one shape.

    Args:
        half: count only half of the probability of the observed count itself.
    """
    from scipy.special import betainc

    n = np.maximum(np.asarray(records, np.float64), 1e-9)[..., None]
    k = np.asarray(wrong, np.float64)[..., None] + np.asarray(std)[..., None] * _NODES
    k = np.clip(k - 0.5 * half, -1 + 1e-9, n - 1e-9)
    right = np.broadcast_to(np.asarray(accuracy, np.float64)[..., None], np.broadcast(n, k).shape)
    return betainc(n - k, k + 1, right) @ _WEIGHTS


def interval(right: ArrayLike, wrong: ArrayLike, covariance: Reals) -> tuple[Reals, Reals]:
    """The ends of the 95 % intervals of accuracies, each with the shape of the counts.

    Args:
        right: noisy counts of right answers.
        wrong: noisy counts of wrong answers.
        covariance: of both, float64 [2, 2].
    """
    right, wrong = np.asarray(right, np.float64), np.asarray(wrong, np.float64)

    def solve(level: float) -> Reals:
        low, high = np.zeros(right.shape), np.ones(right.shape)
        for _ in range(_STEPS):
            middle = (low + high) / 2
            above = tail(wrong, right + wrong, middle, _std(middle, covariance), half=True) > level
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        return (low + high) / 2

    outside = (1 - CONFIDENCE) / 2
    few = right + wrong < 1
    return np.where(few, 0.0, solve(outside)), np.where(few, 1.0, solve(1 - outside))


def _std(accuracy: ArrayLike, covariance: Reals) -> Reals:
    """Standard deviation of the noise of accuracy * wrong - (1 - accuracy) * right."""
    p = np.asarray(accuracy, np.float64)
    variance = (
        (1 - p) ** 2 * covariance[..., 0, 0]
        + p**2 * covariance[..., 1, 1]
        - 2 * p * (1 - p) * covariance[..., 0, 1]
    )
    return np.sqrt(np.maximum(variance, 0))


def large_enough(
    right: ArrayLike, wrong: ArrayLike, covariance: Reals, *, widest: float
) -> NDArray[np.bool_]:
    """Whether so many records have a sufficiently narrow interval, whatever their accuracy is.

    The interval is that of the accuracy 1/2, at which it is widest. The answers that are right do
    not decide, because an interval is also narrow where the noise looks like an accuracy of 1, and
    most intervals that are selected for it miss the true accuracy.

    Args:
        right: noisy counts of right answers.
        wrong: noisy counts of wrong answers.
        covariance: of both, float64 [2, 2].
        widest: largest width of the interval.
    """
    records = np.asarray(right, np.float64) + np.asarray(wrong, np.float64)
    low, high = interval(records / 2, records / 2, covariance)
    std = math.sqrt(max(float(covariance.sum()), 0.0))
    return (records >= ABOVE_NOISE * std) & (high - low <= widest)


def passing(right: Reals, wrong: Reals, covariances: Reals, target: float) -> NDArray[np.int64]:
    """The last edge in a fixed sequence that passes, int64 [...]; -1 if none does.

    Args:
        right: noisy cumulative counts of right answers [..., edges], strictest edge first.
        wrong: noisy cumulative counts of wrong answers [..., edges].
        covariances: of both at each edge, [edges, 2, 2].
    """
    records = right + wrong
    std = _std(target, covariances)
    failure = 1 - CONFIDENCE
    possible = tail(_BEGIN * (1 - target) * records, records, target, std, half=False) <= failure
    passes = tail(wrong, records, target, std, half=False) <= failure
    edges = np.arange(right.shape[-1])
    first = np.where(possible.any(-1), possible.argmax(-1), len(edges))[..., None]
    failed = ~passes & (edges >= first)
    end = np.where(failed.any(-1), failed.argmax(-1), len(edges))
    return np.where(end > first[..., 0], end - 1, -1)


@dataclass(frozen=True)
class Counted:
    """The counts of one table, with their covariance."""

    counts: Reals
    covariance: Reals
    groups: int

    @staticmethod
    def of(noisy: Reals, groups: int, variance: float) -> Counted:
        solution = solution_of(groups)
        return Counted(solution.matrix @ noisy, variance * solution.covariance, groups)

    def sums(self, queries: Reals) -> tuple[Reals, Reals]:
        """The values of linear queries [q, counts], and their covariance [q, q]."""
        return queries @ self.counts, queries @ self.covariance @ queries.T

    def query(self, start: int, stop: int) -> Reals:
        row = np.zeros(len(self.counts))
        row[start:stop] = 1
        return row

    def share(self, inside: Reals, outside: Reals) -> Interval:
        """The share of the records counted by `inside` among those counted by either query."""
        (right, wrong), covariance = self.sums(np.stack([inside, outside]))
        low, high = interval(right, wrong, covariance)
        estimate = min(1.0, max(0.0, right / max(right + wrong, 1e-9)))
        return Interval(float(estimate), float(min(low, estimate)), float(max(high, estimate)))


@dataclass(frozen=True)
class GroupAccuracy:
    """Accuracy on the records with a right code in one group, or in several groups that are too
    small to be reported separately.
    """

    groups: tuple[int, ...]
    share: float
    """Share of all records."""
    right: Interval
    among_best: Interval


@dataclass(frozen=True)
class StatedAccuracy:
    """The accuracy that is reported to partners."""

    temperature: float
    records: float
    """Number of held-out records, with noise."""
    right: Interval
    among_best: Interval
    """How often the right code is among the three best."""
    groups: tuple[GroupAccuracy, ...]
    thresholds: tuple[Threshold, ...]
    """As in `thresholds.json`, with `low` and `high` of the accuracy."""
    bins: tuple[StatedBin, ...]
    reached: Reached
    sets: tuple[SetLimit, ...]
    """Limits of sets that contain the right code with the requested coverage, at `CONFIDENCE`, as
    in `thresholds.json`. Limits that the noise hides are omitted.
    """


def state(
    table: AccuracyTable,
    events: Sequence[GaussianReleaseEvent],
    *,
    targets: Sequence[float],
    coverages: Sequence[float],
) -> StatedAccuracy | None:
    """The accuracy computed from a table; None if there are too few held-out records for the
    noise.
    """
    groups, bins, best = table.groups, len(SCORES), 2 * len(SCORES)
    counted = Counted.of(table.accuracy.astype(np.float64), groups, events[1].std ** 2)
    right, wrong = counted.query(0, bins), counted.query(bins, 2 * bins)
    records = float((right + wrong) @ counted.counts)
    if records < FEWEST:
        return None
    overall = counted.share(right, wrong)
    if overall.high - overall.low > WIDEST:
        return None
    outcomes = [
        counted.query(best + outcome * groups, best + (outcome + 1) * groups)
        for outcome in range(3)
    ]
    sets = [_set(counted, coverage, records) for coverage in coverages]
    return StatedAccuracy(
        temperature=temperature_of(table.temperature, events[0]),
        records=records,
        right=overall,
        among_best=counted.share(outcomes[0] + outcomes[1], outcomes[2]),
        groups=tuple(_groups(counted, records)),
        thresholds=tuple(_threshold(counted, target, records) for target in sorted(set(targets))),
        bins=tuple(_bins(counted, records)),
        reached=_best_edge(counted, records),
        sets=tuple(entry for entry in sets if entry["limit"] > 0),
    )


def could_state(records: int, *, groups: int, events: Sequence[GaussianReleaseEvent]) -> bool:
    """Whether a table of this many records, half of them right, would report an accuracy."""
    example = AccuracyTable.example(records, groups)
    return state(example, events, targets=(), coverages=()) is not None


def _groups(counted: Counted, records: float) -> list[GroupAccuracy]:
    """The groups with enough records, largest first, followed by the rest as one group."""
    large = [
        number
        for number in range(counted.groups)
        if _is_large(counted, *_right_and_wrong(counted, number), widest=WIDEST_OF_GROUP)
    ]
    clear = [_group(counted, (number,), records) for number in large]
    rest = tuple(number for number in range(counted.groups) if number not in large)
    clear.sort(key=lambda group: -group.share)
    several = bool(rest) and _above_noise(counted, rest)
    return [*clear, *([_group(counted, rest, records)] if several else [])]


def _members(counted: Counted, members: tuple[int, ...]) -> Reals:
    """Queries for the records of groups: right, right among the best, and wrong, [3, counts]."""
    queries = np.zeros((3, len(counted.counts)))
    for outcome, query in enumerate(queries):
        first = 2 * len(SCORES) + outcome * counted.groups
        query[[first + number for number in members]] = 1
    return queries


def _right_and_wrong(counted: Counted, number: int) -> tuple[Reals, Reals]:
    right, among, wrong = _members(counted, (number,))
    return right, among + wrong


def _is_large(counted: Counted, right: Reals, wrong: Reals, *, widest: float) -> bool:
    (of_right, of_wrong), covariance = counted.sums(np.stack([right, wrong]))
    return bool(large_enough(of_right, of_wrong, covariance, widest=widest))


def _above_noise(counted: Counted, members: tuple[int, ...]) -> bool:
    (number,), ((variance,),) = counted.sums(_members(counted, members).sum(0)[None])
    return bool(number >= ABOVE_NOISE * math.sqrt(max(variance, 0.0)))


def _group(counted: Counted, members: tuple[int, ...], records: float) -> GroupAccuracy:
    right, among, wrong = _members(counted, members)
    return GroupAccuracy(
        groups=members,
        share=_share(float((right + among + wrong) @ counted.counts), records),
        right=counted.share(right, among + wrong),
        among_best=counted.share(right + among, wrong),
    )


def _threshold(counted: Counted, target: float, records: float) -> Threshold:
    bins = len(SCORES)
    queries = [
        np.stack([counted.query(0, edge + 1), counted.query(bins, bins + edge + 1)])
        for edge in range(bins)
    ]
    sums = [counted.sums(query) for query in queries]
    right, wrong = (np.array([value[place] for value, _ in sums]) for place in (0, 1))
    found = int(passing(right, wrong, np.stack([cov for _, cov in sums]), target))
    if found < 0:
        return {"target_accuracy": target, "threshold": None, "coverage": None, "accuracy": None}
    share = counted.share(*queries[found])
    return {
        "target_accuracy": target,
        "threshold": SCORES[found],
        "coverage": _share(right[found] + wrong[found], records),
        "accuracy": round(share.estimate, 4),
        "low": round(share.low, 4),
        "high": round(share.high, 4),
    }


def _share(count: float, records: float) -> float:
    return round(float(min(1.0, max(0.0, count / records))), 4)


def _bins(counted: Counted, records: float) -> list[StatedBin]:
    """Answers by score, in tenths. The interval of too few answers is from 0 to 1."""
    bins = len(SCORES)
    entries: list[StatedBin] = []
    starts = [n for n, edge in enumerate(SCORES) if math.isclose(edge * 10 % 1, 0, abs_tol=1e-9)]
    begin = 0
    for edge in starts:
        right = counted.query(begin, edge + 1)
        wrong = counted.query(bins + begin, bins + edge + 1)
        count = float((right + wrong) @ counted.counts)
        share = counted.share(right, wrong)
        if not _is_large(counted, right, wrong, widest=_WIDEST_OF_BIN):
            share = Interval(share.estimate, 0.0, 1.0)
        entries.append(
            {
                "score": SCORES[edge],
                "share": _share(count, records),
                "right": share.as_json(),
            }
        )
        begin = edge + 1
    return entries


def _set(counted: Counted, coverage: float, records: float) -> SetLimit:
    """The strictest limit that passes, starting from the most lenient."""
    first, size = 2 * len(SCORES) + 3 * counted.groups, len(LIMITS)
    queries = [
        np.stack(
            [
                counted.query(first, first + edge + 1),
                counted.query(first + edge + 1, first + size),
            ]
        )
        for edge in reversed(range(size))
    ]
    sums = [counted.sums(query) for query in queries]
    inside, outside = (np.array([value[place] for value, _ in sums]) for place in (0, 1))
    found = int(passing(inside, outside, np.stack([cov for _, cov in sums]), coverage))
    limit = 0.0 if found < 0 else LIMITS[size - 1 - found]
    return {
        "coverage": coverage,
        "limit": limit,
        "records": round(records),
        "codes": {},
        "confidence": CONFIDENCE,
    }


def _best_edge(counted: Counted, records: float) -> Reached:
    """The edge with the highest accuracy above it, without a confidence statement, among edges with
    enough records.
    """
    bins = len(SCORES)
    right = np.cumsum(counted.counts[:bins])
    all_records = right + np.cumsum(counted.counts[bins : 2 * bins])
    enough = np.flatnonzero(all_records >= min(max(FEWEST / 2, records / 20), all_records[-1]))
    shares = (right / np.maximum(all_records, 1)).clip(0, 1)
    best = int(enough[shares[enough].argmax()])
    return {
        "accuracy": round(float(shares[best]), 4),
        "threshold": SCORES[best],
        "coverage": _share(float(all_records[best]), records),
        "accuracy_of_all": round(float(shares[-1]), 4),
    }
