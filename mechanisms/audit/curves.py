"""Tests of the noise that an event states, by guesses at coins that are independent if it ran as
stated.

Under independent Gaussian noise, and sampling record by record, what is seen of one canary says
nothing of another one's coin, and each guess is right with probability (1 + TV)/2 at most, TV the
total variation of the event's trade-off curve (Dong et al. 2022). The least noise that the guesses
contradict bounds the noise, and epsilon if it is Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.special import ndtr
from scipy.stats import binom

from mechanisms.privacy import gaussian_cost
from mechanisms.privacy.events import Event
from mechanisms.privacy.scaled import noise_scaled

_SCALES = tuple(2 ** (power / 2) for power in range(8, -5, -1))
"""Noise, relative to the claimed, from 16 times as much down to a quarter, among which the least
contradicted is.
"""


def noise_at_most(*, right: int, coins: int, event: Event, alpha: float) -> float:
    """The noise, relative to the event's, above which so many right guesses contradict it; infinite
    for none.
    """

    def refuted(factor: float) -> bool:
        return float(binom.sf(right - 1, coins, chance_right(event, factor=factor))) <= alpha

    return least_noise(refuted)


def chance_right(event: Event, *, factor: float = 1.0) -> float:
    """Returns the probability, at this multiple of the event's noise, that the best guess at one
    coin is right.
    """
    rate = gaussian_cost.gaussian_rate(event)
    if rate is not None:
        return float(ndtr(rate / factor / 2))
    profile = gaussian_cost.profile(noise_scaled(event, factor))
    return (1 + min(delta for epsilon, delta in profile if epsilon == 0)) / 2


def epsilon_at(event: Event, *, factor: float, delta: float) -> float:
    """Returns the event's epsilon at this delta with its noise times the factor."""
    if factor >= _SCALES[0]:
        return 0.0
    rate = gaussian_cost.gaussian_rate(event)
    if rate is not None:
        return gaussian_cost.epsilon_of_rate(rate / factor, delta)
    return gaussian_cost.coarse_epsilon(noise_scaled(event, factor), delta, records_per_unit=1)


def least_noise(refuted: Callable[[float], bool]) -> float:
    """The least factor (of the claimed noise) that is contradicted, within 1 %: an upper bound on
    the noise.

    Infinite where no factor is contradicted; a quarter where all are. `contradicted` is monotone in
    the factor.
    """
    # From above: with little noise the accountant of a sampled event takes long, and is seldom
    # asked for.
    accepted = next((scale for scale in _SCALES if not refuted(scale)), 0.0)
    if accepted in (0.0, _SCALES[0]):
        return _SCALES[-1] if accepted == 0.0 else math.inf
    low, high = math.log(accepted), math.log(accepted * math.sqrt(2))
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (low, middle) if refuted(math.exp(middle)) else (middle, high)
    return math.exp(high)
