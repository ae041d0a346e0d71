"""Tests of a claimed trade-off curve: what a mechanism may let anybody tell, error against error, and not one point.

A claim at one delta says little of many coins: theorem 5.2 of Steinke et al. adds 2 delta for each, guessed or not, and
a thousand guesses at 300,000 coins refute nothing at delta 1e-4 though all be right. A mechanism of Gaussian noise
claims more: for every event E,

    P[E | record in] <= rise(P[E | record out])  and the other way round,  rise(x) = 1 - f(x)

with f its trade-off function (Dong et al. 2022). In one run with m coins, of whose c guesses C are right, let
R_i = sum_{j>=i} (j/m) P[C=j] and H_i = sum_{j>=i} ((c-j)/m) P[C=j]. Then (Mahloujifar, Melis, Chaudhuri 2024, arXiv
2410.22235, theorem 9)

    R_{i+1} <= rise(H_i)   for every i,        R_0 + H_0 = c/m

whatever the dependence between the coins of a run. The largest tail P[C >= v] that these allow is found by putting as
little mass as possible below v. Reruns are independent, so the number of them with v or more right is at most binomial.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import beta, binom

from mechanisms.errors import MechanismError
from mechanisms.privacy import gaussian_cost
from mechanisms.privacy.events import Event
from mechanisms.privacy.scaled import noise_scaled

_SCALES = tuple(2 ** (power / 2) for power in range(8, -5, -1))
"""Noise, relative to the claimed, from 16 times as much down to a quarter, among which the least refuted is."""


@dataclass(frozen=True)
class Approximate:
    """(epsilon, delta)."""

    epsilon: float
    delta: float = 0.0

    def fall(self, high: np.ndarray) -> np.ndarray:
        """(high - delta) / e^epsilon."""
        return np.maximum(high - self.delta, 0.0) * math.exp(-self.epsilon)


@dataclass(frozen=True)
class Gaussian:
    """mu-Gaussian differential privacy: as hard as telling N(0, 1) from N(mu, 1)."""

    mu: float

    def fall(self, high: np.ndarray) -> np.ndarray:
        """Phi(Phi^-1(high) - mu)."""
        return ndtr(ndtri(np.minimum(high, 1.0)) - self.mu)

    def epsilon(self, delta: float) -> float:
        return gaussian_cost.epsilon_of_rate(self.mu, delta)


@dataclass(frozen=True)
class Profile:
    """Several (epsilon, delta) at once, each of which holds."""

    points: tuple[tuple[float, float], ...]

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """delta and e^-epsilon, each float [points]."""
        epsilons, deltas = np.asarray(self.points, dtype=np.float64).T
        return deltas, np.exp(-epsilons)

    def fall(self, high: np.ndarray) -> np.ndarray:
        """The largest of theirs."""
        deltas, shrinks = self._arrays
        return (np.maximum(np.asarray(high)[..., None] - deltas, 0.0) * shrinks).max(-1)


Curve = Approximate | Gaussian | Profile
"""A trade-off curve, by `fall`: the least P[E | out] at which P[E | in] can be so high, both float [...] in [0, 1]."""


def curve_of(event: Event, *, factor: float = 1.0) -> Gaussian | Profile:
    """Returns the trade-off curve of an event at `factor` times its Gaussian noise: exact without sampling."""
    rate = gaussian_cost.gaussian_rate(event)
    if rate is not None:
        return Gaussian(rate / factor)
    return Profile(gaussian_cost.profile(noise_scaled(event, factor)))


def epsilon_at(event: Event, *, factor: float, delta: float) -> float:
    """Returns the event's epsilon at this delta with its noise times the factor."""
    if factor >= _SCALES[0]:
        return 0.0
    curve = curve_of(event, factor=factor)
    if isinstance(curve, Gaussian):
        return curve.epsilon(delta)
    return gaussian_cost.coarse_epsilon(noise_scaled(event, factor), delta, records_per_unit=1)


def tail(curve: Curve, *, right: int, made: int, coins: int) -> float:
    """P[C >= right], at most, of `made` guesses at `coins` coins of one run under the curve."""
    if not 0 <= right <= made <= coins:
        raise MechanismError(f"{right} right of {made} guesses at {coins} coins: these counts contradict each other")
    low, high = -40.0, 0.0
    for _ in range(3):
        logs = np.linspace(low, high, 32)
        possible = _mass(curve, np.exp(logs), right=right, made=made, coins=coins) <= made / coins * (1 + 1e-12)
        if possible[-1]:
            return math.exp(high)
        last = int(np.flatnonzero(possible)[-1]) if possible.any() else 0
        low, high = logs[last], logs[last + 1]
    return math.exp(high)


def _mass(curve: Curve, chance: np.ndarray, *, right: int, made: int, coins: int) -> np.ndarray:
    """R_0 + H_0 at least, if P[C >= right] is `chance`, float [...]: more than made/coins cannot be."""
    hit, missed = chance * right / coins, chance * (made - right) / coins
    for i in range(right - 1, -1, -1):
        least = np.maximum(missed, curve.fall(np.minimum(hit, 1.0)))
        hit = hit + i / (made - i) * (least - missed)
        missed = least
    return hit + missed


@dataclass(frozen=True)
class Runs:
    """Holds how many guesses were right in each of several independent runs, of `coins` guesses at as many coins each.

    threshold: fixed before these runs: a run with as many right or more counts.
    """

    right: tuple[int, ...]
    coins: int
    threshold: int

    @property
    def runs_at_threshold(self) -> int:
        """Runs at or above the threshold."""
        return sum(right >= self.threshold for right in self.right)

    def perfect(self) -> Runs:
        """The same with every guess right."""
        return Runs((self.coins,) * len(self.right), self.coins, self.threshold)

    def refutes(self, curve: Curve, *, alpha: float) -> bool:
        """Checks whether runs like these are less likely than alpha under the curve."""
        if not self.runs_at_threshold:
            return False
        one = tail(curve, right=self.threshold, made=self.coins, coins=self.coins)
        return float(binom.sf(self.runs_at_threshold - 1, len(self.right), one)) <= alpha


def largest_delta(runs: Runs, *, epsilon: float, alpha: float) -> float:
    """The largest delta for which (epsilon, delta) is refuted; 0 where epsilon is not refuted even at delta 0."""
    if not runs.refutes(Approximate(epsilon), alpha=alpha):
        return 0.0
    # No delta above what a run's share passed at can be refuted: a mechanism that tells all with that probability.
    most = float(beta.ppf(alpha, runs.runs_at_threshold, len(runs.right) - runs.runs_at_threshold + 1))
    low, high = 0.0, most
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if runs.refutes(Approximate(epsilon, middle), alpha=alpha) else (low, middle)
    return low


def least_noise(refuted: Callable[[float], bool]) -> float:
    """The least factor (of the claimed noise) that is refuted, within 1 %: an upper bound on the noise.

    Infinite where no factor is refuted; a quarter where all are. `refuted` holds for every factor above one that is.
    """
    # From above: with little noise the accountant of a sampled event takes long, and is seldom asked for.
    accepted = next((scale for scale in _SCALES if not refuted(scale)), 0.0)
    if accepted in (0.0, _SCALES[0]):
        return _SCALES[-1] if accepted == 0.0 else math.inf
    low, high = math.log(accepted), math.log(accepted * math.sqrt(2))
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (low, middle) if refuted(math.exp(middle)) else (middle, high)
    return math.exp(high)


def noise_at_most(runs: Sequence[Runs], event: Event, *, alpha: float) -> float:
    """The noise, relative to the event's, above which the runs refute it: 1 or less contradicts the event.

    Args:
        runs: tests of the same event, alpha divided among them.
    """
    each = alpha / len(runs)
    curves = lru_cache(maxsize=None)(lambda factor: curve_of(event, factor=factor))
    return min(least_noise(lambda f, one=one: one.refutes(curves(f), alpha=each)) for one in runs)


def independent_noise_at_most(*, right: int, coins: int, event: Event, alpha: float) -> float:
    """The same from guesses that are independent if the event ran as stated: at orthogonal canary gradients.

    Under independent Gaussian noise, and sampling record by record, what is seen of one canary says nothing of another
    one's coin, and each guess is right with probability (1 + TV)/2 at most, TV the curve's total variation.
    """

    def refuted(factor: float) -> bool:
        return float(binom.sf(right - 1, coins, chance_right(curve_of(event, factor=factor)))) <= alpha

    return least_noise(refuted)


def chance_right(curve: Gaussian | Profile) -> float:
    """Returns the probability that the best guess at one coin is right: (1 + delta(0)) / 2."""
    if isinstance(curve, Gaussian):
        return float(ndtr(curve.mu / 2))
    return (1 + min(delta for epsilon, delta in curve.points if epsilon == 0)) / 2
