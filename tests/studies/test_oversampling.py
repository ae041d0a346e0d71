"""What oversampling costs: counterexamples to the printed formulas, on which the corrected ones
hold.
"""

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.neighbors import NearestNeighbors

from studies import oversampling as cost
from studies.oversampling import neighbours

LOWER_BOUNDS = (
    2,
    6,
    12,
    24,
    40,
    72,
    126,
    240,
    306,
    500,
    582,
    840,
    1154,
    1606,
    2564,
    4320,
    5346,
    7398,
    10_668,
    17_400,
)
"""Kissing configurations that exist, dimensions 1 to 20 (the same survey's table)."""


def gaussian_delta(epsilon: float, *, sensitivity: float) -> float:
    """The exact delta of noise N(0, 1) at this epsilon (Balle and Wang 2018, theorem 8)."""
    a, b = sensitivity / 2 - epsilon / sensitivity, -sensitivity / 2 - epsilon / sensitivity
    return float(stats.norm.cdf(a) - math.exp(epsilon) * stats.norm.cdf(b))


def in_degree(points: np.ndarray, k: int) -> int:
    """How many of the others have the first point among their k nearest."""
    return int((NearestNeighbors(n_neighbors=k).fit(points).kneighbors()[1] == 0).any(1).sum())


@pytest.mark.parametrize("number", [1, 2, 4])
def test_copies_cost_what_a_group_costs(number: int) -> None:
    """The Gaussian mechanism on copied rows breaks the printed delta, exactly, and stays within the
    corrected one.
    """
    epsilon, scale = 0.4, 0.25
    delta = gaussian_delta(epsilon, sensitivity=scale)
    m = number + 1
    true = gaussian_delta(m * epsilon, sensitivity=m * scale)
    corrected = cost.group(epsilon, delta, m)
    assert corrected.epsilon == m * epsilon
    assert delta * m < true, "proposition 2 as printed holds here: no counterexample"
    assert true <= corrected.delta < 1


def test_kissing_numbers_are_bounded_from_above() -> None:
    """Between configurations that exist and the area bound; the paper's 2^(0.4042 d) is below what
    exists in every one.
    """
    for dimension, exists in enumerate(LOWER_BOUNDS, start=1):
        bound = cost.kissing_upper_bound(dimension)
        area = 2 / stats.beta.cdf(0.25, (dimension - 1) / 2, 0.5) if dimension > 1 else 2
        assert exists <= bound <= area + 1e-9
        assert 2 ** (0.4042 * dimension) < exists
    beyond = [cost.kissing_upper_bound(dimension) for dimension in range(24, 60)]
    assert beyond == sorted(beyond)
    assert cost.kissing_upper_bound(24) == 196_560


def test_a_record_is_in_no_more_lists_than_the_bound_says() -> None:
    """Five points around one, and copies of them nearly in place, reject the printed number;
    searches stay within ours.
    """
    rng = np.random.default_rng(0)
    angles = 2 * np.pi * np.arange(5) / 5
    star = np.c_[np.cos(angles), np.sin(angles)]
    for k in (1, 2, 3):
        around = np.concatenate([star + 1e-6 * rng.standard_normal(star.shape) for _ in range(k)])
        found = in_degree(np.concatenate([[[0.0, 0.0]], around]), k)
        assert found == 5 * k > k * 2 ** (0.4042 * 2)
        assert found <= cost.most_neighbours_of(2, k)
    for dimension in (1, 2, 3):
        for k in (1, 3):
            for _ in range(100):
                others = rng.standard_normal((60, dimension)) * rng.uniform(0.1, 2, (60, 1))
                points = np.concatenate([np.zeros((1, dimension)), others])
                assert in_degree(points, k) <= cost.most_neighbours_of(dimension, k)
    assert cost.most_neighbours_of(7, 5, minority_at_most=35) == 35


def aligned(lists: np.ndarray, before: np.ndarray) -> np.ndarray:
    """The same neighbours, in the order of the lists before: what entered is where
    what left stood.
    """
    out = before.copy()
    for row, (new, old) in enumerate(zip(lists, before, strict=True)):
        entered = [i for i in new if i not in old]
        for slot in [s for s, i in enumerate(old) if i not in new]:
            out[row, slot] = entered.pop()
    return out


def test_a_record_changes_no_more_rows_than_are_paid_for() -> None:
    """SMOTE with and without one record, the same randomness: rows that differ, at most m; more
    than the printed number. Rows replaced are Binomial(l R, 1/k): within 5 standard deviations of
    its mean, which with a fresh seed would fail once in a million. Twice that mean would be
    rejected.
    """
    rng = np.random.default_rng(1)
    k, rounds, dimension = 5, 8, 2
    replaced = possible = worst = 0
    for _ in range(40):
        points, ids = rng.standard_normal((40, dimension)), rng.permutation(10_000)[:40]
        before = neighbours(points[1:], k) + 1  # places in `points`
        after = neighbours(points, k)
        lists = np.concatenate([after[:1], aligned(after[1:], before)])
        rows_before = cost.interpolated(
            points, ids, np.concatenate([after[:1], before]), rounds=rounds, seed=3
        )[1:]
        rows_after = cost.interpolated(points, ids, lists, rounds=rounds, seed=3)
        changed = int((rows_before != rows_after[1:]).any(-1).sum())
        entered = in_degree(points, k)
        paid = cost.smote(1.0, 0.0, neighbours=entered, rounds=rounds).rows
        differ = 1 + rounds + 2 * changed
        assert differ <= paid
        worst, replaced, possible = (
            max(worst, differ),
            replaced + changed,
            possible + entered * rounds,
        )
    assert worst > cost.printed_smote(1.0, dimension=dimension, rounds=rounds).rows
    spread = math.sqrt(possible * (1 / k) * (1 - 1 / k))
    assert abs(replaced - possible / k) < 5 * spread < possible / k


def test_the_tail_is_a_binomials() -> None:
    """Paid for: the smallest number of replacements exceeded with probability `tail` at most; then
    the tail is all of delta.
    """
    k, rounds, neighbours, tail = 5, 9, 100, 1e-6
    found = cost.smote_with_tail(0.1, 0.0, neighbours=neighbours, rounds=rounds, k=k, tail=tail)
    replaced = (found.rows - 1 - rounds) / 2
    above = stats.binom(neighbours * rounds, 1 / k)
    assert above.sf(replaced) <= tail < above.sf(replaced - 1)
    assert found.delta == tail
    assert found.rows < cost.smote(0.1, 0.0, neighbours=neighbours, rounds=rounds).rows
    assert found.epsilon == pytest.approx(0.1 * found.rows)


def test_what_is_printed_is_kept_as_printed() -> None:
    """Table 2's setting, k 5: its own formula gives 220.3 at gamma 0, not the printed 213.2."""
    printed = 2 ** (0.4042 * 25) / 5
    assert printed == pytest.approx(220.3, abs=0.1)
    assert cost.printed_smote(1.0, dimension=25, rounds=1).epsilon == pytest.approx(1 + 5 * printed)
    pure = cost.smote(1.0, 0.0, neighbours=int(cost.most_neighbours_of(25, 5)), rounds=1)
    assert pure.epsilon > 100 * printed


def test_what_is_left_to_learn_with() -> None:
    """Paying for SMOTE takes the AUC of a table that is learned without it; unpaid, its epsilon is
    no claim. Drowned in noise, a fit's direction is random and its AUC near 0 or 1: eight means
    above 0.9 in one case of 250.
    """
    rng = np.random.default_rng(0)
    labels = (np.arange(400) < 60).astype(int)
    features = np.clip(0.3 + 0.35 * labels[:, None] + 0.1 * rng.standard_normal((400, 3)), 0, 1)
    row = cost.study(features, labels, seeds=8)
    assert row["rows"] == 1 + row["rounds"] * (1 + 2 * row["neighbours"])
    assert row["in_degree"] <= row["neighbours"]
    plain, paid = (float(row[name].split()[0]) for name in ("ε 5", "ε 5, SMOTE"))
    assert plain > 0.9 > paid
