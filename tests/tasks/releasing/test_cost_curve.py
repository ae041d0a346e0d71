"""The epsilon of an event over delta."""

from __future__ import annotations

import math

import pytest
from releases import make_event
from scipy.special import ndtr

from mechanisms.errors import MechanismError
from mechanisms.privacy.events import DpSgdEvent, NoiseSegment
from tasks.releasing.cost_curve import DELTAS, cost_curve

SEGMENTS = (NoiseSegment(steps=70, noise_multiplier=8.44, l2_clip_norm=1.0),)


def of_gaussian(epsilon: float, mu: float) -> float:
    """Returns the delta of a Gaussian with this mu (Balle and Wang 2018, theorem 8)."""
    return float(ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu))


def test_full_batches_follow_the_curve_of_one_gaussian() -> None:
    """Never below it, and above by less than the accountant's grid; one record replaced has twice its mu."""
    mu = math.sqrt(70) / 8.44
    points = cost_curve(DpSgdEvent(sampling_prob=1, segments=SEGMENTS), DELTAS)
    assert [point.delta for point in points] == sorted(DELTAS, reverse=True)
    for point in points:
        for epsilon, rate in ((point.epsilon, mu), (point.epsilon_replaced, 2 * mu)):
            assert epsilon is not None
            assert of_gaussian(epsilon, rate) <= point.delta <= of_gaussian(epsilon - 0.002, rate)


def test_sampling_and_larger_units_move_it_as_they_should() -> None:
    """Fewer records in a sum cost less; a unit of two records costs more."""
    sampled, whole = (DpSgdEvent(sampling_prob=prob, segments=SEGMENTS) for prob in (0.1, 1))
    (less,), (one,) = cost_curve(sampled, [1e-5]), cost_curve(whole, [1e-5])
    (two,) = cost_curve(whole, [1e-5], records_per_unit=2)
    assert less.epsilon is not None
    assert one.epsilon is not None
    assert two.epsilon is not None
    assert less.epsilon < one.epsilon < two.epsilon


def test_an_estimate_has_no_curve() -> None:
    """SWAG-PPM quantifies no delta."""
    with pytest.raises(MechanismError, match="delta"):
        cost_curve(make_event(), [1e-5])
