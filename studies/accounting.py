"""Costs for *replacing* one record (n is public), which is how the systems of the imbalance papers
state their claims.

| part                            | epsilon   | rho             | source                          |
|---------------------------------|-----------|-----------------|---------------------------------|
| Laplace, multiplier b           | 1 / b     | 1 / (2 b^2)     | Bun and Steinke 2016, prop. 1.4 |
| choices, k of epsilon           | k epsilon | k epsilon^2 / 8 | Cesar and Rogers 2021           |
| Gaussian, k of multiplier sigma | none      | k / (2 sigma^2) | Bun and Steinke 2016, prop. 1.6 |
| objective perturbation          | `Perturbation.epsilon` | epsilon^2 / 2 | Chaudhuri et al. 2011 |

If every part has an epsilon, they add up and delta is 0. If one is Gaussian, rho adds up and is
converted at delta by dp-accounting's Renyi accountant. Gradient descents are events of this
program, with the noise at which replacing one record costs the target.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from dp_accounting import dp_event
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant

from mechanisms.errors import MechanismError
from mechanisms.privacy.claims import claim_of, epsilon_of_one_replaced
from mechanisms.privacy.events import Claim, Event, NonPrivateEvent
from mechanisms.privacy.numerics import safe_root

CURVATURE = 0.25
"""c: the largest second derivative of the logistic loss."""


def replace_one(epsilon: float, delta: float, accountant: str) -> Claim:
    return Claim(
        guarantee_kind="formal",
        epsilon=epsilon,
        delta=delta,
        epsilon_replaced=epsilon,
        neighbouring_relation="replace-one",
        accountant=accountant,
        assumptions=("neighbours have the same number of records and differ in the values of one",),
    )


def pure(epsilon: float) -> Claim:
    return replace_one(epsilon, 0.0, "sum of the parts, each epsilon-differentially private")


def nothing() -> Claim:
    return of_event(NonPrivateEvent(epochs=1), None)


def of_event(event: Event, delta: float | None) -> Claim:
    """Returns the accountant's claim for adding or removing one record, including
    `epsilon_replaced`.
    """
    return claim_of(
        event, delta=delta, privacy_unit="record", max_records_per_unit=1, unprotected_inputs=()
    )


def noise_for(make_event: Callable[[float], Event], epsilon: float, delta: float) -> float:
    """Returns the noise at which replacing one record costs at most epsilon, and at least 0.99 of
    it.

    Args:
        make_event: returns the event at a noise multiplier.
    """

    def excess(log_noise: float) -> float:
        cost = epsilon_of_one_replaced(
            make_event(math.exp(log_noise)), delta=delta, records_per_unit=1
        )
        return math.log(cost / epsilon) if cost else 1.0

    low = high = math.log(4 / epsilon)
    while excess(high) > 0:
        high += 1
        if high > 20:
            raise MechanismError(
                f"no noise costs epsilon {epsilon:g} for one record replaced. Raise epsilon",
                kind="no-noise",
            )
    while excess(low) < 0:
        low -= 1
    return math.exp(safe_root(excess, high, low, xtol=1e-3) if low < high else low)


def epsilon_of_rho(rho: float, delta: float) -> float:
    accountant = RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE)
    return float(accountant.compose(dp_event.ZCDpEvent(rho)).get_epsilon(delta))


def rho_for(epsilon: float, delta: float) -> float:
    """Returns the largest zero-concentrated cost that converts to at most epsilon."""

    def excess(log_rho: float) -> float:
        return epsilon_of_rho(math.exp(log_rho), delta) - epsilon

    return math.exp(safe_root(excess, math.log(1e-9), math.log(max(epsilon, 1e-6)), xtol=1e-4))


Weights = Literal["none", "frequencies"]
Constants = Literal["paper", "tight"]


@dataclass(frozen=True)
class Perturbation:
    """Regularised logistic regression with a random linear term b of density proportional to
    exp(-noise_rate |b|).

    Without weights it is Chaudhuri et al. 2011, algorithm 2. Weighted by the frequency of the other
    class it is Rosenblatt et al. 2025, algorithm 1. `constants` are those of the papers' proofs, or
    tight ones.
    """

    records: int
    features: int
    """Number of coordinates of a record of norm at most 1, including the constant."""
    weights: Weights = "none"
    constants: Constants = "tight"
    regularisation: float = 0.0
    """lambda plus the added regularisation (Delta)."""
    noise_rate: float = 1.0

    @property
    def distance(self) -> float:
        """Largest |b - b'| between the terms that give neighbours the same minimiser.

        With class frequencies as weights the paper's bound is 3. If a label flips, its two weights
        sum to 1 - 1/n and the others move by (n-1)/n in total; otherwise no other weight moves. So
        2 is sufficient, as without weights.
        """
        return 3.0 if self.weights == "frequencies" and self.constants == "paper" else 2.0

    @property
    def jacobian(self) -> float:
        """epsilon'': the log of the ratio of the Jacobians' determinants at neighbours.

        | weights     | paper                            | tight                       |
        |-------------|----------------------------------|-----------------------------|
        | none        | 2 ln(1 + c/(n (lambda + Delta))) | ln(1 + c/(n (lambda + Delta))) |
        | frequencies | 4 c d/(n (lambda + Delta))       | 2 c/(n (lambda + Delta))    |

        The first follows from the determinant lemma, the second from the trace of the positive part
        of a flip's difference, which is at most 2 c max(n0, n1)/n.
        """
        share = CURVATURE / (self.records * self.regularisation)
        return self._factor * (share if self.weights == "frequencies" else math.log1p(share))

    @property
    def _factor(self) -> int:
        if self.constants == "tight":
            return 2 if self.weights == "frequencies" else 1
        return 4 * self.features if self.weights == "frequencies" else 2

    @property
    def epsilon(self) -> float:
        return self.noise_rate * self.distance + self.jacobian

    def smallest_regularisation(self, epsilon: float) -> float:
        """lambda + Delta at which the Jacobian costs half of epsilon.

        (The paper's Delta, c/(n (e^{epsilon/4} - 1)) - lambda, spends more than epsilon by its own
        bound.)
        """
        half = epsilon / 2 / self._factor
        return CURVATURE / (
            self.records * (half if self.weights == "frequencies" else math.expm1(half))
        )
