"""Accounts for mechanisms whose neighbours differ in one record: Laplace and Gaussian releases, choices by the
exponential mechanism, objective perturbation, bags of any of these.

Where every part is epsilon-differentially private the parts add up, and delta is 0. Where one is Gaussian, all are
taken as zero-concentrated (rho) and converted at delta by dp-accounting's Renyi accountant:

| part                            | epsilon         | rho             | source                          |
|---------------------------------|-----------------|-----------------|---------------------------------|
| Laplace, multiplier b           | 1 / b           | 1 / (2 b^2)     | Bun and Steinke 2016, prop. 1.4 |
| choices, k of epsilon           | k epsilon       | k epsilon^2 / 8 | Cesar and Rogers 2021           |
| Gaussian, k of multiplier sigma | none            | k / (2 sigma^2) | Bun and Steinke 2016, prop. 1.6 |
| objective perturbation          | see `objective` | epsilon^2 / 2   | Chaudhuri et al. 2011           |

A unit of m records: epsilon times m, rho times m^2.
"""

from __future__ import annotations

import math

from mechanisms.errors import MechanismError
from mechanisms.privacy.events import (
    BaggedEvent,
    Event,
    ExponentialChoiceEvent,
    LaplaceReleaseEvent,
    ObjectivePerturbationEvent,
    ReplacedComposedEvent,
    ReplacedGaussianEvent,
)
from mechanisms.privacy.gaussian_cost import renyi
from mechanisms.privacy.numerics import safe_root


def pure_epsilon(event: Event, *, delta: float = 0.0) -> float | None:
    """Epsilon for one record replaced; None where a part is Gaussian.

    Args:
        delta: what overlapping bags may use for advanced composition; 0: none.
    """
    match event:
        case LaplaceReleaseEvent():
            return 1 / event.noise_multiplier
        case ExponentialChoiceEvent():
            return event.choices * event.epsilon
        case ObjectivePerturbationEvent():
            return objective(event)
        case ReplacedGaussianEvent():
            return None
        case ReplacedComposedEvent():
            parts = [pure_epsilon(part) for part in event.events]
            return None if None in parts else math.fsum(part for part in parts if part is not None)
        case BaggedEvent():
            one = pure_epsilon(event.event)
            if one is None:
                raise MechanismError("bags are accounted for where each is epsilon-differentially private")
            return one if event.overlap == "none" else composed(one, event.bags, delta=delta)
        case _:
            raise MechanismError(f"event `{event.mechanism}` has no cost for one record replaced here")


def composed(epsilon: float, times: int, *, delta: float) -> float:
    """The smaller of basic and advanced composition (Dwork and Roth 2014, theorem 3.20) of fits of one epsilon.

    Below 2 ln(1/delta) fits advanced composition is the larger one.
    """
    basic = times * epsilon
    if delta <= 0 or epsilon > 50:
        return basic
    return min(basic, math.sqrt(2 * times * math.log(1 / delta)) * epsilon + basic * math.expm1(epsilon))


def rho(event: Event) -> float:
    """Zero-concentrated cost of one record replaced."""
    match event:
        case LaplaceReleaseEvent():
            return 1 / (2 * event.noise_multiplier**2)
        case ExponentialChoiceEvent():
            return event.choices * event.epsilon**2 / 8
        case ReplacedGaussianEvent():
            return event.releases / (2 * event.noise_multiplier**2)
        case ReplacedComposedEvent():
            return math.fsum(rho(part) for part in event.events)
        case _:
            epsilon = pure_epsilon(event)
            assert epsilon is not None
            return epsilon**2 / 2


def epsilon_of_rho(cost: float, *, delta: float) -> float:
    """Epsilon at delta of a zero-concentrated cost, by dp-accounting's Renyi accountant."""
    from dp_accounting import dp_event

    return float(renyi(dp_event.ZCDpEvent(cost), "REPLACE_ONE").get_epsilon(delta))


def rho_for(epsilon: float, *, delta: float, records_per_unit: int = 1) -> float:
    """Solves for the largest zero-concentrated cost of a record that costs a unit epsilon at delta at most."""
    if not 0 < delta < 1:
        raise MechanismError(f"delta is {delta}; it must lie strictly between 0 and 1")
    m2 = records_per_unit**2

    def excess(log_rho: float) -> float:
        return epsilon_of_rho(m2 * math.exp(log_rho), delta=delta) - epsilon

    low, high = math.log(1e-9), math.log(max(epsilon, 1e-6))
    if excess(low) > 0 or excess(high) <= 0:
        raise MechanismError(f"no noise meets epsilon {epsilon:g} at delta {delta:g} for units of {records_per_unit}")
    return math.exp(safe_root(excess, low, high, xtol=1e-4))


def distance(event: ObjectivePerturbationEvent) -> float:
    """Largest |b - b'| between the terms that give neighbours the same minimiser.

    Class frequencies as weights: the paper's bound is 3. If the label of a record flips, its two weights sum to 1 - 1/n
    and the others move by (n-1)/n in all; if it stays, no other moves. So 2 is enough, as without weights.
    """
    return 3.0 if event.weights == "frequencies" and event.constants == "paper" else 2.0


def objective(event: ObjectivePerturbationEvent) -> float:
    """Epsilon of objective perturbation: noise_rate times `distance`, plus the Jacobian's part, for every problem."""
    jacobian = jacobian_cost(
        event.regularisation,
        records=event.records,
        features=event.features,
        curvature=event.curvature,
        weights=event.weights,
        constants=event.constants,
    )
    return event.problems * (event.noise_rate * distance(event) + jacobian)


def jacobian_cost(
    regularisation: float, *, records: int, features: int, curvature: float, weights: str, constants: str
) -> float:
    """epsilon'': the log of the ratio of the Jacobians' determinants at neighbours.

    With A the Hessian's sum on one side, at least n (lambda + Delta) in every direction, and E the difference:

    | weights       | paper                              | tight                                                    |
    |---------------|------------------------------------|----------------------------------------------------------|
    | none, fixed   | 2 ln(1 + c/(n (lambda + Delta)))   | ln(1 + c/(n (lambda + Delta))): determinant lemma        |
    | frequencies   | 4 c d/(n (lambda + Delta))         | 2 c/(n (lambda + Delta)): ln det(I + M) <= tr of M's     |
    |               |                                    | positive part, of which a flip has 2 c max(n0, n1)/n     |
    """
    share = curvature / (records * regularisation)
    if weights == "frequencies":
        return 4 * features * share if constants == "paper" else 2 * share
    return (2 if constants == "paper" else 1) * math.log1p(share)


def smallest_regularisation(
    epsilon: float, *, records: int, features: int, curvature: float, weights: str, constants: str
) -> float:
    """lambda + Delta at which the Jacobian costs half of epsilon: the fallback, with Delta solved for it.

    (The paper's Delta, c/(n (e^{epsilon/4} - 1)) - lambda, spends more than epsilon by its own bound.)
    """
    half = epsilon / 2
    if weights == "frequencies":
        factor = 4 * features if constants == "paper" else 2
        return factor * curvature / (records * half)
    return curvature / (records * math.expm1(half / (2 if constants == "paper" else 1)))
