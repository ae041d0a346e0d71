"""Noisy tables of invented held-out records, whose population's figures are known."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mechanisms.privacy import stated_accuracy
from mechanisms.privacy.accuracy_table import LIMITS, SCORES, Layout, events_of
from mechanisms.privacy.gaussian_cost import rate_of_epsilon

DELTA = 1e-5
BINS = len(SCORES)
GROUP_SHARES = np.array([0.6, 0.3, 0.1])
GROUP_ACCURACY = np.array([1.0, 0.85, 0.6])
"""Relative to the accuracy that a score has."""
GROUPS = len(GROUP_SHARES)
SHAPES = ("calibrated", "overconfident", "hard", "easy")


@dataclass(frozen=True)
class Population:
    """Shares of the answers."""

    right: np.ndarray
    """By score bin and group."""
    wrong: np.ndarray
    likely: np.ndarray
    """By bin of the right code's probability."""

    @staticmethod
    def of(shape: str) -> "Population":
        edges = np.array(SCORES)
        above = np.r_[1, edges[:-1]]
        middle, width = (edges + above) / 2, above - edges
        weights, accuracy = {
            "calibrated": (np.exp(4 * middle), middle),
            "overconfident": (np.exp(3 * middle), 0.9 * middle**2),
            "hard": (np.exp(-2 * middle), 0.8 * middle),
            "easy": (np.exp(9 * middle), 0.98 + 0 * middle),
        }[shape]
        shares = weights * width / (weights * width).sum()
        every = shares[:, None] * GROUP_SHARES
        right = every * accuracy[:, None] * GROUP_ACCURACY
        # a right answer's code has the score; a wrong one's anything below, evenly by logarithm
        place = np.searchsorted(-np.array(LIMITS), -middle, side="left")
        likely = np.bincount(place, right.sum(1), minlength=len(LIMITS))
        likely[1:] += (every - right).sum() / (len(LIMITS) - 1)
        return Population(right, every - right, likely)

    @property
    def accuracy(self) -> float:
        return float(self.right.sum())

    @property
    def of_groups(self) -> np.ndarray:
        return self.right.sum(0) / (self.right + self.wrong).sum(0)

    @property
    def above_edges(self) -> np.ndarray:
        """Accuracy of the answers from each edge on."""
        right = np.cumsum(self.right.sum(1))
        return right / (right + np.cumsum(self.wrong.sum(1)))


@dataclass(frozen=True)
class Simulated:
    """What is read from noisy tables of one population."""

    counts: np.ndarray
    """[trials, counts]."""
    std: float
    population: Population

    @property
    def covariance(self) -> np.ndarray:
        return self.std**2 * stated_accuracy.solution_of(GROUPS).covariance

    def sums(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values of queries [q, counts] in every table, [q, trials], and their covariance."""
        return rows @ self.counts.T, rows @ self.covariance @ rows.T

    def up_to(self, edge: int) -> np.ndarray:
        """Queries of right and wrong answers of the scores down to an edge."""
        rows = np.zeros((2, self.counts.shape[1]))
        rows[0, : edge + 1] = rows[1, BINS : BINS + edge + 1] = 1
        return rows

    def of_group(self, number: int) -> np.ndarray:
        """Queries of a group's right and wrong answers."""
        rows = np.zeros((2, self.counts.shape[1]))
        first = 2 * BINS + number
        rows[0, first] = rows[1, [first + GROUPS, first + 2 * GROUPS]] = 1
        return rows

    def likely(self, edge: int) -> np.ndarray:
        """Queries of the records whose right code has the probability of an edge or more, and of
        the others.
        """
        first = 2 * BINS + 3 * GROUPS
        rows = np.zeros((2, self.counts.shape[1]))
        rows[0, first : first + edge + 1] = rows[1, first + edge + 1 :] = 1
        return rows


def simulated(epsilon: float, size: int, shape: str, *, trials: int, seed: int = 0) -> Simulated:
    """Draws held-out records of a population, and the noise of their tables."""
    rng = np.random.default_rng([int(100 * epsilon), size, seed])
    population, layout = Population.of(shape), Layout(GROUPS)
    cells = np.concatenate([population.right.ravel(), population.wrong.ravel()])
    drawn = rng.multinomial(size, cells / cells.sum(), size=trials)
    drawn = drawn.reshape(trials, 2, BINS, GROUPS)
    counts = np.zeros((trials, layout.matrix.shape[1]), np.int64)
    first = 2 * BINS
    counts[:, :first] = drawn.sum(3).reshape(trials, first)
    counts[:, first : first + GROUPS] = drawn[:, 0].sum(1)
    counts[:, first + 2 * GROUPS : first + 3 * GROUPS] = drawn[:, 1].sum(1)
    counts[:, first + 3 * GROUPS :] = rng.multinomial(size, population.likely, size=trials)
    std = events_of(rate_of_epsilon(epsilon, DELTA))[1].std
    rows = counts @ layout.matrix.T
    noisy = rows + np.round(std * rng.standard_normal(rows.shape))
    return Simulated(stated_accuracy.counts_of(noisy, GROUPS), std, population)


@dataclass(frozen=True)
class Holds:
    """How often what tables state holds: shares of the tables of one population."""

    accuracy: float
    """Within its interval."""
    told: int
    """Groups that are told, in all tables."""
    outside: int
    """Of these, whose accuracy is outside its interval."""
    thresholds: tuple[float, ...]
    """Below their accuracy, by target."""
    sets: tuple[float, ...]
    """Below their coverage, by target."""
    have_threshold: float
    """Of the lowest target."""
    have_sets: float

    @staticmethod
    def of(tables: Simulated, targets: Sequence[float], coverages: Sequence[float]) -> "Holds":
        population, bins = tables.population, range(BINS)
        edges = _passing(tables, [tables.up_to(edge) for edge in bins], targets)
        above = population.above_edges
        limits = range(len(LIMITS))[::-1]
        found = _passing(tables, [tables.likely(edge) for edge in limits], coverages)
        covered = np.cumsum(population.likely)[::-1]
        told, outside = _groups(tables)
        within = _inside(tables, tables.up_to(BINS - 1), population.accuracy)
        return Holds(
            float(within.mean()),
            told,
            outside,
            tuple(_below(one, above, target) for one, target in zip(edges, targets, strict=True)),
            tuple(_below(one, covered, part) for one, part in zip(found, coverages, strict=True)),
            float((edges[0] >= 0).mean()),
            float((found[0] > 0).mean()),
        )


def _inside(tables: Simulated, queries: np.ndarray, truth: float) -> np.ndarray:
    """Whether the interval of each table holds the truth."""
    (right, wrong), covariance = tables.sums(queries)
    low, high = stated_accuracy.interval(right, wrong, covariance)
    return (low <= truth) & (truth <= high)


def _groups(tables: Simulated) -> tuple[int, int]:
    """How many groups are told in all tables, by the rules of a statement, and how many of these
    are wrong.
    """
    told, outside = 0, 0
    for number in range(GROUPS):
        queries = tables.of_group(number)
        within = _inside(tables, queries, tables.population.of_groups[number])
        (right, wrong), covariance = tables.sums(queries)
        clear = stated_accuracy.large_enough(
            right, wrong, covariance, widest=stated_accuracy.WIDEST_OF_GROUP
        )
        told, outside = told + int(clear.sum()), outside + int((clear & ~within).sum())
    return told, outside


def _passing(
    tables: Simulated, queries: Sequence[np.ndarray], targets: Sequence[float]
) -> list[np.ndarray]:
    sums = [tables.sums(each) for each in queries]
    inside, outside = (np.stack([value[n] for value, _ in sums], 1) for n in (0, 1))
    covariances = np.stack([covariance for _, covariance in sums])
    return [stated_accuracy.passing(inside, outside, covariances, target) for target in targets]


def _below(found: np.ndarray, reached: np.ndarray, target: float) -> float:
    return float(((found >= 0) & (reached[found.clip(0)] < target)).mean())
