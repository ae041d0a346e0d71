"""Simulations: what a noisy table states holds as often as it says."""

import numpy as np
import pytest
from stated_tables import DELTA, SHAPES, Holds, Simulated, simulated

from mechanisms.privacy import stated_accuracy
from mechanisms.privacy.accuracy_table import events_of
from mechanisms.privacy.gaussian_cost import rate_of_epsilon

TRIALS = 200
SIZES, EPSILONS = (400, 4000), (0.5, 1.0, 5.0)
TARGETS, COVERAGES = (0.8, 0.9, 0.95), (0.8, 0.9, 0.95)


@pytest.fixture(scope="module")
def holds() -> dict[tuple[float, int, str], Holds]:
    """By ε, size and shape. `benchmarks/stated.py` has more of each."""
    return {
        (epsilon, size, shape): Holds.of(
            simulated(epsilon, size, shape, trials=TRIALS), TARGETS, COVERAGES
        )
        for epsilon in EPSILONS
        for size in SIZES
        for shape in SHAPES
    }


def test_intervals_hold_the_accuracy_in_95_percent(
    holds: dict[tuple[float, int, str], Holds],
) -> None:
    """Over sizes and shapes 1,600 tables for each ε: 93 to 97 %, and of the groups that are told. A
    right program fails with probability below 0.002 for each figure; intervals without the noise
    cover less at ε 1/2.
    """
    for epsilon in EPSILONS:
        own = [one for key, one in holds.items() if key[0] == epsilon]
        assert 0.93 <= np.mean([one.accuracy for one in own]) <= 0.97
        told = sum(one.told for one in own)
        assert told > 1600
        assert 0.93 <= 1 - sum(one.outside for one in own) / told <= 0.97
    tables = simulated(0.5, 400, "calibrated", trials=TRIALS)
    silent = Simulated(tables.counts, 1e-3 * tables.std, tables.population)
    assert Holds.of(silent, TARGETS, COVERAGES).accuracy < 0.9


@pytest.mark.parametrize("figure", ["thresholds", "sets"])
def test_thresholds_and_sets_reach_their_share_in_95_percent(
    holds: dict[tuple[float, int, str], Holds], figure: str
) -> None:
    """Of the tables of each ε, size and shape at most 5 % and what chance adds (10 %, of 200 with
    probability 0.002 at the very limit) have a threshold below its accuracy, or sets below their
    coverage; and calibrated models have both at all.
    """
    for key, one in holds.items():
        assert max(getattr(one, figure)) <= 0.1, key
    large = holds[5.0, 4000, "calibrated"]
    assert min(large.have_threshold, large.have_sets) > 0.9


def test_limits_without_a_margin_would_not_hold() -> None:
    """The same test without the noise's covariance leaves sets below their coverage in more than a
    tenth of the tables: the simulation can tell.
    """
    tables = simulated(0.5, 400, "calibrated", trials=TRIALS)
    silent = Simulated(tables.counts, 1e-3 * tables.std, tables.population)
    assert max(Holds.of(silent, TARGETS, COVERAGES).sets) > 0.1


def test_without_noise_an_interval_is_that_of_the_binomial() -> None:
    """Mid-p limits of Clopper and Pearson for 45 of 50: 0.79 to 0.96."""
    low, high = stated_accuracy.interval(45.0, 5.0, np.zeros((2, 2)))
    assert (float(low), float(high)) == pytest.approx((0.793, 0.962), abs=0.006)


def test_too_few_records_get_no_figures() -> None:
    """A half of 60 records at any ε, and one of 300 at ε 0.1."""
    from small_heads import KEY

    from mechanisms.privacy.accuracy_table import draw
    from mechanisms.privacy.noise import SecretStream

    rng = np.random.default_rng(2)
    for number, epsilon in ((60, 50.0), (300, 0.1)):
        labels = rng.integers(0, 5, number)
        logits = 2 * np.eye(5)[labels] + rng.standard_normal((number, 5))
        events = events_of(rate_of_epsilon(epsilon, DELTA))
        table = draw(logits, labels, [0] * 5, groups=1, events=events, stream=SecretStream(KEY))
        assert stated_accuracy.state(table, events, targets=TARGETS, coverages=(0.9,)) is None
