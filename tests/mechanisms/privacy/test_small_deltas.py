"""Deltas of sampled steps that are so small that the error of a Fourier transform counts."""

import math

import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
from refusals import of_kind
from scipy import fft

from mechanisms.errors import MechanismError
from mechanisms.privacy import claims, gaussian_cost
from mechanisms.privacy.events import (
    CONVOLUTION_ERROR,
    LEAST_DELTA_OF_SAMPLES,
    DpSgdEvent,
    NoiseSegment,
)

PROB, NOISE, STEPS, INTERVAL = 0.02, 0.8, 2000, 1e-4


def sampled() -> DpSgdEvent:
    segment = NoiseSegment(steps=STEPS, noise_multiplier=NOISE, l2_clip_norm=1.0)
    return DpSgdEvent(sampling_prob=PROB, segments=(segment,))


def tilted_delta(epsilon: float) -> float:
    """Delta at this epsilon of the accountant's distribution of one step, composed under an
    exponential tilt to this epsilon. The tail then has full relative precision, as the transform's
    absolute error is relative to the largest probability.
    """
    step = from_gaussian_mechanism(
        NOISE, value_discretization_interval=INTERVAL, sampling_prob=PROB
    )._pmf_remove.to_dense_pmf()
    logs = np.log(np.maximum(step._probs, 1e-300))
    places = step._lower_loss + np.arange(len(logs))

    def tilted(tilt: float) -> tuple[np.ndarray, float]:
        weights = logs + tilt * places * INTERVAL
        scale = float(weights.max() + np.log(np.exp(weights - weights.max()).sum()))
        return np.exp(weights - scale), scale

    low, high = 0.0, 50.0
    for _ in range(50):
        tilt = (low + high) / 2
        below = float(tilted(tilt)[0] @ places) * INTERVAL * STEPS < epsilon
        low, high = (tilt, high) if below else (low, tilt)
    probabilities, scale = tilted(tilt)
    mean = float(probabilities @ places)
    std = math.sqrt(float(probabilities @ (places - mean) ** 2) * STEPS)
    size = fft.next_fast_len(int(max(50 * std, len(places))) + 2)
    one = np.zeros(size)
    np.add.at(one, places % size, probabilities)
    together = np.asarray(fft.irfft(np.asarray(fft.rfft(one)) ** STEPS, size))
    at = np.arange(size) + round(mean * STEPS) - size // 2
    together, losses = together[at % size], at * INTERVAL
    beyond = (losses > epsilon) & (together > 1e-13 * together.max())
    untilted = np.exp(np.log(together[beyond]) + STEPS * scale - tilt * losses[beyond])
    return float(untilted @ -np.expm1(epsilon - losses[beyond]))


@pytest.mark.parametrize("delta", [LEAST_DELTA_OF_SAMPLES, 1e-8])
def test_the_claim_holds_at_its_delta(delta: float) -> None:
    """Without the allowance, delta at the claimed epsilon is 1.0003 times the claimed one at 1e-10,
    and 1.02 times at 1e-12.
    """
    claimed = gaussian_cost.epsilon_of_event(sampled(), delta=delta)
    assert 0.99 * delta <= tilted_delta(claimed) <= delta


def test_a_claim_of_sampled_steps_lists_the_allowance() -> None:
    """It is measured, not proved. Steps without sampling have a closed form, and no allowance."""
    allowance = f"{CONVOLUTION_ERROR:g}"
    all_records = sampled().model_copy(update={"sampling_prob": 1.0})
    for event, times in ((sampled(), 1), (all_records, 0)):
        claim = claims.claim_of(
            event,
            delta=1e-8,
            privacy_unit="record",
            max_records_per_unit=1,
            unprotected_inputs=(),
        )
        assert sum(allowance in line for line in claim.assumptions) == times


@pytest.mark.parametrize("delta", [9e-11, 1e-12, 1e-17])
def test_a_smaller_delta_is_refused(delta: float) -> None:
    with pytest.raises(MechanismError, check=of_kind("delta-of-samples")):
        gaussian_cost.cost(sampled(), delta=delta)
