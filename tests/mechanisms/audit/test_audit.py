"""Bounds on epsilon: below the truth as often as stated, close to it in the limit, nothing from
nothing.
"""

import math

import numpy as np
import pytest
from refusals import of_kind
from scipy.stats import binom, norm
from sklearn.metrics import roc_auc_score

from mechanisms.audit import bounds as audit
from mechanisms.audit.bounds import Guesses, Rule
from mechanisms.errors import MechanismError


def _responses(epsilon: float, coins: int, *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Randomised response: each coin told truly with probability e^eps / (1 + e^eps)."""
    pick = np.random.default_rng(seed)
    bits = pick.random(coins) < 0.5
    told = np.where(pick.random(coins) < 1 / (1 + math.exp(-epsilon)), bits, ~bits)
    return told.astype(float), bits


def test_randomised_response_is_bounded_below_its_epsilon_in_the_stated_share_of_runs() -> None:
    """At 95 % confidence a bound exceeds the truth in at most 5 % of 400 runs. False alarm:
    P[Binomial(400, 0.05) > 33] is below 0.3 %. The test also rejects bounds at 80 % confidence,
    which exceed in about a fifth of the runs.
    """
    rule, epsilon = Rule(low=0.5, high=0.5 + 1e-9), 1.5
    above, careless = 0, 0
    for seed in range(400):
        guesses = rule.apply(*_responses(epsilon, 500, seed=seed))
        above += audit.one_run_bound(guesses) > epsilon
        careless += audit.one_run_bound(guesses, confidence=0.8) > epsilon
    assert above <= 33
    assert careless > 45
    assert binom.sf(33, 400, 0.05) < 0.003


def test_randomised_response_is_met_in_the_limit() -> None:
    """A million coins give epsilon up to a hundredth: the bound is tight for the mechanism that
    attains it.
    """
    guesses = Rule(low=0.5, high=0.5 + 1e-9).apply(*_responses(2.0, 1_000_000, seed=0))
    assert 1.98 < audit.one_run_bound(guesses) <= 2.0 + 1e-2


def test_gaussian_mechanism_is_bounded_and_its_missing_noise_is_caught() -> None:
    """A sum with noise of std 1 is (eps, delta)-DP with delta = Phi(1/2 - eps) - e^eps Phi(-1/2 -
    eps); bounds stay below that epsilon. Without noise the same audit contradicts it by far. False
    alarm: each of 100 bounds exceeds with probability at most 5 %; more than 13 of 100 do with 0.2
    %.
    """
    epsilon = 4.0
    delta = float(norm.cdf(0.5 - epsilon) - math.exp(epsilon) * norm.cdf(-0.5 - epsilon))
    above = 0
    for seed in range(100):
        pick = np.random.default_rng(seed)
        bits = pick.random(4000) < 0.5
        scores = bits + pick.normal(size=4000)
        rule = audit.choose(scores[:2000], bits[:2000])
        above += audit.one_run_bound(rule.apply(scores[2000:], bits[2000:]), delta=delta) > epsilon
    assert above <= 13
    bits = np.random.default_rng(1).random(4000) < 0.5
    rule = audit.choose(bits[:2000].astype(float), bits[:2000])
    assert (
        audit.one_run_bound(rule.apply(bits[2000:].astype(float), bits[2000:]), delta=delta)
        > epsilon
    )


def test_null_gives_nothing_in_the_stated_share() -> None:
    """Scores that know nothing of the coins: rules chosen on one half and measured on the other
    give a bound above 0 in at most 5 % of 400 experiments (more than 33 have 0.3 %). Measured where
    they were chosen they nearly always do: the split is what makes the bound hold.
    """
    found, cheated = 0, 0
    for seed in range(400):
        pick = np.random.default_rng(seed)
        scores, bits = pick.normal(size=600), pick.random(600) < 0.5
        rule = audit.choose(scores[:300], bits[:300])
        found += audit.one_run_bound(rule.apply(scores[300:], bits[300:])) > 0
        cheated += audit.one_run_bound(rule.apply(scores[:300], bits[:300])) > 0
    assert found <= 33
    assert cheated > 100


@pytest.mark.parametrize(
    ("coins", "made", "correct", "confidence", "delta", "published"),
    [
        *((1000, 100, 95, 0.95, 0.0, 2.172434), (1000, 100, 95, 0.95, 1e-6, 2.171714)),
        *((10_000, 800, 700, 0.95, 1e-5, 1.760947), (500, 50, 50, 0.95, 1e-4, 2.639186)),
        *((4000, 300, 200, 0.99, 0.0, 0.404506), (1000, 1000, 711, 0.95, 1e-5, 0.7834363)),
        *((1000, 1000, 722, 0.95, 0.0, 0.8365098), (2238, 2238, 2238, 0.95, 1e-5, 6.5555447)),
        *((1000, 200, 150, 0.95, 1e-4, 0.8065116), (500, 500, 250, 0.95, 0.0, 0.0)),
    ],
)
def test_one_run_bounds_are_those_of_jax_privacy(
    coins: int, made: int, correct: int, confidence: float, delta: float, published: float
) -> None:
    """Golden values of another inversion of the same theorem: jax_privacy 2.0.0,
    `auditing._epsilon_one_run`.
    """
    bound = audit.one_run_bound(Guesses(correct, made, coins), delta=delta, confidence=confidence)
    assert bound == pytest.approx(published, abs=2e-6)


def test_delta_only_weakens() -> None:
    """The p-value grows with delta, hence the bound falls; at delta 0 it is the logit of the
    interval's end.
    """
    guesses = Guesses(correct=95, guessed=100, coins=1000)
    bounds = [audit.one_run_bound(guesses, delta=delta) for delta in (0.0, 1e-6, 1e-4, 1e-2)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > 2.0 > bounds[-1]
    assert audit.one_run_p_value(guesses, epsilon=bounds[0], delta=0.0) == pytest.approx(
        0.05, rel=1e-6
    )


def test_counts_that_contradict_each_other_are_refused() -> None:
    """More right guesses than guesses, more guesses than coins."""
    for guesses in (Guesses(3, 2, 5), Guesses(2, 6, 5), Guesses(-1, 2, 5)):
        with pytest.raises(MechanismError, check=of_kind("inconsistent-counts")):
            audit.one_run_bound(guesses)


def test_reference_finds_the_means_and_ranks_by_them() -> None:
    """With many runs the Gaussians are the true ones and the likelihood ratio beats
    the bare score.
    """
    pick = np.random.default_rng(0)
    runs, n = 400, 50
    easy = pick.normal(0, 5, n)
    bits = pick.random((runs, n)) < 0.5
    seen = easy + bits + pick.normal(size=(runs, n))
    made = audit.reference(seen[:300], bits[:300])
    assert np.allclose(made.mean_in - made.mean_out, 1, atol=0.6)
    assert np.allclose(made.std_out, 1, atol=0.3)
    fresh, truth = seen[300:], bits[300:]
    by_ratio = roc_auc_score(truth.ravel(), made.likelihood_ratio(fresh).ravel())
    assert by_ratio > 0.72 > 0.6 > roc_auc_score(truth.ravel(), fresh.ravel())


def test_reference_runs_of_one_kind_tell_nothing_apart() -> None:
    """One canary that happened to take part in all reference runs, or in none: every ratio is 0,
    not a wrong one.
    """
    seen = np.random.default_rng(0).normal(-3, 1, size=(4, 1))
    for had in (True, False):
        made = audit.reference(seen, np.full((4, 1), had))
        assert made.likelihood_ratio(np.array([[-9.0], [0.0], [4.0]])).tolist() == [
            [0.0],
            [0.0],
            [0.0],
        ]
