"""What releases cost in amounts that add up, and which sums a cap admits.

A release is known by its claim (epsilon, delta) and, where its event is made of Gaussian and pure parts, by mu^2 of
Gaussian differential privacy. Two rules turn sums into a decision. An account has one from its first charge on, chosen
by that charge and the cap, so that no output chooses it:

* `basic`: epsilons and deltas of the claims add up (Dwork and Roth 2014, theorem 3.16).
* `gaussian`: the sum of mu^2 is bounded. Smith and Thakurta, Fully Adaptive Composition for Gaussian Differential
  Privacy (2022, arXiv 2210.17520): later parameters, and when to stop, may be chosen in the light of earlier outputs.
  Pure epsilon is 2 Phi^-1(e^epsilon/(1 + e^epsilon))-GDP: between the corners of its trade-off function, on or above
  the Gaussian's convex curve, it is linear. A release that is not Gaussian (sampled noise) ends this rule; 1 % of the
  cap's delta is set apart, under which claims add up in such an account, before and after.

Both parts of delta add up: of outputs at whose end a rule holds, delta(epsilon), the expectation of
max(0, 1 - e^(epsilon - loss)), is at most that rule's share.

Arithmetic is `decimal` with 80 digits, rounded up, so that every process computes the same digits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import ROUND_CEILING, Context, Decimal
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, PlainSerializer

from storage.ledger import amounts

Rule = Literal["basic", "gaussian"]

_C = Context(prec=80, Emin=-(10**9), Emax=10**9)
_UP = Context(prec=80, Emin=-(10**9), Emax=10**9, rounding=ROUND_CEILING)
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803")
_MARGIN = Decimal("1e-40")
"""Above every error of these functions: 80 digits, of which subtraction may take 30."""
_ONE = Decimal(1)
_QUANTUM = Decimal("1e-12")
_FINE = Decimal("1e-18")
_APART = Decimal("0.01")
"""Share of delta that a `gaussian` account sets apart for the sum of the claims."""

Sum = Annotated[Decimal, PlainSerializer(amounts.text, when_used="json")]


class Loss(BaseModel):
    """Amounts that add up."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epsilon: Sum = amounts.ZERO_EPSILON
    """Of the claims."""
    delta: Sum = amounts.ZERO_DELTA
    """Of the claims."""
    mu_squared: Sum | None = amounts.ZERO_DELTA
    """Of Gaussian differential privacy; None where something is not Gaussian."""

    def plus(self, other: Loss, times: int = 1) -> Loss:
        def add(left: Decimal, right: Decimal) -> Decimal:
            return _C.fma(right, Decimal(times), left)

        rates = (self.mu_squared, other.mu_squared)
        return Loss(
            epsilon=add(self.epsilon, other.epsilon),
            delta=add(self.delta, other.delta),
            mu_squared=None if rates[0] is None or rates[1] is None else add(rates[0], rates[1]),
        )


# -- what one release costs ----------------------------------------------------------------------------------


def loss_of(
    event: Mapping[str, Any] | None,
    *,
    epsilon: Decimal,
    delta: Decimal,
    claimed: str,
    relation: str,
    records_per_unit: int = 1,
) -> Loss:
    """Returns the loss of a formal release in terms of an account's relation.

    Args:
        event: as the ledger's row has it. A float of it is its exact binary value.
        epsilon, delta: of the claim, which holds under the relation `claimed`.
    """
    doubled = relation != claimed  # a replaced record is one removed and one added
    # guard: a record replaced is two
    group = 2 * records_per_unit if doubled else records_per_unit
    if doubled:
        more = amounts.as_replace_one(epsilon, delta)
        epsilon, delta = more[0], more[1] or amounts.ZERO_DELTA
    if delta == 0:
        return Loss(epsilon=epsilon, mu_squared=_fine(pure_rate_of(epsilon)))
    rate = _rate(event or {}, claimed)
    rate = None if rate is None else _fine(_UP.multiply(Decimal(group * group), rate))
    return Loss(epsilon=epsilon, delta=delta, mu_squared=rate)


def gaussian_loss(epsilon: Decimal, delta: Decimal) -> Loss:
    """Returns the loss of a Gaussian mechanism whose claim is exactly this, for a forecast; pure at delta 0."""
    rate = _fine(pure_rate_of(epsilon)) if delta == 0 else largest_rate(epsilon, delta)
    return Loss(epsilon=epsilon, delta=delta, mu_squared=rate)


_COMPOSED = {"composed", "prior-descent", "dp-sgd-class-weights"}


def _rate(event: Mapping[str, Any], relation: str) -> Decimal | None:
    """Returns mu^2 of an event's Gaussian parts, rounded up; None where there are others, or for a record replaced."""
    match event.get("mechanism"):
        case _ if relation == "replace-one":
            return None
        case "dp-sgd" if event["sampling"] == "poisson" and event["sampling_prob"] == 1:
            return _sum(_gaussian(segment["noise_multiplier"], segment["steps"]) for segment in event["segments"])
        case "gaussian-release":
            return _gaussian(event["noise_multiplier"], 1)
        case tag if tag in _COMPOSED:
            rates = [_rate(part, relation) for part in event["events"]]
            return None if None in rates else _sum(rates)
        case _:
            return None


def _gaussian(noise: float, times: int) -> Decimal:
    exact = Decimal(noise)
    return _UP.divide(Decimal(times), _C.multiply(exact, exact))


@lru_cache(maxsize=1024)
def pure_rate_of(epsilon: Decimal) -> Decimal:
    """Returns mu^2 of epsilon-differential privacy, rounded up: mu = 2 Phi^-1(e^epsilon / (1 + e^epsilon)).

    From epsilon 40 on by Phi(-x) <= exp(-x^2/2)/2, so that mu^2 = 8 epsilon is enough.
    """
    if epsilon > 40:
        return _UP.multiply(Decimal(8), epsilon)
    tail = _C.divide(_ONE, _C.add(_ONE, _C.exp(epsilon)))

    def reached(steps: int) -> bool:
        x = _C.multiply(Decimal(steps), _QUANTUM)
        return _C.multiply(_density(x), _mills(x)) <= _C.subtract(tail, _MARGIN)

    x = _C.multiply(Decimal(_first(reached, 0, 10**13)), _QUANTUM)  # x = 10 is far beyond epsilon 40
    return _UP.multiply(Decimal(4), _UP.multiply(x, x))


def _first(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Returns the first number above `low` from which on it holds, by bisection; it is taken to hold at `high`."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _sum(values: Any) -> Decimal:
    total = Decimal(0)
    for value in values:
        total = _UP.add(total, value)
    return total


def _fine(value: Decimal) -> Decimal:
    return value.quantize(_FINE, rounding=ROUND_CEILING, context=_UP)


# -- which sums a cap admits ---------------------------------------------------------------------------------


def within(spent: Loss, *, rule: Rule, epsilon: Decimal, delta: Decimal | None) -> bool:
    """Tells whether sums stay under a cap; a cap without delta bounds epsilon alone."""
    apart = delta if rule == "basic" or delta is None else _C.multiply(delta, _APART)
    # guard: two rules share delta
    if spent.epsilon <= epsilon and (apart is None or spent.delta <= apart):
        return True
    if rule == "basic" or delta is None or spent.mu_squared is None:
        return False
    return spent.mu_squared <= largest_rate(epsilon, _gaussian_share(delta))


def first_rule(loss: Loss, *, epsilon: Decimal, delta: Decimal | None) -> Rule:
    """Returns the rule of an account whose first charge this is: by which more of it fit, then the smaller epsilon."""
    if delta is None or loss.mu_squared is None:
        return "basic"
    fits: dict[Rule, int] = {rule: more(Loss(), loss, rule=rule, epsilon=epsilon, delta=delta) for rule in _RULES}
    if fits["gaussian"] != fits["basic"]:
        return max(_RULES, key=lambda rule: fits[rule])
    smaller = total(loss, rule="gaussian", delta=delta) < loss.epsilon
    return "gaussian" if smaller else "basic"


_RULES: tuple[Rule, Rule] = ("basic", "gaussian")


def more(spent: Loss, each: Loss, *, rule: Rule, epsilon: Decimal, delta: Decimal | None, most: int = 100_000) -> int:
    """Returns how many more releases of one loss fit under a cap, by an account's rule."""

    def full(count: int) -> bool:
        return not within(spent.plus(each, count), rule=rule, epsilon=epsilon, delta=delta)

    return _first(full, 0, most + 1) - 1 if not full(0) else 0


def total(spent: Loss, *, rule: Rule, delta: Decimal | None) -> Decimal:
    """Returns the epsilon of sums, rounded up to 12 decimals: for display.

    By `basic` it holds at the sum of the deltas, otherwise at the delta of the cap.
    """
    if rule == "basic" or delta is None or spent.mu_squared is None:
        return spent.epsilon
    epsilon = gaussian_epsilon(spent.mu_squared, _gaussian_share(delta))
    return min(epsilon, spent.epsilon) if spent.delta <= _C.multiply(delta, _APART) else epsilon


def _gaussian_share(delta: Decimal) -> Decimal:
    return _C.multiply(delta, _C.subtract(_ONE, _APART))


@lru_cache(maxsize=1024)
def largest_rate(epsilon: Decimal, delta: Decimal) -> Decimal:
    """Returns the largest mu^2, in steps of 1e-18, whose delta at an epsilon is at most this."""

    def exceeds(steps: int) -> bool:
        return gaussian_delta(Decimal(steps).scaleb(-18), epsilon) > delta

    high = 1
    while not exceeds(high):
        high *= 16
    return Decimal(_first(exceeds, high // 16, high) - 1).scaleb(-18)


@lru_cache(maxsize=4096)
def gaussian_epsilon(mu_squared: Decimal, delta: Decimal) -> Decimal:
    """Returns the least multiple of 1e-12 at which mu-GDP has at most this delta."""
    if mu_squared <= 0:
        return amounts.ZERO_EPSILON
    # rho + 2 sqrt(rho ln(1/delta)), rho = mu^2/2, is enough: Bun and Steinke 2016, proposition 1.3
    enough = _C.add(
        _C.divide(mu_squared, Decimal(2)), _C.sqrt(_C.multiply(_C.multiply(Decimal(2), mu_squared), -_C.ln(delta)))
    )
    low, high = -1, int(_C.divide(enough, _QUANTUM).to_integral_value(ROUND_CEILING)) + 1

    def fits(steps: int) -> bool:
        return gaussian_delta(mu_squared, _C.multiply(Decimal(steps), _QUANTUM)) <= delta

    guess = _newton(mu_squared, delta, enough)
    for place in (guess - 2, guess + 2):  # a bracket of four steps, mostly; a bad guess only costs time
        if low < place < high:
            low, high = (low, place) if fits(place) else (place, high)
    least = Decimal(_first(fits, low, high)).scaleb(-12)
    return least.quantize(_QUANTUM, rounding=ROUND_CEILING, context=_UP)


def _newton(mu_squared: Decimal, delta: Decimal, start: Decimal) -> int:
    """Returns, in steps of 1e-12, where the logarithm of the Gaussian's delta is about that of `delta`."""
    mu, epsilon, goal = _C.sqrt(mu_squared), start, _C.ln(delta)
    for _ in range(40):
        reached = gaussian_delta(mu_squared, epsilon)
        a = _C.subtract(_C.divide(epsilon, mu), _C.divide(mu, Decimal(2)))
        slope = _C.multiply(_density(a), _mills(_C.add(a, mu)))
        step = _C.divide(_C.multiply(_C.subtract(_C.ln(reached), goal), reached), slope)
        epsilon = max(_C.add(epsilon, step), Decimal(0))
        if abs(step) < _QUANTUM:
            break
    return int(_C.divide(epsilon, _QUANTUM))


def gaussian_delta(mu_squared: Decimal, epsilon: Decimal) -> Decimal:
    """Returns delta(epsilon) of mu-GDP, rounded up: Phi(-e/mu + mu/2) - e^e Phi(-e/mu - mu/2).

    Balle and Wang 2018, theorem 8; Dong, Roth and Su 2022, corollary 2.13. With a = e/mu - mu/2, b = e/mu + mu/2 the
    densities of a and of b differ by the factor e^e, so it is phi(a) (M(a) - M(b)), M Mills' ratio.
    """
    mu = _C.sqrt(mu_squared)
    middle, half = _C.divide(epsilon, mu), _C.divide(mu, Decimal(2))
    a, b = _C.subtract(middle, half), _C.add(middle, half)
    if a >= 0:
        exact = _C.multiply(_density(a), _C.subtract(_mills(a), _mills(b)))
    else:  # 1 - Phi(a), and the second term by the density of b times e^e
        exact = _C.subtract(
            _C.subtract(_ONE, _C.multiply(_density(-a), _mills(-a))), _C.multiply(_density(a), _mills(b))
        )
    return _UP.add(exact, _MARGIN)


def _density(x: Decimal) -> Decimal:
    return _C.divide(_C.exp(_C.divide(_C.multiply(x, x), Decimal(-2))), _C.sqrt(_C.multiply(Decimal(2), _PI)))


def _mills(x: Decimal) -> Decimal:
    """Returns (1 - Phi(x)) / phi(x) for x >= 0, with an error below 1e-45 of it.

    Up to 8 by Phi(x) = 1/2 + phi(x) (x + x^3/3 + x^5/(3 5) + ...), whose terms are positive; beyond by Laplace's
    continued fraction 1/(x + 1/(x + 2/(x + ...))).
    """
    if x > 8:
        ratio = x
        for k in range(60, 0, -1):
            ratio = _C.add(x, _C.divide(Decimal(k), ratio))
        return _C.divide(_ONE, ratio)
    square, term, series, k = _C.multiply(x, x), x, x, 1
    while term > Decimal("1e-75"):
        k += 2
        term = _C.divide(_C.multiply(term, square), Decimal(k))
        series = _C.add(series, term)
    return _C.subtract(_C.divide(Decimal("0.5"), _density(x)), series)
