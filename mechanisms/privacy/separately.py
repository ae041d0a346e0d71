"""Compares the cost of one release per field with one release of all fields.

Releases of the same records compose. F of one kind whose noise is Gaussian and samples nothing are each exactly
mu-Gaussian, and rates add up in squares: F at mu / sqrt(F) cost what one at mu costs, and F at mu cost sqrt(F) mu (Dong
et al. 2022, corollary 3.3). Where records are sampled the losses of all F are composed numerically. Claims with delta
0 add up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mechanisms.privacy import gaussian_cost
from mechanisms.privacy.claims import claim_of, formal
from mechanisms.privacy.events import ComposedEvent, DpSgdEvent, Event, GaussianReleaseEvent
from mechanisms.privacy.numerics import safe_root
from mechanisms.privacy.scaled import noise_scaled

_LOG_NOISE = 1e-3
"""Tolerance of the logarithm of the noise of a smaller release."""


@dataclass(frozen=True)
class PerFieldComposition:
    """Holds the cost of one release per field, each of the kind that the joint release is."""

    each_epsilon: float
    """Of each, where all of them together are to cost what the one release costs."""
    together_epsilon: float
    """Of all of them together, where each costs what the one release costs."""


def composed_cost(event: Event, *, fields: int, delta: float, records_per_unit: int = 1) -> PerFieldComposition | None:
    """Returns the cost of one release per field in place of this event; None for claims that do not compose."""
    if isinstance(event, ComposedEvent | DpSgdEvent | GaussianReleaseEvent):
        return _gaussian(event, fields, delta, records_per_unit)
    if not formal(event):
        return None
    unit: dict[str, Any] = {"privacy_unit": "record", "max_records_per_unit": records_per_unit}
    claim = claim_of(event, delta=delta, unprotected_inputs=(), **unit)
    if claim.delta or claim.epsilon is None:
        return None
    return PerFieldComposition(claim.epsilon / fields, claim.epsilon * fields)


def _gaussian(event: Event, fields: int, delta: float, records_per_unit: int) -> PerFieldComposition:
    def epsilon(one: Event, times: int = 1) -> float:
        composed = ComposedEvent(events=(one,) * times)
        return gaussian_cost.coarse_epsilon(composed, delta, records_per_unit=records_per_unit)

    rate = gaussian_cost.gaussian_rate(event)
    if rate is not None:
        alike = GaussianReleaseEvent(what="one of several", noise_multiplier=1 / rate, l2_sensitivity=1.0)
        root = math.sqrt(fields)
        return PerFieldComposition(epsilon(noise_scaled(alike, root)), epsilon(noise_scaled(alike, 1 / root)))
    joint, enough = epsilon(event), math.log(fields) / 2

    def excess(log_factor: float) -> float:
        return epsilon(noise_scaled(event, math.exp(log_factor)), fields) - joint

    while excess(enough) > 0:
        enough += math.log(2)
    factor = math.exp(safe_root(excess, enough, 0.0, xtol=_LOG_NOISE))
    return PerFieldComposition(epsilon(noise_scaled(event, factor)), epsilon(event, fields))
