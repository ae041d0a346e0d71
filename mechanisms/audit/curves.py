"""Tests of an event's stated noise, based on guesses of coins that are independent if the event ran
as stated.

With independent Gaussian noise and independent sampling, observations of one canary carry no
information about another canary's coin. Each guess is right with probability at most (1 + TV)/2, in
which TV is the total variation of the event's trade-off curve (Dong et al. 2022). The smallest
noise that the guesses contradict is an upper bound on the noise, and it bounds epsilon if the noise
is Gaussian.
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
"""Multiples of the claimed noise, from 16 down to a quarter, between which the smallest
contradicted one is searched.
"""


def noise_at_most(*, right: int, coins: int, event: Event, alpha: float) -> float:
    """The noise, as a multiple of the event's, above which this many right guesses contradict the
    event; infinite if they contradict no noise.
    """

    def refuted(factor: float) -> bool:
        chance = chance_right(event, factor=factor)
        p_value = float(binom.sf(right - 1, coins, chance))
        return p_value <= alpha

    return least_noise(refuted)


def chance_right(event: Event, *, factor: float = 1.0) -> float:
    """Probability that the best guess of one coin is right if the event's noise is multiplied by
    `factor`.
    """
    rate = gaussian_cost.gaussian_rate(event)
    if rate is not None:
        return float(ndtr(rate / factor / 2))
    profile = gaussian_cost.profile(noise_scaled(event, factor))
    total_variation = min(delta for epsilon, delta in profile if epsilon == 0)
    return (1 + total_variation) / 2


def epsilon_at(event: Event, *, factor: float, delta: float) -> float:
    """The event's epsilon at this delta if its noise is multiplied by `factor`."""
    if factor >= _SCALES[0]:
        return 0.0
    rate = gaussian_cost.gaussian_rate(event)
    if rate is not None:
        return gaussian_cost.epsilon_of_rate(rate / factor, delta)
    scaled = noise_scaled(event, factor)
    return gaussian_cost.coarse_epsilon(scaled, delta, records_per_unit=1)


def least_noise(refuted: Callable[[float], bool]) -> float:
    """The smallest multiple of the claimed noise that is contradicted, to within 1 %: an upper
    bound on the noise.

    The result is infinite if no multiple is contradicted and a quarter if all are. `refuted` must
    be monotone in the factor.
    """
    # Search from above: the accountant of a sampled event is slow at low noise, which is seldom
    # needed.
    accepted = next((scale for scale in _SCALES if not refuted(scale)), None)
    if accepted is None:
        return _SCALES[-1]
    if accepted == _SCALES[0]:
        return math.inf
    low = math.log(accepted)
    high = math.log(accepted * math.sqrt(2))
    while high - low > 0.01:
        middle = (low + high) / 2
        if refuted(math.exp(middle)):
            high = middle
        else:
            low = middle
    return math.exp(high)
