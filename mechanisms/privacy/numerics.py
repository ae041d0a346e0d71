"""Numerics on which claims and bounds depend: one-sided roots, the error of Monte Carlo maxima, and
directed rounding of displayed numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal


def safe_root(
    excess: Callable[[float], float], inside: float, outside: float, *, xtol: float
) -> float:
    """The root of a monotone function, by Brent's method, on the side of `inside`: `excess` is at
    most 0 there and above 0 at `outside`.

    Args:
        xtol: absolute tolerance of the argument. The relative tolerance is a thousandth of it.
    """
    from scipy.optimize import brentq  # takes half a second, and most commands solve nothing

    root = float(brentq(excess, *sorted((inside, outside)), xtol=xtol, rtol=xtol / 1000))  # pyrefly: ignore[bad-argument-type]
    while excess(root) > 0:  # Brent's root may be on either side, within the tolerance
        root += math.copysign(xtol, inside - outside)
    return root


def failure_probability(draws: int) -> float:
    """Probability that one fresh draw exceeds the maximum over `draws` draws: 1/(S+1), by
    exchangeability.
    """
    return 1 / (draws + 1)


def upper_text(value: float | Decimal, digits: int = 4) -> str:
    """Formats an upper bound, rounded up to `digits` significant digits.

    >>> upper_text(11.5211), upper_text(148.41, 3), upper_text(5.0)
    ('11.53', '149', '5')
    """
    return _rounded_text(value, digits, ROUND_CEILING)


def epsilon_text(value: float | Decimal, *, rounding: str = ROUND_CEILING) -> str:
    """Formats an epsilon with at most four decimals, rounded up, as in the ledger and on pages;
    with ROUND_FLOOR rounded down, for remaining amounts.

    >>> epsilon_text(11.52109), epsilon_text(5.0)
    ('11.5211', '5')
    """
    exact = Decimal(repr(value)) if isinstance(value, float) else value
    rounded = exact.quantize(Decimal("0.0001"), rounding=rounding)
    return _without_zeros(format(rounded, "f"))


def lower_text(value: float | Decimal, digits: int = 3) -> str:
    """Formats a lower bound, rounded down to `digits` significant digits.

    >>> lower_text(0.25269), lower_text(1.9999)
    ('0.252', '1.99')
    """
    return _rounded_text(value, digits, ROUND_FLOOR)


def _rounded_text(value: float | Decimal, digits: int, rounding: str) -> str:
    exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    rounded = Context(prec=digits, rounding=rounding).plus(exact)
    shown = format(rounded, "f")
    return _without_zeros(shown) if "." in shown else shown


def _without_zeros(shown: str) -> str:
    return shown.rstrip("0").rstrip(".")
