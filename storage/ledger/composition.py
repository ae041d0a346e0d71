"""Costs of releases as amounts that add up, and the sums that a cap admits.

A release is represented by its claim (epsilon, delta). If its event consists of Gaussian and pure
parts, also by mu^2 of Gaussian differential privacy; if it is sampled DP-SGD, also by its steps.
Three rules turn sums into a decision. The first charge of an account and its cap fix the account's
rule, so it cannot depend on any output:

* `basic`: epsilons and deltas of the claims add up (Dwork and Roth 2014, theorem 3.16).
* `gaussian`: the sum of mu^2 is bounded. Smith and Thakurta, Fully Adaptive Composition for
  Gaussian Differential Privacy (2022, arXiv 2210.17520): later parameters, and when to stop, may
  depend on earlier outputs. Pure epsilon is 2 Phi^-1(e^epsilon/(1 + e^epsilon))-GDP, because its
  trade-off function is linear between its corners, which lie on or above the convex curve of the
  Gaussian.
* `sampled`: the steps of DP-SGD are composed by their privacy loss distribution (dp_accounting).
  The first release fixes the step. A later release with at most its sampling probability and at
  least its noise is dominated by it step by step (joint convexity; more noise is post-processing).
  Outputs can therefore affect only the number of steps.

A release of another kind ends an exact rule. 1 % of the cap's delta is reserved in such an account,
before and after, for the sum of all claims. Both parts of delta add up: over outputs after which a
rule still holds, delta(epsilon), the expectation of max(0, 1 - e^(epsilon - loss)), is at most that
rule's share.

The Gaussian's arithmetic uses 60 digits and is rounded up, so that every process computes the same
digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context, Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict

from mpmath import MPContext

from mechanisms.privacy.events import CONVOLUTION_ERROR, LEAST_DELTA_OF_SAMPLES, LEAST_EPSILON
from storage.ledger import amounts

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

Rule = Literal["basic", "gaussian", "sampled"]


class SegmentJson(TypedDict):
    """Steps of DP-SGD with the same noise."""

    noise_multiplier: float
    steps: int


class EventJson(TypedDict, total=False):
    """The fields of an event that determine its cost, as stored in a row of the ledger."""

    mechanism: Required[str]
    sampling: str
    sampling_prob: float
    segments: list[SegmentJson]
    noise_multiplier: float
    events: list[EventJson]
    """Parts that all read the same records."""
    split: str
    training: EventJson
    evaluation: list[EventJson]
    sensitivity: float


_C = Context(prec=80)
_UP = Context(prec=80, rounding=ROUND_CEILING)
_DELTA_SHARE_FOR_BASIC = Decimal("0.01")
"""Fraction of delta that an exact account reserves for the sum of claims."""
_M = MPContext()
_M.dps = 60
_MARGIN = _M.mpf(10) ** -40
"""Exceeds the error of all these functions: they use 60 digits, of which subtraction may lose
15.
"""


@dataclass(frozen=True)
class Sampled:
    """Steps of DP-SGD on Poisson samples."""

    sampling_prob: float = 0.0
    noise_multiplier: float = math.inf
    steps: int = 0

    def plus(self, other: Sampled, times: int) -> Sampled | None:
        """Adds steps that are dominated by these; None if they are not."""
        if self.steps == 0:
            return replace(other, steps=times * other.steps)
        weaker = (
            other.sampling_prob <= self.sampling_prob
            and other.noise_multiplier >= self.noise_multiplier
        )
        # guard: test_sampled_releases_of_one_step_compose_by_their_loss_distribution
        return replace(self, steps=self.steps + times * other.steps) if weaker else None


@dataclass(frozen=True)
class Loss:
    """Amounts that add up."""

    epsilon: Decimal = amounts.ZERO_EPSILON
    """Sum of the claims' epsilons."""
    delta: Decimal = amounts.ZERO_DELTA
    """Sum of the claims' deltas."""
    mu_squared: Decimal | None = amounts.ZERO_DELTA
    """Of Gaussian differential privacy; None if some part is not Gaussian."""
    sampled: Sampled | None = Sampled()
    """None if some part is not sampled DP-SGD, or not dominated by the first release's step."""

    def plus(self, other: Loss, times: int = 1) -> Loss:
        def add(left: Decimal, right: Decimal) -> Decimal:
            return _C.add(left, right) if times == 1 else _C.fma(right, Decimal(times), left)

        rates, steps = (self.mu_squared, other.mu_squared), (self.sampled, other.sampled)
        return Loss(
            add(self.epsilon, other.epsilon),
            add(self.delta, other.delta),
            None if rates[0] is None or rates[1] is None else add(rates[0], rates[1]),
            None if steps[0] is None or steps[1] is None else steps[0].plus(steps[1], times),
        )

    def amount(self, rule: Rule) -> Any:
        """The amount that a rule bounds; None if the rule does not apply to some part of the
        sum.
        """
        return {"basic": self.epsilon, "gaussian": self.mu_squared, "sampled": self.sampled}[rule]


# -- Cost of one release ---------------------------------------------------------------------------


def loss_of(
    event: EventJson | None,
    *,
    epsilon: Decimal,
    delta: Decimal,
    claimed: str,
    relation: str,
    records_per_unit: int = 1,
) -> Loss:
    """The loss of a formal release under an account's neighbouring relation.

    Args:
        event: as in the ledger's row. Its floats are used with their exact binary value.
        epsilon: of the claim.
        delta: of the claim.
        claimed: neighbouring relation of the claim.
        relation: neighbouring relation of the account.
    """
    doubled = relation != claimed  # replacing a record is removing one and adding one
    # guard: test_each_kind_of_event_has_its_loss
    group = 2 * records_per_unit if doubled else records_per_unit
    if doubled:
        epsilon, delta = amounts.as_replace_one(epsilon, delta)
    if delta == 0:
        return Loss(epsilon, delta, pure_rate_of(epsilon), None)
    if event is None or claimed == "replace-one":
        return Loss(epsilon, delta, None, None)
    rate = _rate(event)
    rate = None if rate is None else _fine(_UP.multiply(Decimal(group * group), rate))
    return Loss(epsilon, delta, rate, _sampled(event) if group == 1 else None)


def gaussian_loss(epsilon: Decimal, delta: Decimal) -> Loss:
    """The loss of a Gaussian mechanism with exactly this claim, for a forecast. At delta 0 the
    mechanism is pure.
    """
    return Loss(
        epsilon, delta, pure_rate_of(epsilon) if delta == 0 else largest_rate(epsilon, delta), None
    )


_COMPOSED = {"composed", "prior-descent", "dp-sgd-class-weights"}


def _rate(event: EventJson) -> Decimal | None:
    match event.get("mechanism"):
        case "dp-sgd" if event["sampling"] == "poisson" and event["sampling_prob"] == 1:
            rates = [
                _gaussian(segment["noise_multiplier"], segment["steps"])
                for segment in event["segments"]
            ]
        case "gaussian-release":
            rates = [_gaussian(event["noise_multiplier"], 1)]
        case tag if tag in _COMPOSED:
            rates = [_rate(part) for part in event["events"]]
        case "parallel" if event["split"] != "coupled":
            # guard: test_a_table_of_the_test_half_costs_the_larger_part
            halves = [
                _rate(event["training"]),
                _rate({"mechanism": "composed", "events": event["evaluation"]}),
            ]
            rates_of_halves = [rate for rate in halves if rate is not None]
            return max(rates_of_halves) if len(rates_of_halves) == len(halves) else None
        case _:
            return None
    total = Decimal(0)
    for rate in rates:
        if rate is None:
            return None
        total = _UP.add(total, rate)
    return total


def _gaussian(noise: float, times: int) -> Decimal | None:
    # guard: test_an_event_that_gives_a_budget_back
    if not (noise > 0 and times > 0):
        return None
    exact = Decimal(noise)
    return _UP.divide(Decimal(times), _C.multiply(exact, exact))


def _sampled(event: EventJson) -> Sampled | None:
    if (
        event.get("mechanism") != "dp-sgd"
        or event["sampling"] != "poisson"
        or not 0 < event["sampling_prob"] < 1
    ):
        return None
    segments = event["segments"]
    noise = min(
        segment["noise_multiplier"] for segment in segments
    )  # the smallest noise dominates the other steps of a schedule
    if not noise > 0 or min(segment["steps"] for segment in segments) < 1:
        return None
    return Sampled(event["sampling_prob"], noise, sum(segment["steps"] for segment in segments))


@lru_cache(maxsize=1024)
def pure_rate_of(epsilon: Decimal) -> Decimal:
    """mu^2 of epsilon-differential privacy, rounded up: mu = 2 Phi^-1(e^epsilon / (1 +
    e^epsilon)).
    """
    tail = 1 / (1 + _M.exp(_number(epsilon)))

    def reached(steps: int) -> bool:
        return _M.ncdf(-_M.mpf(steps) / 10**12) <= tail - tail * _MARGIN

    x = Decimal(_first(reached)).scaleb(-12)
    return _fine(_UP.multiply(Decimal(4), _UP.multiply(x, x)))


def _fine(value: Decimal) -> Decimal:
    return value.quantize(amounts.ZERO_DELTA, rounding=ROUND_CEILING, context=_UP)


def _number(value: Decimal) -> Any:
    return _M.mpf(str(value))


def _first(holds: Callable[[int], bool]) -> int:
    high = 1
    while not holds(high):
        high *= 16
    low = -1 if high == 1 else high // 16
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


# -- Sums that a cap admits ------------------------------------------------------------------------


def within(spent: Loss, *, rule: Rule, epsilon: Decimal, delta: Decimal | None) -> bool:
    """Whether sums stay within a cap. A cap without delta bounds only epsilon."""
    share_for_basic = (
        delta if rule == "basic" or delta is None else _C.multiply(delta, _DELTA_SHARE_FOR_BASIC)
    )
    # guard: test_a_gaussian_account_has_a_hundredth_of_delta_for_sums_of_claims
    if spent.epsilon <= epsilon and (share_for_basic is None or spent.delta <= share_for_basic):
        return True
    if rule == "gaussian" and delta is not None and spent.mu_squared is not None:
        return spent.mu_squared <= largest_rate(epsilon, _exact_share(delta))
    if rule == "sampled" and delta is not None and spent.sampled is not None:
        return _sampled_delta(spent.sampled, float(epsilon)) <= float(_exact_share(delta))
    return False


def first_rule(loss: Loss, *, epsilon: Decimal, delta: Decimal | None) -> Rule:
    """The rule of an account with this first charge: the one under which more such releases fit or,
    if equal, the one with the smaller epsilon.
    """
    exact: Rule = "gaussian" if loss.mu_squared is not None else "sampled"
    if delta is None or loss.amount(exact) is None:
        return "basic"
    if exact == "sampled" and _exact_share(delta) < LEAST_DELTA_OF_SAMPLES:
        return "basic"
    by_claims, exactly = (
        more(Loss(), loss, rule=rule, epsilon=epsilon, delta=delta) for rule in ("basic", exact)
    )
    if exactly == by_claims:
        return exact if total(loss, rule=exact, delta=delta) < loss.epsilon else "basic"
    return exact if exactly > by_claims else "basic"


def more(
    spent: Loss,
    each: Loss,
    *,
    rule: Rule,
    epsilon: Decimal,
    delta: Decimal | None,
    most: int = 10_000,
) -> int:
    """How many more releases with this loss fit under a cap, by an account's rule."""

    def full(count: int) -> bool:
        return count > most or not within(
            spent.plus(each, count), rule=rule, epsilon=epsilon, delta=delta
        )

    return max(0, _first(full) - 1)


def total(spent: Loss, *, rule: Rule, delta: Decimal | None) -> Decimal:
    """The epsilon of sums, rounded up to 12 decimals, for display.

    With `basic` it holds at the sum of the deltas, otherwise at the delta of the cap.
    """
    if rule == "basic" or delta is None or spent.amount(rule) is None:
        return spent.epsilon
    share = _exact_share(delta)
    if rule == "gaussian" and spent.mu_squared is not None:
        epsilon = gaussian_epsilon(spent.mu_squared, share)
    else:
        epsilon = _sampled_epsilon(spent.sampled or Sampled(), float(share))
    return (
        min(epsilon, spent.epsilon)
        if spent.delta <= _C.multiply(delta, _DELTA_SHARE_FOR_BASIC)
        else epsilon
    )


def _exact_share(delta: Decimal) -> Decimal:
    return _C.multiply(delta, 1 - _DELTA_SHARE_FOR_BASIC)


@lru_cache(maxsize=1024)
def largest_rate(epsilon: Decimal, delta: Decimal) -> Decimal:
    """The largest mu^2, in steps of 1e-18, with a delta at this epsilon of at most `delta`."""
    rate = _first(lambda steps: gaussian_delta(Decimal(steps).scaleb(-18), epsilon) > delta)
    return Decimal(rate - 1).scaleb(-18)


@lru_cache(maxsize=4096)
def gaussian_epsilon(mu_squared: Decimal, delta: Decimal) -> Decimal:
    """The smallest multiple of 1e-12 at which mu-GDP has at most this delta."""
    epsilon = _first(lambda steps: gaussian_delta(mu_squared, Decimal(steps).scaleb(-12)) <= delta)
    return Decimal(epsilon).scaleb(-12)


def gaussian_delta(mu_squared: Decimal, epsilon: Decimal) -> Decimal:
    """delta(epsilon) of mu-GDP, rounded up: Phi(-e/mu + mu/2) - e^e Phi(-e/mu - mu/2).

    Balle and Wang 2018, theorem 8; Dong, Roth and Su 2022, corollary 2.13.
    """
    if mu_squared == 0:
        return amounts.ZERO_DELTA
    mu, e = _M.sqrt(_number(mu_squared)), _number(epsilon)
    exact = _M.ncdf(mu / 2 - e / mu) - _M.exp(e) * _M.ncdf(-mu / 2 - e / mu)
    return Decimal(str(_M.nstr(exact + _MARGIN, 50)))


@lru_cache(maxsize=256)
def _distribution(sampled: Sampled) -> PrivacyLossDistribution:
    from dp_accounting.pld import privacy_loss_distribution

    step = privacy_loss_distribution.from_gaussian_mechanism(
        sampled.noise_multiplier,
        sampling_prob=sampled.sampling_prob,
        value_discretization_interval=1e-3,
    )
    return step.self_compose(sampled.steps)


def _sampled_delta(sampled: Sampled, epsilon: float) -> float:
    if sampled.steps <= 0:
        return 0.0
    return float(_distribution(sampled).get_delta_for_epsilon(epsilon)) + CONVOLUTION_ERROR


def _sampled_epsilon(sampled: Sampled, delta: float) -> Decimal:
    if sampled.steps <= 0:
        return amounts.ZERO_EPSILON
    epsilon = _distribution(sampled).get_epsilon_for_delta(delta - CONVOLUTION_ERROR)
    return amounts.epsilon(max(epsilon, LEAST_EPSILON))
