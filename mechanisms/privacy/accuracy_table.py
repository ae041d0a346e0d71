"""Accuracy of a model, released as two noisy vectors of held-out records.

Both are linear in the records, with integer coefficients, and get rounded Gaussian noise
(`exact_normal`), so that the claim covers the released bits.

| vector        | rows                                                 | used for                  |
|---------------|------------------------------------------------------|---------------------------|
| `temperature` | confidence at `TEMPERATURES`, answers that are right | the temperature           |
| `accuracy`    | score bins x (best code right, wrong)                | accuracy, thresholds      |
|               | groups x (right, right in the three best, wrong)     | accuracy by group, of 3   |
|               | bins of the right code's probability                 | limits of conformal sets  |
|               | right, in the three best, wrong                      | accuracy                  |

The second vector uses scores at the temperature computed from the first.

**Cumulative counts.** The number of records above a threshold is a sum over bins, and the errors of
the bins would add up. So instead of the counts c of B bins, A c is released, with A the square root
of the matrix L of prefix sums: A[i, j] = binom(2k, k) / 4^k with k = i - j >= 0 (Fichtenberger,
Henzinger and Upadhyay 2023, "Constant matters", theorem 1; Henzinger, Upadhyay and Upadhyay 2023).
L = A A, so every cumulative count has an error of at most 1 + ln(B) / pi + o(1) times that of a
single count, compared with sqrt(B) for sums of noisy bins and about log2(B) for a binary tree: for
24 bins 2.1, 4.9 and 4.6. This grows so slowly that few records do not require fewer bins. The
entries are rounded to 2^-`_BITS`, and the rounded matrix is the one that is inverted.

**Sensitivity.** A record adds one column of each block. The column of A with the largest norm is
the first. The confidences of a record at falling temperatures rise from 0 to at most 1. Their
increments are masses that sum to at most 1, spread over the columns of A, and by convexity no
spread has a larger norm than all mass in one column. The parts of a vector are in different rows,
so the squares of their norms add up.

**Privacy: parallel composition.** Let a record's own data (a keyed hash of its id or content, or
its date) determine whether it is among the training records S or the held-out records T,
independently of all other records. Let the model M(S) be (e1, d1)-differentially private, and let
the table N(T, M(S)) be (e2, d2)-differentially private in T for every fixed model. Then the pair is
(max e, max d)-differentially private for one record added or removed:

* A record of S: T is unchanged, so the pair is post-processing of M(S).
* A record of T: M(S) has the same distribution, and for each set E of pairs with sections E_m,

    P(E) = E_m[P(N(T, m) in E_m)] <= E_m[e^e2 P(N(T', m) in E_m) + d2] = e^e2 P'(E) + d2.

The table is evaluated at the released model, which is the adaptive case that the second line
covers. (McSherry 2009, theorem 4, for pure epsilon; Smith et al. 2022, "Making the most of parallel
composition in differential privacy", for (epsilon, delta) and for mu-Gaussian privacy.) The two
vectors of the table are adaptive Gaussian mechanisms on the same records, so their mu^2 add up
(Dong, Roth and Su 2022, corollary 3.3).

**Replacing one record** may move it from one set to the other. Then one set loses a record and
the other gains one, at a cost of sqrt(mu1^2 + mu2^2) if both are Gaussian. That is at most 2
max(mu1, mu2), the cost of a replacement within a set, so the figure for replacement still holds.

**Units of m records.** If all records of a unit are in one set, the argument holds with m times
the sensitivity. If they can be in either set, with j of them in S, the cost is sqrt((j mu1)^2 +
((m - j) mu2)^2), which is convex in j and so at most m max(mu1, mu2). The maximum therefore holds
for Gaussian training without a split by unit. For sampled records no such result is known.

**Training that samples its records** has no table, although the maximum holds for a single release.
An account adds releases by the loss distribution of their steps, and that distribution would have
to dominate the table's in both directions. If a record is added, the loss of K steps at rate q is
at most -K ln(1 - q), while a Gaussian's loss is unbounded, so no Gaussian table is dominated, at
any noise. The account could only add up the claims, which costs several times as much, so the table
would not be free.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.privacy.events import GaussianReleaseEvent

if TYPE_CHECKING:
    from mechanisms.privacy.noise import SecretStream

Counts = NDArray[np.int64]
Reals = NDArray[np.float64]

TEMPERATURES = tuple(float(t) for t in np.geomspace(8.0, 0.125, 25))
"""In falling order, so that a record's confidence rises along them. They include 1."""
SCORES = (
    *(0.99, 0.98, 0.97, 0.95, 0.925, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6),
    *(0.55, 0.5, 0.45, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05, 0.0),
)
"""Lowest score of each bin, strictest first; fixed in advance."""
LIMITS = (
    *(0.5, 0.3, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02, 0.015, 0.01),
    *(0.007, 0.005, 0.003, 0.002, 0.001, 5e-4, 2e-4, 1e-4, 0.0),
)
"""Lowest probability of the right code in each bin of the conformal sets."""
BEST = 3
"""Number of top answers among which a human coder looks for the right code."""

_BITS = 10
_UNIT = 1 << 8
"""Integer that represents a confidence of 1."""
_TEMPERATURE_SHARE = 0.15
"""Fraction of mu^2 that is spent on the temperature."""
_RIGHT, _GROUPS, _LIMITS, _TOTALS = 0.5, 0.6, 0.5, 0.4
"""Weights of the other parts, relative to the norm of the first part of their vector."""
_AT_ONCE = 1 << 22
"""Number of scores that are processed at once."""

TEMPERATURE, ACCURACY = "temperature of the held-out records", "accuracy of the held-out records"


@lru_cache
def cumulative(bins: int) -> Counts:
    """The square root of the matrix of prefix sums, int64 [bins, bins], in units of 2^-`_BITS`."""
    coefficients, rows = [1.0], np.arange(bins)
    for k in range(1, bins):
        coefficients.append(coefficients[-1] * (2 * k - 1) / (2 * k))
    column = np.round(np.array(coefficients) * 2.0**_BITS).astype(np.int64)
    distance = rows[:, None] - rows[None, :]
    return np.where(distance >= 0, column[distance.clip(0)], 0)


def _squared(matrix: Counts) -> int:
    return max(sum(int(entry) ** 2 for entry in column) for column in matrix.T)


def _norm(squared: int) -> float:
    """The square root of an integer, rounded up."""
    root = math.sqrt(squared)
    while Fraction(root) ** 2 < squared:
        root = math.nextafter(root, math.inf)
    return root


def _weight(share: float, squared: int) -> int:
    return round(share * math.sqrt(squared))


@dataclass(frozen=True)
class Layout:
    """The rows of both vectors for a number of groups, and the norms of one record's
    contribution.
    """

    groups: int

    @cached_property
    def right_weight(self) -> int:
        return _weight(_RIGHT, _UNIT**2 * _squared(cumulative(len(TEMPERATURES))))

    @cached_property
    def temperature_norm(self) -> float:
        squared = _UNIT**2 * _squared(cumulative(len(TEMPERATURES)))
        return _norm(squared + self.right_weight**2)

    @cached_property
    def weights(self) -> tuple[int, int]:
        """Weights of a group's count and of a total."""
        squared = _squared(cumulative(len(SCORES)))
        return _weight(_GROUPS, squared), _weight(_TOTALS, squared)

    @cached_property
    def limits(self) -> Counts:
        """The cumulative rows of the conformal sets, scaled by their weight."""
        matrix = cumulative(len(LIMITS))
        factor = _LIMITS * math.sqrt(_squared(cumulative(len(SCORES))) / _squared(matrix))
        return np.round(matrix * factor).astype(np.int64)

    @cached_property
    def accuracy_norm(self) -> float:
        group, total = self.weights
        squared = _squared(cumulative(len(SCORES))) + _squared(self.limits)
        return _norm(squared + group**2 + total**2)

    @cached_property
    def matrix(self) -> Counts:
        """The matrix S, int64 [rows, counts], of the second vector: noise is added to S x.

        The counts x are: right by score bin, wrong by score bin; right, right in the three best,
        and wrong by group; and the number by bin of the right code's probability.
        """
        bins, groups = len(SCORES), self.groups
        group, total = self.weights
        totals = np.zeros((3, 2 * bins + 3 * groups + len(LIMITS)), np.int64)
        for outcome in range(3):
            first = 2 * bins + outcome * groups
            totals[outcome, first : first + groups] = total
        blocks = [cumulative(bins), cumulative(bins), group * np.eye(3 * groups, dtype=np.int64)]
        blocks.append(self.limits)
        block_matrix = np.zeros((sum(map(len, blocks)), totals.shape[1]), np.int64)
        row = column = 0
        for block in blocks:
            block_matrix[row : row + len(block), column : column + block.shape[1]] = block
            row, column = row + block.shape[0], column + block.shape[1]
        return np.vstack([block_matrix, totals])


def events_of(mu: float) -> tuple[GaussianReleaseEvent, GaussianReleaseEvent]:
    """The events of both vectors, which together are mu-Gaussian differentially private.

    Args:
        mu: above 0.
    """
    layout = Layout(1)  # the norms do not depend on the number of groups
    shares = (_TEMPERATURE_SHARE, 1 - _TEMPERATURE_SHARE)
    norms = (layout.temperature_norm, layout.accuracy_norm)
    temperature, accuracy = (
        GaussianReleaseEvent(
            what=what,
            noise_multiplier=1 / (mu * math.sqrt(share)) * (1 + 1e-12),
            l2_sensitivity=norm,
            exact=True,
        )
        for what, share, norm in zip((TEMPERATURE, ACCURACY), shares, norms, strict=True)
    )
    return temperature, accuracy


def counts_scale_and_accuracy(evaluation: Sequence[GaussianReleaseEvent]) -> bool:
    """Whether exactly the two vectors of a table were released from the held-out records."""
    return [part.what for part in evaluation] == [TEMPERATURE, ACCURACY]


@dataclass(frozen=True)
class AccuracyTable:
    """The noisy vectors, which may be published.

    Attributes:
        temperature: int64 [len(TEMPERATURES) + 1].
        accuracy: int64 [rows of `Layout.matrix`].
        groups: number of groups of codes.
    """

    temperature: Counts
    accuracy: Counts
    groups: int

    @property
    def layout(self) -> Layout:
        return Layout(self.groups)

    @property
    def is_whole(self) -> bool:
        """Whether the vectors have the number of rows that the layout requires."""
        sizes = len(TEMPERATURES) + 1, len(self.layout.matrix)
        return self.temperature.shape == sizes[:1] and self.accuracy.shape == sizes[1:]

    @staticmethod
    def example(records: int, groups: int) -> AccuracyTable:
        """A table of synthetic records, half of them right, without noise."""
        layout, bins, limits = Layout(groups), len(SCORES), len(LIMITS)
        right = np.full(bins, records / 2 / bins)
        among = np.zeros(groups)
        of_group = np.full(groups, records / 2 / groups)
        likely = np.full(limits, records / limits)
        counts = np.concatenate([right, right, of_group, among, of_group, likely])
        rows = np.round(layout.matrix @ counts).astype(np.int64)
        return AccuracyTable(np.zeros(len(TEMPERATURES) + 1, np.int64), rows, groups)


def draw(
    logits: Any,
    labels: Any,
    group_of: Sequence[int],
    *,
    groups: int,
    events: Sequence[GaussianReleaseEvent],
    stream: SecretStream,
) -> AccuracyTable:
    """Draws the table of the held-out records once.

    Args:
        logits: float [n, codes] of the released model.
        labels: int64 [n], index of the right code.
        group_of: index of each code's group, from 0.
        groups: number of groups.
        events: the result of `events_of`. Both norms must be those of this layout.
        stream: stream of a new key, which is deleted afterwards.

    Raises:
        ValueError: the events belong to another table.
    """
    layout, size = Layout(groups), np.asarray(logits).shape
    norms = [layout.temperature_norm, layout.accuracy_norm]
    # guard: test_an_event_of_a_smaller_sensitivity_draws_nothing
    if [event.l2_sensitivity for event in events] != norms or not all(e.exact for e in events):
        raise ValueError("these events are not those of this table")
    label, group = np.asarray(labels, np.int64), np.asarray(group_of, np.int64)
    sums = np.zeros(len(TEMPERATURES) + 1, np.int64)
    for scores, right in _pieces(logits, label, size):
        sums += _temperature_vector(scores, right)
    noisy = _noisy(sums, events[0], stream)
    found = temperature_of(noisy, events[0])
    counts = np.zeros(layout.matrix.shape[1], np.int64)
    for scores, right in _pieces(logits, label, size):
        counts += _counts(scores / found, right, group, layout)
    return AccuracyTable(noisy, _noisy(layout.matrix @ counts, events[1], stream), layout.groups)


def _pieces(logits: Any, label: Counts, size: tuple[int, ...]) -> Iterator[tuple[Reals, Counts]]:
    rows = max(1, _AT_ONCE // size[1])
    for start in range(0, size[0], rows):
        piece = np.asarray(logits[start : start + rows], np.float64)
        yield np.nan_to_num(piece, nan=0.0, posinf=1e4, neginf=-1e4), label[start : start + rows]


def _noisy(sums: Counts, event: GaussianReleaseEvent, stream: SecretStream) -> Counts:
    import torch

    std = Fraction(event.noise_multiplier) * Fraction(event.l2_sensitivity)
    exact = torch.from_numpy(sums.astype(np.float64))
    return (
        stream.add_rounded_normal_(exact, std=std, purpose=event.what, step=0)
        .numpy()
        .astype(np.int64)
    )


def _softmax(logits: Reals) -> Reals:
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def _temperature_vector(logits: Reals, label: Counts) -> Counts:
    lead = logits - logits.max(1, keepdims=True)
    confidence = np.stack(
        [1 / np.exp(lead / temperature).sum(1) for temperature in TEMPERATURES], 1
    )
    # rounding must neither break the order nor exceed 1: the sensitivity depends on both
    level = np.maximum.accumulate((confidence.clip(0, 1) * _UNIT).astype(np.int64), axis=1)
    masses = np.diff(level, prepend=0).sum(0)
    right = int((logits.argmax(1) == label).sum())
    return np.append(cumulative(len(TEMPERATURES)) @ masses, Layout(1).right_weight * right)


def _counts(logits: Reals, label: Counts, group: Counts, layout: Layout) -> Counts:
    scores, rows = _softmax(logits), np.arange(len(label))
    best = scores.max(1)
    right = scores.argmax(1) == label
    of_right_code = scores[rows, label]
    rank = (scores > of_right_code[:, None]).sum(1)
    among = ~right & (rank < BEST)
    outcome = np.where(right, 0, np.where(among, 1, 2))
    bins, groups = len(SCORES), layout.groups
    places = (
        np.where(right, 0, bins) + _bin(best, SCORES),
        2 * bins + outcome * groups + group[label],
        2 * bins + 3 * groups + _bin(of_right_code, LIMITS),
    )
    total = layout.matrix.shape[1]
    return sum((np.bincount(place, minlength=total) for place in places), np.zeros(total, np.int64))


def _bin(values: Reals, edges: Sequence[float]) -> Counts:
    """The first bin with a lowest value that does not exceed the value."""
    return np.searchsorted(-np.array(edges), -np.asarray(values), side="left")


def temperature_of(noisy: Counts, event: GaussianReleaseEvent) -> float:
    """The temperature at which the mean best score equals the accuracy (expectation consistency,
    Clarté et al. 2023, arXiv 2303.02644). This is post-processing.

    The result is 1 if the noise could explain the difference at 1, which is at most twice its
    standard deviation.
    """
    inverse = np.linalg.inv(cumulative(len(TEMPERATURES)).astype(np.float64))
    prefix = np.tril(np.ones_like(inverse)) @ inverse / _UNIT
    weight = Layout(1).right_weight
    confidence, right = prefix @ noisy[:-1], noisy[-1] / weight
    at_one = TEMPERATURES.index(1.0)
    std = event.std * math.hypot(float(np.linalg.norm(prefix[at_one])), 1 / weight)
    if abs(confidence[at_one] - right) <= 2 * std:
        return 1.0
    risen = np.maximum.accumulate(confidence)
    log = np.interp(right, risen, np.log(TEMPERATURES))
    return round(float(math.exp(log)), 3)
