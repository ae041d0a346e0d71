"""Trade-off curves: the tail they allow, what reruns refute of them, and what they must not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from scipy.optimize import linprog
from scipy.special import ndtr
from scipy.stats import binom

from mechanisms.audit import bounds, curves
from mechanisms.audit.curves import Approximate, Gaussian, Runs
from mechanisms.errors import MechanismError
from mechanisms.privacy import gaussian_cost
from mechanisms.privacy.events import ComposedEvent, DpSgdEvent, GaussianReleaseEvent, NoiseSegment, NonPrivateEvent
from mechanisms.privacy.scaled import noise_scaled

FULL = DpSgdEvent(sampling_prob=1.0, segments=(NoiseSegment(steps=20, noise_multiplier=3.56, l2_clip_norm=1.0),))
SAMPLED = DpSgdEvent(sampling_prob=0.2, segments=(NoiseSegment(steps=100, noise_multiplier=2.0, l2_clip_norm=1.0),))
ALPHA = 0.01


def test_an_event_without_sampling_is_exactly_gaussian() -> None:
    """Epsilon of its mu is what dp-accounting composes step by step, to its grid; composition adds squares of mu. A
    curve of half of the noise is another.
    """
    release = GaussianReleaseEvent(what="x", noise_multiplier=2.0, l2_sensitivity=1.0)
    steps = from_gaussian_mechanism(3.56, value_discretization_interval=1e-3).self_compose(20)
    both = steps.compose(from_gaussian_mechanism(2.0, value_discretization_interval=1e-3))
    for event, composed in ((FULL, steps), (ComposedEvent(events=(FULL, release)), both)):
        curve = curves.curve_of(event)
        assert isinstance(curve, Gaussian)
        for delta in (1e-6, 1e-4, 1e-2):
            assert curve.epsilon(delta) == gaussian_cost.epsilon_of_event(event, delta=delta)
            assert curve.epsilon(delta) == pytest.approx(composed.get_epsilon_for_delta(delta), abs=1e-4)
        assert curves.curve_of(event, factor=0.5) == Gaussian(2 * curve.mu)
    with pytest.raises(MechanismError, match="no noise multiplier"):
        noise_scaled(NonPrivateEvent(epochs=1), 0.5)


def test_a_sampled_event_has_the_accountants_profile() -> None:
    """Every point is one that the accountant gives, and the curve lies between them: below, no event has as little."""
    curve = curves.curve_of(SAMPLED)
    assert isinstance(curve, curves.Profile)
    epsilon, delta = curve.points[20]
    assert gaussian_cost.epsilon_of_event(SAMPLED, delta=delta) == pytest.approx(epsilon, abs=0.01)
    high = np.array([0.01, 0.3, 0.9])
    assert (curve.fall(high) >= Approximate(epsilon, delta).fall(high) - 1e-12).all()
    # but for the last bits, which numpy's vector instructions give an exponential by its place in the array
    each = np.max([Approximate(*point).fall(high) for point in curve.points], axis=0)
    np.testing.assert_allclose(curve.fall(high), each, rtol=1e-12)
    assert curves.epsilon_at(SAMPLED, factor=0.5, delta=1e-4) > 2 * curves.epsilon_at(SAMPLED, factor=1.0, delta=1e-4)


@pytest.mark.parametrize(("right", "made", "coins"), [(8, 8, 8), (7, 8, 8), (10, 12, 20), (15, 20, 20)])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (1.5, 0.05), (2.0, 0.2)])
def test_the_tail_is_the_most_that_the_inequalities_allow(
    right: int, made: int, coins: int, epsilon: float, delta: float
) -> None:
    """Against a linear program over all laws of the number of right guesses (scipy): the same to 1 %, and not above."""
    j = np.arange(made + 1)
    rows, limits = [], []
    for i in range(made):  # R_{i+1} <= e^epsilon H_i + delta
        rows.append(np.where(j >= i + 1, j / coins, 0) - math.exp(epsilon) * np.where(j >= i, (made - j) / coins, 0))
        limits.append(delta)
    told = linprog(
        -(j >= right).astype(float), A_ub=np.array(rows), b_ub=limits, A_eq=np.ones((1, made + 1)), b_eq=[1.0]
    )
    ours = curves.tail(Approximate(epsilon, delta), right=right, made=made, coins=coins)
    assert ours == pytest.approx(-told.fun, rel=0.01)
    assert ours >= -told.fun - 1e-6, "a p-value may be too large, never too small"


def test_randomised_response_is_never_refuted_too_often() -> None:
    """The mechanism that attains (1.5, 0): runs of 50 coins pass a threshold of 45 no more often than the tail says."""
    share = 1 / (1 + math.exp(-1.5))
    assert binom.sf(44, 50, share) <= curves.tail(Approximate(1.5), right=45, made=50, coins=50)


def _runs(mu: float, *, runs: int, coins: int, seed: int) -> Runs:
    """Reruns of a Gaussian mechanism, every coin guessed; the threshold from four runs before them."""
    pick = np.random.default_rng(seed)
    counts = pick.binomial(coins, ndtr(mu / 2), size=runs + 4)
    return Runs(tuple(counts[4:].tolist()), coins, max(1, math.floor(counts[:4].mean() - math.sqrt(coins) / 2)))


def test_reruns_refute_half_of_the_noise_and_not_the_noise_itself() -> None:
    """24 reruns of 200 coins at the claimed noise: refuted in none of 100 audits at 1 % (more than 5 have 0.05 %); at
    half of it in nearly all. The noise found is an upper bound on the true one.
    """
    mu = gaussian_cost.gaussian_rate(FULL)
    assert mu is not None
    assert binom.sf(5, 100, ALPHA) < 0.0006
    false = sum(_runs(mu, runs=24, coins=200, seed=seed).refutes(Gaussian(mu), alpha=ALPHA) for seed in range(100))
    true = sum(_runs(2 * mu, runs=24, coins=200, seed=seed).refutes(Gaussian(mu), alpha=ALPHA) for seed in range(100))
    assert false <= 5
    assert true >= 95
    factor = curves.noise_at_most([_runs(mu, runs=24, coins=200, seed=1)], FULL, alpha=ALPHA)
    assert 1.0 < factor < 2.5
    halved = curves.noise_at_most([_runs(2 * mu, runs=24, coins=200, seed=1)], FULL, alpha=ALPHA)
    assert 0.5 <= halved < 1.0


def test_a_point_of_the_curve_says_nothing_of_many_coins() -> None:
    """What the curve is for: 1,000 of 1,000 guesses at 300,000 coins of pooled reruns refute no epsilon at delta 1e-4.
    The same reruns, 1,000 coins each, refute more than a half of the noise if all but ten are right.
    """
    assert bounds.one_run_bound(bounds.Guesses(1000, 1000, 300_000), delta=1e-4) == 0.0
    assert curves.noise_at_most([Runs((1000,) * 24, 1000, 990)], FULL, alpha=ALPHA) < 0.4


@pytest.mark.parametrize("runs", [6, 12, 48])
def test_the_largest_delta_grows_with_reruns_and_holds(runs: int) -> None:
    """All runs right but for a guess: refuted for deltas that many runs can refute, and a mechanism that tells all with
    that probability passes every run no more often than alpha.
    """
    seen = Runs((99,) * runs, 100, 98)
    delta = curves.largest_delta(seen, epsilon=2.3, alpha=ALPHA)
    assert seen.refutes(Approximate(2.3, delta), alpha=ALPHA)
    assert not seen.refutes(Approximate(2.3, delta + 0.02), alpha=ALPHA)
    assert delta**runs <= ALPHA
    assert delta > {6: 0.3, 12: 0.5, 48: 0.7}[runs]
    assert curves.largest_delta(Runs((60,) * runs, 100, 58), epsilon=2.3, alpha=ALPHA) == 0.0


@pytest.mark.parametrize("event", [FULL, SAMPLED], ids=["full batch", "sampled"])
def test_independent_guesses_bound_the_noise(event: DpSgdEvent) -> None:
    """Of 1,000 independent guesses as right as the event allows, the noise found is below the claimed in at most 1 % of
    200 (more than 8 have 0.03 %); as right as half of the noise allows, in all.
    """
    share, halved = (curves.chance_right(curves.curve_of(event, factor=factor)) for factor in (1.0, 0.5))
    pick = np.random.default_rng(2)
    limit = binom.isf(ALPHA, 1000, share)  # more right than this refute the event
    assert binom.sf(8, 200, ALPHA) < 0.0003
    assert sum(pick.binomial(1000, share, size=200) > limit) <= 8
    noise = curves.independent_noise_at_most
    assert noise(right=int(limit) - 1, coins=1000, event=event, alpha=ALPHA) >= 1.0
    assert noise(right=int(limit) + 2, coins=1000, event=event, alpha=ALPHA) < 1.01
    assert noise(right=int(1000 * halved) - 30, coins=1000, event=event, alpha=ALPHA) < 0.75
    assert math.isinf(noise(right=500, coins=1000, event=event, alpha=ALPHA))


def test_counts_that_contradict_each_other_are_refused() -> None:
    """More right than made, more made than coins."""
    for right, made, coins in ((3, 2, 5), (2, 6, 5)):
        with pytest.raises(MechanismError, match="contradict"):
            curves.tail(Gaussian(1.0), right=right, made=made, coins=coins)
