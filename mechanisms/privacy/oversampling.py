"""Accounts for a private learner when its minority class was oversampled first: as printed, and corrected.

Rosenblatt et al., "Differential Privacy Under Class Imbalance" (2024), proposition 2 (copies) and theorem 3 (SMOTE).
One record reaches the learner as a group of rows, and the group's privacy is what is claimed. `printed_smote` has the
paper's formula, for comparison alone; `copies` and `smote` have what can be proved:

- **Copies.** An (epsilon, delta) learner is (m epsilon, delta (e^{m epsilon} - 1)/(e^epsilon - 1)) for a group of m
  rows (Dwork and Roth 2014, theorem 2.2 and its proof); the printed delta m is too small. m is a public number of
  copies: taken as ceil(N/n_1), it would itself change with a record.
- **SMOTE**, R synthetic rows a base record, R public, each base's randomness its own (the paper's `t mod n` shifts
  every later base by one). A record that joins the minority brings 1 row, is the base of R, and enters the lists of
  at most l others, each of whose R rows may be *replaced*: one row less and one more. Under add/remove,

      m = 1 + R + 2 l R.

  The paper leaves out the base's own rows and the second half of each replacement, and its statement drops k, which l
  holds.
- **SMOTE with a delta.** A replaced list has one entry that is new, so that a row of it changes with probability 1/k,
  independently: at most Y ~ Binomial(l R, 1/k) replacements. With y the smallest number for which P(Y > y) <= tail, the
  whole is (epsilon m_y, tail + ...) for m_y = 1 + R + 2 y: outside that event, the probability of any output is bounded
  by 1, which costs the tail once. (The paper multiplies its tail by e^{epsilon l R}, so that its delta exceeds 1 at
  gamma 0; its epsilon' has a 1/k too many.)
- **Neighbours.** l <= k K(d): of the records that have x among their k nearest, take the farthest, and those within 60
  degrees of it, of which there are fewer than k nearer to it than x; repeat; those taken are pairwise 60 degrees apart.
  That needs distinct points: records equal to x are as near to each other as to x, and may all list it, so ties among
  equal records have to be broken by a cyclic order, which adds at most k. K(d) is the kissing number, of which upper
  bounds are known; 2^{0.4042 d} of the paper is asymptotic and below it. l <= n_1 too, where a public bound on n_1 is
  at hand.

All of it is for neighbours that add or remove one record.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy import special, stats

from mechanisms.errors import MechanismError

KISSING_UPPER_BOUNDS = (
    *(2, 6, 12, 24, 44, 78, 134, 240, 364, 554, 870, 1357, 2069, 3183, 4866, 7355, 11_072, 16_572, 24_812, 36_764),
    *(54_584, 82_340, 124_416, 196_560),
)
"""Of dimensions 1 to 24. Mittelmann and Vallentin 2010, table 1 (semidefinite programming; exact in dimensions 1 to
4, 8 and 24: Schütte and van der Waerden 1953, Musin 2008, Odlyzko and Sloane 1979, Levenshtein 1979). Later papers
lower a few by a little; an upper bound stays one."""


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta) for neighbours that add or remove one record; `rows` of the learner's input depend on it."""

    rows: float
    epsilon: float
    delta: float


def kissing_upper_bound(dimension: int) -> float:
    """A number of unit spheres that cannot be exceeded around one in this dimension.

    By table to 24. Beyond it, by area: caps of 30 degrees around the touching points do not overlap, and one has the
    share I_{1/4}((d - 1)/2, 1/2) / 2 of the sphere.
    """
    if dimension < 1:
        raise MechanismError(f"dimension is {dimension}; it must be at least 1")
    if dimension <= len(KISSING_UPPER_BOUNDS):
        return KISSING_UPPER_BOUNDS[dimension - 1]
    share = special.betainc((dimension - 1) / 2, 0.5, 0.25) / 2
    return math.floor(1 / share) if share else math.inf


def most_neighbours_of(dimension: int, k: int, *, minority_at_most: int | None = None, distinct: bool = True) -> float:
    """l: how many records may have one record among their k nearest.

    Args:
        minority_at_most: a public bound on the number of minority records; the number itself is private.
        distinct: no two records are equal. Otherwise ties among equal ones are broken by a cyclic order.
    """
    if k < 1:
        raise MechanismError(f"k is {k}; it must be at least 1")
    geometric = k * kissing_upper_bound(dimension) + (0 if distinct else k)
    return geometric if minority_at_most is None else min(geometric, minority_at_most)


def group(epsilon: float, delta: float, rows: float) -> Guarantee:
    """Returns what an (epsilon, delta) learner promises a group of so many rows (Dwork and Roth 2014, theorem 2.2)."""
    if delta == 0:
        return Guarantee(rows, rows * epsilon, 0.0)
    log_factor = rows * epsilon + math.log(-math.expm1(-rows * epsilon)) - math.log(math.expm1(epsilon))
    together = math.inf if math.log(delta) + log_factor > 0 else delta * math.exp(log_factor)
    return Guarantee(rows, rows * epsilon, min(1.0, together))


def copies(epsilon: float, delta: float, *, number: int) -> Guarantee:
    """Every minority record `number` times more, itself aside: a public number."""
    _check(number)
    return group(epsilon, delta, number + 1)


def smote(epsilon: float, delta: float, *, neighbours: float, rounds: int) -> Guarantee:
    """SMOTE with R `rounds` rows a base, whatever its randomness: at most l `neighbours` lists change."""
    _check(rounds)
    return group(epsilon, delta, 1 + rounds + 2 * neighbours * rounds)


def smote_with_tail(epsilon: float, delta: float, *, neighbours: int, rounds: int, k: int, tail: float) -> Guarantee:
    """The same, but for an event of probability `tail`, in which more rows change than are paid for."""
    _check(rounds)
    replaced = float(stats.binom.isf(tail, neighbours * rounds, 1 / k))
    paid = group(epsilon, delta, 1 + rounds + 2 * replaced)
    return Guarantee(paid.rows, paid.epsilon, min(1.0, paid.delta + tail))


def printed_smote(epsilon: float, *, dimension: int, rounds: int) -> Guarantee:
    """States theorem 3's pure bound as printed: without k, and with 2^(0.4042 d), which is below the kissing number."""
    rows = 2 ** (0.4042 * dimension) * rounds + 1
    return Guarantee(rows, epsilon * rows, 0.0)


def _check(number: int) -> None:
    if number < 0:
        raise MechanismError(f"{number} rows a record; it must be at least 0")
