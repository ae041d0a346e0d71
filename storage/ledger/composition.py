"""Composition of releases: what each costs, as its event says, and the epsilon of all of them at a policy's delta.

A release is a Gaussian mechanism (mu^2), a sampled one (a Renyi curve), epsilon-differentially private (pure), or known
by its claim (epsilon, delta) alone. Losses are added term by term. The rule by which an account turns its sums into an
epsilon is fixed with its first charge, by that charge and the cap, so that no output chooses it:

* `gaussian`: every release is mu-GDP, and sum of mu^2 is bounded. Smith and Thakurta, Fully Adaptive Composition for
  Gaussian Differential Privacy (2022, arXiv 2210.17520): later parameters, and when to stop, may be chosen
  in the light of earlier outputs, at the same parameters as if they were fixed. Pure epsilon is
  2 Phi^-1(e^epsilon/(1 + e^epsilon))-GDP: between the corners of its trade-off function, on or above the Gaussian's
  convex curve, it is linear.
* `renyi`: for one order, Feldman and Zrnic, Individual Privacy Accounting via a Renyi Filter (2021); with
  a failure probability of single releases, Whitehouse et al., Fully Adaptive Composition in Differential Privacy
  (2023). An order may be chosen at the end: each of K has a K-th of delta.
* `mixed`: an account that began `gaussian` and took a release that is not: the `renyi` rule, with the share of delta
  that was set apart for it (1 %).
* `basic`: epsilons and deltas of the claims add up (Dwork and Roth 2014, theorem 3.16).

Where two rules may each allow a release, each has its share of delta: delta(epsilon) is the expectation of
max(0, 1 - e^(epsilon - loss)) over outputs. Of outputs at whose end a rule holds it is at most that rule's delta (stop
the process where the rule ends), and the parts add up. Where all is pure the loss never exceeds the sum: no share.

Arithmetic is `decimal`, whose exp, ln and sqrt are correctly rounded, so that every process computes the same digits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import ROUND_CEILING, Context, Decimal
from functools import lru_cache
from math import comb
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, PlainSerializer

from storage.ledger import amounts

Rule = Literal["basic", "gaussian", "renyi", "mixed"]
ORDERS = (2, 3, 4, 5, 6, 8, 11, 16, 23, 32, 64)
"""Renyi orders; whole, since the curve of a sampled Gaussian is a finite sum there."""
UNREACHABLE = Decimal("Infinity")

_C = Context(prec=80, Emin=-(10**9), Emax=10**9)
_UP = Context(prec=80, Emin=-(10**9), Emax=10**9, rounding=ROUND_CEILING)
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803")
_MARGIN = Decimal("1e-40")
"""Above every error of these functions: 80 digits, of which subtraction may take 30."""
_ONE = Decimal(1)
_QUANTUM = Decimal("1e-12")
_FINE = Decimal("1e-18")
_LATER = Decimal("0.01")
"""Share of delta that a `gaussian` account sets apart for a release that is not."""
_FAILURE = Decimal("0.25")
"""Share of a Renyi rule's delta that the deltas of single releases may take."""

Sum = Annotated[Decimal, PlainSerializer(amounts.text, when_used="json")]


class Loss(BaseModel):
    """Holds what releases cost, in terms that add up; None where a term does not exist."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epsilon: Sum = amounts.ZERO_EPSILON
    """Of the claims."""
    delta: Sum = amounts.ZERO_DELTA
    """Of the claims."""
    pure: Sum | None = amounts.ZERO_EPSILON
    """Epsilon with delta 0."""
    mu_squared: Sum | None = amounts.ZERO_DELTA
    """Of Gaussian differential privacy."""
    curve: tuple[Sum, ...] = (amounts.ZERO_DELTA,) * len(ORDERS)
    """Renyi differential privacy at `ORDERS`."""
    failure: Sum = amounts.ZERO_DELTA
    """Probability that the curve does not hold."""

    def plus(self, other: Loss, times: int = 1) -> Loss:
        """Returns the sum with another loss, taken so many times."""

        def add(left: Decimal, right: Decimal) -> Decimal:
            return _C.fma(right, Decimal(times), left)

        def both(left: Decimal | None, right: Decimal | None) -> Decimal | None:
            return None if left is None or right is None else add(left, right)

        return Loss(
            epsilon=add(self.epsilon, other.epsilon),
            delta=add(self.delta, other.delta),
            pure=both(self.pure, other.pure),
            mu_squared=both(self.mu_squared, other.mu_squared),
            curve=tuple(map(add, self.curve, other.curve)),
            failure=add(self.failure, other.failure),
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
        event: as the ledger's row has it. Its figures alone count, where they are enough.
        epsilon, delta: of the claim, which holds under the relation `claimed`.
    """
    doubled = relation != claimed  # a replaced record is one removed and one added
    # guard: a record replaced is two
    group = 2 * records_per_unit if doubled else records_per_unit
    if doubled:
        more = amounts.as_replace_one(epsilon, delta)
        epsilon, delta = more[0], more[1] or amounts.ZERO_DELTA
    if delta == 0:
        return _pure(epsilon, delta)
    parts = _parts(event or {}, claimed)
    # guard: a sampled release of a unit counts by its claim
    if parts is None or (group > 1 and any(prob < 1 for _, prob, _ in parts[0])):
        return Loss(
            epsilon=epsilon, delta=delta, pure=None, mu_squared=None, curve=_pure(epsilon, delta).curve, failure=delta
        )
    gaussians, pures = parts
    squared = Decimal(group * group)
    rate = _UP.multiply(squared, _sum(_UP.divide(Decimal(k), _UP.multiply(n, n)) for n, p, k in gaussians if p == 1))
    curve = tuple(
        _fine(
            _sum(
                (
                    _UP.divide(_UP.multiply(Decimal(order), rate), Decimal(2)),
                    *(_UP.multiply(Decimal(k), _sampled(n, p)[place]) for n, p, k in gaussians if p < 1),
                    *(_UP.multiply(squared, _concentrated(one, order, k, mild)) for one, k, mild in pures),
                )
            )
        )
        for place, order in enumerate(ORDERS)
    )
    mu_squared = None
    if all(p == 1 for _, p, _ in gaussians):
        pure_rate = _sum(_UP.multiply(Decimal(k), pure_rate_of(one)) for one, k, _ in pures)
        mu_squared = _fine(_UP.add(rate, _UP.multiply(squared, pure_rate)))
    return Loss(epsilon=epsilon, delta=delta, pure=None, mu_squared=mu_squared, curve=curve)


def gaussian_loss(epsilon: Decimal, delta: Decimal) -> Loss:
    """Returns the loss of a Gaussian mechanism whose claim is exactly this, for a forecast; pure at delta 0."""
    if delta == 0:
        return _pure(epsilon, delta)
    rate = Decimal(_largest_rate(epsilon, delta)).scaleb(-18)
    curve = tuple(_fine(_UP.divide(_UP.multiply(Decimal(order), rate), Decimal(2))) for order in ORDERS)
    return Loss(epsilon=epsilon, delta=delta, pure=None, mu_squared=rate, curve=curve)


_COMPOSED = {"composed", "prior-descent", "dp-sgd-class-weights"}
_Gaussians = list[tuple[Decimal, Decimal, int]]
"""(noise multiplier, sampling probability, steps)."""
_Pures = list[tuple[Decimal, int, bool]]
"""(epsilon, times, whether each is an exponential choice)."""


def _parts(event: Mapping[str, Any], relation: str) -> tuple[_Gaussians, _Pures] | None:
    """Reads the Gaussian and the pure parts of an event; None where there are others.

    A float of the event is its exact binary value.
    """
    replaced = relation == "replace-one"
    match event.get("mechanism"), replaced:
        case "dp-sgd", False if event["sampling"] == "poisson":
            prob = Decimal(event["sampling_prob"])
            return [(Decimal(s["noise_multiplier"]), prob, s["steps"]) for s in event["segments"]], []
        case "gaussian-release", False:
            return [(Decimal(event["noise_multiplier"]), _ONE, 1)], []
        case "gaussian-release-replaced", True:
            return [(Decimal(event["noise_multiplier"]), _ONE, event["releases"])], []
        case "laplace-release", True:
            return [], [(_UP.divide(_ONE, Decimal(event["noise_multiplier"])), 1, False)]
        case "exponential-choice", True:
            return [], [(Decimal(event["epsilon"]), event["choices"], True)]
        case tag, _ if (tag in _COMPOSED and not replaced) or (tag == "composed-replaced" and replaced):
            gaussians: _Gaussians = []
            pures: _Pures = []
            for part in event["events"]:
                inner = _parts(part, relation)
                if inner is None:
                    return None
                gaussians += inner[0]
                pures += inner[1]
            return gaussians, pures
        case _:
            return None


def _pure(epsilon: Decimal, delta: Decimal) -> Loss:
    return Loss(
        epsilon=epsilon,
        delta=delta,
        pure=epsilon,
        mu_squared=_fine(pure_rate_of(epsilon)),
        curve=tuple(_fine(min(_concentrated(epsilon, order, 1, False), epsilon)) for order in ORDERS),
    )


def _concentrated(epsilon: Decimal, order: int, times: int, choice: bool) -> Decimal:
    """Returns the Renyi loss of pure releases: epsilon^2/2-concentrated (Bun and Steinke 2016, proposition 3.3), a
    choice by the exponential mechanism epsilon^2/8 (Cesar and Rogers 2021)."""
    square = _UP.multiply(Decimal(order * times), _UP.multiply(epsilon, epsilon))
    return _UP.divide(square, Decimal(8 if choice else 2))


@lru_cache(maxsize=4096)
def _sampled(noise: Decimal, prob: Decimal) -> tuple[Decimal, ...]:
    """Returns the Renyi loss of one Poisson-sampled Gaussian step at each order.

    Mironov, Talwar and Zhang, Renyi Differential Privacy of the Sampled Gaussian Mechanism (2019), section 3.3: at a
    whole order a the logarithm of sum_k C(a, k) (1 - q)^(a - k) q^k e^(k(k - 1)/(2 noise^2)), over a - 1. It is the
    larger one of the two directions (the same paper, section 3.1).
    """
    growth = _C.exp(_C.divide(_ONE, _C.multiply(noise, noise)))
    sampled, rest, factor, step = [_ONE], [_ONE], [_ONE], _ONE
    for _ in range(ORDERS[-1]):
        sampled.append(_C.multiply(sampled[-1], prob))
        rest.append(_C.multiply(rest[-1], _C.subtract(_ONE, prob)))
        factor.append(_C.multiply(factor[-1], step))
        step = _C.multiply(step, growth)
    losses: list[Decimal] = []
    for order in ORDERS:
        moment = Decimal(0)
        for k in range(order + 1):
            weight = _C.multiply(_C.multiply(sampled[k], rest[order - k]), factor[k])
            moment = _C.fma(Decimal(comb(order, k)), weight, moment)
        losses.append(_UP.add(max(_UP.divide(_C.ln(moment), Decimal(order - 1)), Decimal(0)), _MARGIN))
    return tuple(losses)


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


def _largest_rate(epsilon: Decimal, delta: Decimal) -> int:
    """Returns the largest mu^2, in steps of 1e-18, whose delta at an epsilon is at most this."""

    def exceeds(steps: int) -> bool:
        return steps > 0 and gaussian_delta(Decimal(steps).scaleb(-18), epsilon) > delta

    # Newton's method for ln delta in mu. It starts where mu^2/2 + mu sqrt(2 ln(1/delta)) is epsilon, which is little
    # enough: Bun and Steinke 2016, proposition 1.3; as is delta. The derivative of delta is phi(epsilon/mu - mu/2).
    root = _C.sqrt(_C.multiply(Decimal(-2), _C.ln(delta)))
    mu = max(_C.subtract(_C.sqrt(_C.fma(root, root, _C.multiply(Decimal(2), epsilon))), root), delta)
    for _ in range(40):
        reached = gaussian_delta(_C.multiply(mu, mu), epsilon)
        slope = _density(_C.subtract(_C.divide(epsilon, mu), _C.divide(mu, Decimal(2))))
        step = _C.divide(_C.multiply(_C.subtract(_C.ln(delta), _C.ln(reached)), reached), slope)
        mu = _C.add(mu, step)
        if abs(step) < _FINE:
            break
    guess, width = max(int(_C.multiply(mu, mu).scaleb(18)), 0), 2
    while exceeds(low := max(guess - width, 0)) or not exceeds(guess + width):  # a bad guess only costs time
        width *= 2
    return _first(exceeds, low, guess + width) - 1


def _sum(values: Any) -> Decimal:
    total = Decimal(0)
    for value in values:
        total = _UP.add(total, value)
    return total


def _fine(value: Decimal) -> Decimal:
    return value.quantize(_FINE, rounding=ROUND_CEILING, context=_UP)


# -- the epsilon of sums -------------------------------------------------------------------------------------


def total(spent: Loss, *, rule: Rule, delta: Decimal, near: Decimal | None = None) -> Decimal:
    """Returns the epsilon of sums at the delta of a cap, rounded up to 12 decimals; infinite where there is none.

    Args:
        near: where to look first; it changes nothing but the time.
    """
    if rule == "basic":
        return spent.epsilon
    if rule == "gaussian":
        if spent.mu_squared is None:
            return UNREACHABLE
        epsilon = gaussian_epsilon(spent.mu_squared, _gaussian_share(delta), near)
    else:
        # guard: what is not Gaussian has the other share
        epsilon = _renyi(spent, _C.multiply(delta, _LATER) if rule == "mixed" else delta)
    return epsilon if spent.pure is None else min(epsilon, spent.pure)


def within(spent: Loss, *, rule: Rule, epsilon: Decimal, delta: Decimal) -> bool:
    """Checks that sums stay under a cap; the same as by `total`, with one look at the Gaussian's delta."""
    if rule == "basic":
        return spent.epsilon <= epsilon and spent.delta <= delta
    if rule == "gaussian" and spent.mu_squared is not None:
        fits = spent.mu_squared <= 0 or gaussian_delta(spent.mu_squared, epsilon) <= _gaussian_share(delta)
        return fits or (spent.pure is not None and spent.pure <= epsilon)
    return total(spent, rule=rule, delta=delta) <= epsilon


def next_rule(before: Rule | None, spent: Loss, added: Loss, *, epsilon: Decimal, delta: Decimal | None) -> Rule:
    """Returns the rule of an account after a charge.

    Args:
        before: the account's rule; None before its first charge.
        spent: the sums after it.
        epsilon, delta: the cap.
    """
    if delta is None or before == "basic":
        return "basic"
    # guard: the rule is fixed by the first charge
    if before is not None:
        return "mixed" if before == "gaussian" and spent.mu_squared is None else before
    tight: Rule = "renyi" if spent.mu_squared is None else "gaussian"
    rules: tuple[Rule, Rule] = (tight, "basic")

    def merit(rule: Rule) -> tuple[int, Decimal]:
        return more(Loss(), added, rule=rule, epsilon=epsilon, delta=delta), -total(added, rule=rule, delta=delta)

    return max(rules, key=merit)


def more(spent: Loss, each: Loss, *, rule: Rule, epsilon: Decimal, delta: Decimal, most: int = 100_000) -> int:
    """Returns how many more releases of one loss fit under a cap, by an account's rule."""
    if rule == "gaussian" and each.mu_squared is None:
        rule = "mixed"

    def fits(count: int) -> bool:
        return within(spent.plus(each, count), rule=rule, epsilon=epsilon, delta=delta)

    low, high = 0, 1
    while high <= most and fits(high):
        low, high = high, 2 * high
    return _first(lambda count: not fits(count), low, min(high, most + 1)) - 1


def _gaussian_share(delta: Decimal) -> Decimal:
    # guard: two rules share delta
    return _C.multiply(delta, _C.subtract(_ONE, _LATER))


def gaussian_epsilon(mu_squared: Decimal, delta: Decimal, near: Decimal | None = None) -> Decimal:
    """Returns the least multiple of 1e-12 at which mu-GDP has at most this delta."""
    if mu_squared <= 0:
        return amounts.ZERO_EPSILON
    if near is not None and near > 0 and _exact(mu_squared, delta, near):
        return near
    return _gaussian_epsilon(mu_squared, delta)


def _exact(mu_squared: Decimal, delta: Decimal, epsilon: Decimal) -> bool:
    less = _C.subtract(epsilon, _QUANTUM)
    return gaussian_delta(mu_squared, epsilon) <= delta and (less < 0 or gaussian_delta(mu_squared, less) > delta)


@lru_cache(maxsize=4096)
def _gaussian_epsilon(mu_squared: Decimal, delta: Decimal) -> Decimal:
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


def _renyi(spent: Loss, delta: Decimal) -> Decimal:
    """Returns the least epsilon over the orders, each with its share of delta.

    Canonne, Kamath and Steinke, The Discrete Gaussian for Differential Privacy (2020), proposition 12.
    """
    # guard: single deltas take no more than their share
    if spent.failure > _C.multiply(delta, _FAILURE):
        return UNREACHABLE
    share = _C.divide(_C.multiply(delta, _C.subtract(_ONE, _FAILURE)), Decimal(len(ORDERS)))
    best = UNREACHABLE
    for order, loss in zip(ORDERS, spent.curve, strict=True):
        above = Decimal(order - 1)
        conversion = _C.divide(_C.subtract(-_C.ln(share), _C.ln(Decimal(order))), above)
        conversion = _C.add(conversion, _C.ln(_C.divide(above, Decimal(order))))
        best = min(best, _C.add(_C.add(loss, conversion), _MARGIN))
    return max(best, Decimal(0)).quantize(_QUANTUM, rounding=ROUND_CEILING, context=_UP)
