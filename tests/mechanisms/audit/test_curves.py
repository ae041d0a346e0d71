"""What guesses say of an event's noise."""

import numpy as np
import pytest
from scipy.stats import binom, norm

from mechanisms.audit import curves
from mechanisms.privacy.events import DpSgdEvent, NoiseSegment


def event(noise: float, *, steps: int = 1, prob: float = 1.0) -> DpSgdEvent:
    """Steps of this noise multiplier."""
    segment = NoiseSegment(steps=steps, noise_multiplier=noise, l2_clip_norm=1.0)
    return DpSgdEvent(sampling_prob=prob, segments=(segment,))


def test_the_best_guess_is_right_as_often_as_two_normals_are_told_apart() -> None:
    """Full batch: Phi(mu/2), manually; a sample tells less; twice the noise half of mu."""
    assert curves.chance_right(event(2.0, steps=4)) == pytest.approx(norm.cdf(0.5))
    assert curves.chance_right(event(1.0), factor=2) == pytest.approx(norm.cdf(0.25))
    assert 0.5 < curves.chance_right(event(1.0, prob=0.1)) < norm.cdf(0.5)


def test_true_noise_is_refuted_as_rarely_as_stated_and_half_of_it_often() -> None:
    """At alpha 0.05: by the binomial distribution of right guesses, exactly."""
    stated, coins = event(0.9), 200
    refuting = next(
        k
        for k in range(coins)
        if curves.noise_at_most(right=k, coins=coins, event=stated, alpha=0.05) <= 1
    )
    assert binom.sf(refuting - 1, coins, curves.chance_right(stated)) <= 0.05
    assert binom.sf(refuting - 1, coins, curves.chance_right(stated, factor=0.5)) > 0.95


def test_a_bound_on_the_noise_is_one_on_epsilon() -> None:
    """Below the stated noise epsilon is above the claim; where nothing is contradicted it is 0."""
    stated = event(1.0)
    claimed = curves.epsilon_at(stated, factor=1.0, delta=1e-5)
    assert curves.epsilon_at(stated, factor=0.5, delta=1e-5) > claimed > 0
    assert curves.epsilon_at(stated, factor=np.inf, delta=1e-5) == 0
    assert curves.noise_at_most(right=50, coins=100, event=stated, alpha=0.05) == np.inf
