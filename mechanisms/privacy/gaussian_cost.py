"""Accounting for Gaussian mechanisms: the finite-sample (epsilon, delta) of an event, and the noise
for a target epsilon.

Noise on the records of every step without sampling is equivalent to one Gaussian. Its epsilon has a
closed form, which is the claim. All other claims use the privacy loss distribution (PLD,
dp-accounting) composed from the event that ran, with a pessimistic discretisation that gives an
upper bound, and with an allowance for the floating-point error of the composition. Renyi figures
are also computed, for comparison with papers.

Neighbours differ by one unit added or removed. The l2 clip bounds one record's contribution, and a
noise multiplier is relative to it. Replacing a record changes the sum by up to twice the clip,
which `epsilon_replace_one` accounts for. For a unit of m records, each Poisson sample contains
Binomial(m, q) of them, so a step is a mixture of Gaussians with sensitivities 0..m (Ganesh 2024,
arXiv 2401.10294), and a full-batch release has sensitivity m.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Literal

import numpy as np
from absl import logging as absl_logging
from numpy.typing import NDArray

from mechanisms.errors import MechanismError
from mechanisms.privacy.events import (
    CONVOLUTION_ERROR,
    LEAST_DELTA_OF_SAMPLES,
    LEAST_EPSILON,
    ComposedEvent,
    DpSgdEvent,
    Event,
    GaussianReleaseEvent,
    ParallelEvent,
)
from mechanisms.privacy.numerics import safe_root

if TYPE_CHECKING:
    from dp_accounting import dp_event
    from dp_accounting.pld.pld_privacy_accountant import PLDAccountant

Relation = Literal["ADD_OR_REMOVE_ONE", "REPLACE_ONE"]
"""Names in dp-accounting's `NeighboringRelation`."""

ACCOUNTANT = f"dp-accounting {version('dp-accounting')} PLD"
CLOSED_FORM = "closed form of Gaussian noise (Balle and Wang 2018, theorem 8)"


@dataclass(frozen=True)
class FormalCost:
    """The cost of one event at one delta, by several accountants. Only `epsilon` is the claim."""

    delta: float
    epsilon: float
    """Computed by `accountant`, for one unit added or removed."""
    epsilon_replace_one: float | None
    """Computed by `accountant`, for one unit's values replaced. None for units of several records
    with sampling.
    """
    epsilon_rdp: float | None
    """RDP with dp-accounting's conversion (Canonne et al. 2020, proposition 12). None for units of
    several records.
    """
    epsilon_rdp_mironov: float | None
    """RDP with Mironov 2017, proposition 3, as in Chew et al. None for units of several records."""


@lru_cache(maxsize=256)
def cost(event: Event, *, delta: float, records_per_unit: int = 1) -> FormalCost:
    if isinstance(event, ParallelEvent):
        return _parallel_cost(event, delta=delta, records_per_unit=records_per_unit)
    epsilon = epsilon_of_event(event, delta=delta, records_per_unit=records_per_unit)
    if records_per_unit > 1:
        # replacing m records changes a sum over all records by 2 m clips
        twice = None if gaussian_rate(event) is None else 2 * records_per_unit
        replaced = (
            None if twice is None else epsilon_of_event(event, delta=delta, records_per_unit=twice)
        )
        return FormalCost(delta, epsilon, replaced, None, None)
    of_orders = renyi(event)
    return FormalCost(
        delta=delta,
        epsilon=epsilon,
        epsilon_replace_one=_epsilon(event, delta, 1, _INTERVAL, "REPLACE_ONE"),
        epsilon_rdp=of_orders.epsilon(delta),
        epsilon_rdp_mironov=of_orders.epsilon_mironov(delta),
    )


def _parallel_cost(event: ParallelEvent, *, delta: float, records_per_unit: int) -> FormalCost:
    """The larger cost of the two parts, figure by figure.

    A replaced record may also move from one set to the other. This costs as much as both parts
    together for one record added or removed.
    """
    require_parallel(event, records_per_unit)
    parts = [
        cost(part, delta=delta, records_per_unit=records_per_unit)
        for part in (event.training, event.of_evaluation)
    ]
    moved = epsilon_of_event(
        ComposedEvent(events=(event.training, *event.evaluation)),
        delta=delta,
        records_per_unit=records_per_unit,
    )

    def larger(name: str, *further: float) -> float | None:
        values = [getattr(part, name) for part in parts]
        return None if None in values else max(*values, *further)

    epsilon = larger("epsilon")
    assert epsilon is not None
    return FormalCost(
        delta,
        epsilon,
        larger("epsilon_replace_one", moved),
        larger("epsilon_rdp"),
        larger("epsilon_rdp_mironov"),
    )


def require_parallel(event: ParallelEvent, records_per_unit: int) -> None:
    """Refuses splits for which taking the maximum is not known to be valid.

    Raises:
        MechanismError: other records affect a record's set, or records of a unit are sampled in
            both sets.
    """
    # guard: test_a_table_of_a_coupled_split_has_no_claim
    if event.split == "coupled":
        raise MechanismError(
            "event `parallel`: one record decides whether others are training or held-out "
            "records, so the parts cannot be composed in parallel. Sample per record, or leave the "
            "table out",
            kind="dependent-halves",
        )
    # guard: test_units_in_both_halves_of_sampled_training_have_no_claim
    if records_per_unit > 1 and event.split != "unit" and gaussian_rate(event.training) is None:
        raise MechanismError(
            "event `parallel`: a unit has training and held-out records, and training samples "
            "them. Split by unit, or leave the table out",
            kind="units-in-both-halves",
        )


def accountant(event: Event) -> str:
    return ACCOUNTANT if gaussian_rate(event) is None else CLOSED_FORM


_INTERVAL = 1e-4
_ROUGH = 1e-2
"""Discretisation interval of the first search. The finer intervals divide it, so none of them gives
a larger epsilon.
"""
_COARSE = 1e-3
"""Discretisation interval of the second search, of long schedules, and of units of several sampled
records: ten times faster. It overstates an epsilon of 4 by 0.0001 to 0.0005.
"""
_FEW_RUNS = 8
_TOLERANCE = 0.002
"""Fraction of the target that may remain unused before the noise is solved on the fine grid."""
_LOG_NOISE = 1e-5
"""Tolerance of the logarithm of the noise multiplier."""


def epsilon_of_event(
    event: Event, *, delta: float, records_per_unit: int = 1, interval: float = _INTERVAL
) -> float:
    """The smallest epsilon that these accountants prove, for one unit added or removed.

    Raises:
        MechanismError: the event has no Gaussian noise, delta is not in (0, 1), or it is too small
            for an event with sampled steps.
    """
    _check_delta(delta)
    return _epsilon(event, delta, records_per_unit, interval, "ADD_OR_REMOVE_ONE")


def coarse_epsilon(event: Event, delta: float, *, records_per_unit: int) -> float:
    """The epsilon on the coarse grid: ten times faster and never smaller."""
    return epsilon_of_event(event, delta=delta, records_per_unit=records_per_unit, interval=_COARSE)


@lru_cache(maxsize=4096)
def _epsilon(
    event: Event, delta: float, records_per_unit: int, interval: float, relation: Relation
) -> float:
    """Cached epsilon. Events are frozen, and plan, fit, claim and page need the same figure."""
    return max(LEAST_EPSILON, _computed(event, delta, records_per_unit, interval, relation))


def _computed(
    event: Event, delta: float, records_per_unit: int, interval: float, relation: Relation
) -> float:
    rate = gaussian_rate(event)
    if isinstance(event, ParallelEvent):
        require_parallel(event, records_per_unit)
        if rate is None:
            figures = _parallel_cost(event, delta=delta, records_per_unit=records_per_unit)
            return _figure(figures, relation)
    if rate is not None:
        return epsilon_of_rate(
            rate * records_per_unit * (2 if relation == "REPLACE_ONE" else 1), delta
        )
    if delta < LEAST_DELTA_OF_SAMPLES:
        raise MechanismError(
            f"delta is {delta:g}, but for sampled steps it must be at least "
            f"{LEAST_DELTA_OF_SAMPLES:g}, because the accountant's arithmetic is not exact enough "
            "below. Use a larger delta, or a mechanism that reads all records at every step",
            kind="delta-of-samples",
        )
    accountant = _pld(event, records_per_unit, interval, relation)
    return float(accountant.get_epsilon(delta - CONVOLUTION_ERROR))


def _figure(figures: FormalCost, relation: Relation) -> float:
    if relation == "ADD_OR_REMOVE_ONE":
        return figures.epsilon
    return math.inf if figures.epsilon_replace_one is None else figures.epsilon_replace_one


def epsilon_of_rate(mu: float, delta: float) -> float:
    """The smallest epsilon of a mu-Gaussian differentially private event, rounded up.

    Balle and Wang 2018, theorem 8: delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 -
    epsilon/mu).
    """
    from scipy.special import log_ndtr  # many commands need no cost

    def excess(epsilon: float) -> float:
        inside, outside = (
            log_ndtr(mu / 2 - epsilon / mu),
            epsilon + log_ndtr(-mu / 2 - epsilon / mu),
        )
        rounding = 1e-14 * (
            1 + abs(inside) + abs(outside) + 2 * epsilon
        )  # bound on the cancellation error of the difference
        return inside + math.log(-math.expm1(outside - inside - rounding)) - math.log(delta)

    # upper end: delta is below Phi(-40), smaller than any float
    low, high = 0.0, mu**2 / 2 + 40 * mu
    if mu == 0 or excess(low) <= 0:
        return 0.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high * (1 + 1e-10)


def gaussian_rate(event: Event) -> float | None:
    """mu of an event without sampling, which is exactly mu-Gaussian differentially private with
    mu^2 = sum of steps / noise_multiplier^2 (Dong et al. 2022, corollary 3.3). None if records
    are sampled.
    """
    if isinstance(event, ParallelEvent):
        rates = [gaussian_rate(part) for part in (event.training, event.of_evaluation)]
        return None if None in rates else max(rate for rate in rates if rate is not None)
    runs = list(_gaussian_steps(event))
    if any(prob < 1 for _, prob, _ in runs):
        return None
    return math.hypot(*(math.sqrt(steps) / noise for noise, _, steps in runs))


def chance_beyond(event: Event, epsilon: float, *, units: int = 1) -> float | None:
    """The probability that a release changes a person's odds by a factor of more than e^epsilon.

    The privacy loss of a mu-Gaussian mechanism is normal with mean mu^2/2 and variance mu^2, so it
    exceeds epsilon with probability Phi(mu/2 - epsilon/mu) (Balle and Wang 2018, lemma 3). This is
    several times delta, which also weights by how much the loss exceeds epsilon.

    Args:
        units: difference between the neighbours as a multiple of the noise's norm: the number of
            records of a unit, or twice that if they are replaced.

    Returns:
        None if records are sampled, because the loss then has no closed form.
    """
    from scipy.special import ndtr

    rate = gaussian_rate(event)
    if rate is None:
        return None
    mu = rate * units
    return float(ndtr(mu / 2 - epsilon / mu))


def rate_of_epsilon(epsilon: float, delta: float) -> float:
    """The largest mu with an epsilon at this delta of at most `epsilon`, rounded down."""
    low, high = 0.0, 1.0
    while epsilon_of_rate(high, delta) <= epsilon:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon_of_rate(middle, delta) <= epsilon else (low, middle)
    return low


def profile(event: Event) -> tuple[tuple[float, float], ...]:
    """(epsilon, delta) pairs that all hold for one record added or removed, starting with epsilon
    0: PLD on the coarse grid.
    """
    accountant = _pld(event, 1, _COARSE, "ADD_OR_REMOVE_ONE")
    epsilons = (0.0, *np.geomspace(0.02, 20, 60).tolist())
    return tuple((epsilon, float(accountant.get_delta(epsilon))) for epsilon in epsilons)


def calibrate(
    make_event: Callable[[float], Event],
    *,
    target_epsilon: float,
    delta: float,
    records_per_unit: int = 1,
    by: Literal["pld", "rdp-mironov"] = "pld",
) -> float:
    """The noise multiplier at which `make_event(noise_multiplier)` costs `target_epsilon`, within
    0.5 % and never more.

    This works for any schedule: `make_event` maps one number to all noise. Parts that do not depend
    on it, such as a release of class counts, are charged first.

    Args:
        by: the accountant that meets the target. `rdp-mironov` gives the noise of papers that
            convert by Mironov's proposition 3. The claim is still the (smaller) PLD figure.

    Raises:
        MechanismError: the target is not positive, or no noise between 0.01 and 10,000 meets it.
    """
    _check_delta(delta)
    if not (math.isfinite(target_epsilon) and target_epsilon > 0):
        raise MechanismError(
            f"target_epsilon is {target_epsilon}, but it must be positive and finite",
            kind="target-out-of-range",
        )
    if by == "rdp-mironov" and records_per_unit > 1:
        raise MechanismError(
            "rdp-mironov does not support units of several records. Use pld", kind="units-in-rdp"
        )

    def excess(interval: float, log_noise: float) -> float:
        event = make_event(math.exp(log_noise))
        if by == "rdp-mironov":
            return renyi(event).epsilon_mironov(delta) - target_epsilon
        return (
            epsilon_of_event(
                event, delta=delta, records_per_unit=records_per_unit, interval=interval
            )
            - target_epsilon
        )

    def solve(interval: float) -> float:
        return safe_root(
            partial(excess, interval),
            *_bracket(partial(excess, interval), target_epsilon, delta),
            xtol=_LOG_NOISE,
        )

    try:
        log_noise = solve(_ROUGH)
    except MechanismError:  # the grid is too coarse for a small epsilon of many steps
        log_noise = solve(_COARSE)
    # A coarse grid overstates epsilon, by a lot if it is small or if there are very many steps, so
    # repeat the search on a finer one.
    for interval, tolerance in (
        ((_COARSE, _LOG_NOISE), (_INTERVAL, _TOLERANCE)) if by == "pld" else ()
    ):
        closely = partial(excess, interval)
        if closely(log_noise) < -tolerance * target_epsilon:
            step = 0.02
            while closely(log_noise - step) <= 0:
                step *= 2
            log_noise = safe_root(closely, log_noise, log_noise - step, xtol=_LOG_NOISE)
    return math.exp(log_noise)


def _bracket(
    excess: Callable[[float], float], target_epsilon: float, delta: float
) -> tuple[float, float]:
    """Logarithms of a noise that meets the target and of one that does not."""
    low, high = 0.0, 0.0
    while excess(high) > 0:
        low, high = high, high + math.log(2)
        if high > math.log(1e4):
            raise MechanismError(
                f"no noise multiplier up to 10,000 meets epsilon {target_epsilon:g} at delta "
                f"{delta:g}: "
                "fixed parts of the mechanism (class counts) may cost more than the target, or "
                "the target is too small",
                kind="unreachable-target",
            )
    while low >= high or excess(low) <= 0:
        high, low = min(low, high), min(low, high) - math.log(2)
        if low < math.log(0.01):
            raise MechanismError(
                "even a noise multiplier of 0.01 costs less than epsilon "
                f"{target_epsilon:g} at delta {delta:g}. Lower target_epsilon or "
                "delta",
                kind="target-too-large",
            )
    return high, low


def to_dp_event(event: Event, *, records_per_unit: int = 1) -> dp_event.DpEvent:
    """Converts an event to dp-accounting's types, for a unit of `records_per_unit` records."""
    from dp_accounting import (
        dp_event,
    )  # with scipy's signals it takes seconds, and most commands need no cost
    from scipy.stats import binom

    m = records_per_unit
    parts: list[dp_event.DpEvent] = []
    for noise, prob, steps in _composed_steps(event):
        if prob == 1:
            step: dp_event.DpEvent = dp_event.GaussianDpEvent(noise / m)
        elif m == 1:
            step = dp_event.PoissonSampledDpEvent(prob, dp_event.GaussianDpEvent(noise))
        else:
            present = np.arange(m + 1)
            step = dp_event.MixtureOfGaussiansDpEvent(
                noise, [float(k) for k in present], [float(p) for p in binom.pmf(present, m, prob)]
            )
        parts.append(dp_event.SelfComposedDpEvent(step, steps))
    return dp_event.ComposedDpEvent(parts)


def _gaussian_steps(event: Event) -> Iterator[tuple[float, float, int]]:
    """Yields (noise multiplier, sampling probability, steps) in order. Equal neighbours are not
    merged.
    """
    match event:
        case DpSgdEvent():
            if event.sampling != "poisson":
                raise MechanismError(
                    f"event `{event.mechanism}` sampled by `{event.sampling}`: the accountants "
                    "support only `poisson`",
                    kind="unsupported-sampling",
                )
            for segment in event.segments:
                yield segment.noise_multiplier, event.sampling_prob, segment.steps
        case GaussianReleaseEvent():
            yield event.noise_multiplier, 1.0, 1
        case ComposedEvent():
            for part in event.events:
                yield from _gaussian_steps(part)
        case _:
            raise MechanismError(
                f"event `{event.mechanism}` has no Gaussian noise, so this accountant cannot "
                "price it",
                kind="no-gaussian-noise",
            )


def _composed_steps(event: Event) -> list[tuple[float, float, int]]:
    """The steps, with all full-batch steps replaced by the one Gaussian to which they compose
    exactly (see `gaussian_rate`).
    """
    runs = list(_gaussian_steps(event))
    full = [math.sqrt(steps) / noise for noise, prob, steps in runs if prob == 1]
    return [run for run in runs if run[1] < 1] + ([(1 / math.hypot(*full), 1.0, 1)] if full else [])


@lru_cache(maxsize=4)
def _pld(event: Event, records_per_unit: int, interval: float, relation: Relation) -> PLDAccountant:
    from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
    from dp_accounting.privacy_accountant import NeighboringRelation

    runs = _composed_steps(event)
    smallest = min(noise for noise, _, _ in runs) / records_per_unit
    mixture = records_per_unit > 1 and any(
        prob < 1 for _, prob, _ in runs
    )  # their losses are inverted one by one
    if len(runs) > _FEW_RUNS or mixture:
        interval = max(interval, _COARSE)
    # Privacy losses and the size of the grid grow like 1/noise^2. Limit the size and accept a lower
    # resolution, which matters only for very large epsilons.
    accountant = PLDAccountant(
        NeighboringRelation[relation], interval * max(1.0, (0.3 / smallest) ** 2)
    )
    accountant.compose(to_dp_event(event, records_per_unit=records_per_unit))
    return accountant


_ORDERS = (*(1 + tenth / 10 for tenth in range(1, 100)), *range(11, 64), 128, 256, 512, 1024)
"""The orders of dp-accounting."""


@dataclass(frozen=True)
class Renyi:
    """Renyi divergences of an event by order, both float64 [orders]."""

    orders: NDArray[np.float64]
    divergences: NDArray[np.float64]

    def epsilon(self, delta: float) -> float:
        """Epsilon by Canonne et al. 2020, proposition 12, as in dp-accounting."""
        pairs = zip(self.orders.tolist(), self.divergences.tolist(), strict=True)
        return max(0.0, min(_canonne(order, divergence, delta) for order, divergence in pairs))

    def epsilon_mironov(self, delta: float) -> float:
        """Epsilon by Mironov 2017, proposition 3 (v3): divergence + log(1/delta) / (order - 1)."""
        return float(np.min(self.divergences - math.log(delta) / (self.orders - 1)))


def _canonne(order: float, divergence: float, delta: float) -> float:
    # The Kullback-Leibler divergence is at most this divergence, so at epsilon 0 delta is at most
    # sqrt(1 - exp(-divergence)).
    if delta**2 + math.expm1(-divergence) > 0:
        return 0.0
    return divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)


def renyi(event: Event) -> Renyi:
    """Divergences of an event at dp-accounting's orders, which omit those near 1 whose sums do not
    converge. For one Gaussian they have a closed form (Mironov 2017, corollary 3).
    """
    rate = gaussian_rate(event)
    if rate is not None:
        orders = np.array(_ORDERS)
        return Renyi(orders, orders / (2 * (1 / rate) ** 2))
    from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant

    accountant, verbosity = RdpAccountant(), absl_logging.get_verbosity()
    absl_logging.set_verbosity(absl_logging.ERROR)
    try:
        accountant.compose(to_dp_event(event))
    finally:
        absl_logging.set_verbosity(verbosity)
    return Renyi(accountant.orders, accountant.rdp)


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise MechanismError(
            f"delta is {delta}, but it must lie strictly between 0 and 1", kind="delta-not-inside"
        )
