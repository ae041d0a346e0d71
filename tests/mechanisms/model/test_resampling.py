"""F1 on resamples: it is the metric's, and its errors cover what they should."""

import numpy as np
import pytest

from mechanisms.model import metrics
from mechanisms.model.resampling import resampled_f1

CODES = 12
SHARES = np.geomspace(1, 0.02, CODES) / np.geomspace(1, 0.02, CODES).sum()


def records(random: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, and two classifiers that err on mostly the same records; the second is right a little
    more often.
    """
    labels, other = random.choice(CODES, n, p=SHARES), random.choice(CODES, n, p=SHARES)
    hard = random.random(n)
    return (
        labels,
        np.where(hard < 0.70, labels, other),
        np.where(hard + 0.06 * random.normal(size=n) < 0.74, labels, other),
    )


def test_it_is_the_metric_of_resampled_records() -> None:
    """The same draws, record by record, through `metrics`."""
    labels, predicted, _ = records(np.random.default_rng(4), 60)
    one = resampled_f1(labels, predicted, resamples=20)
    draws = np.random.default_rng(0).integers(60, size=(20, 60))
    for at, rows in enumerate(draws):
        direct = metrics.classification(labels[rows], predicted[rows])
        assert (one["weighted_f1"][at], one["macro_f1"][at]) == pytest.approx(
            (direct.weighted_f1, direct.macro_f1)
        )


def test_the_paired_error_covers_the_true_difference_and_no_smaller_one_does() -> None:
    """Of 150 test sets of 400 records, gap ± 1.96 errors covers the difference in the population in
    95 %. At least 132 cover (fewer by chance: 0.1 %, were it 94 %); half of the error covers 68 %
    and is refused; errors of two unpaired classifiers are over twice as wide and cover nearly
    always.
    """
    random = np.random.default_rng(5)
    big = records(random, 300_000)
    true = (
        metrics.classification(big[0], big[2]).weighted_f1
        - metrics.classification(big[0], big[1]).weighted_f1
    )
    covered, half_covered, wider = 0, 0, []
    for _ in range(150):
        labels, first, second = records(random, 400)
        one, two = (
            resampled_f1(labels, each, resamples=200)["weighted_f1"] for each in (first, second)
        )
        error = np.std(two - one, ddof=1)
        gap = (
            metrics.classification(labels, second).weighted_f1
            - metrics.classification(labels, first).weighted_f1
        )
        covered += abs(gap - true) <= 1.96 * error
        half_covered += abs(gap - true) <= 0.98 * error
        wider.append(np.hypot(np.std(one), np.std(two)) / error)
    assert covered >= 132
    assert half_covered < 125
    assert np.mean(wider) > 2
