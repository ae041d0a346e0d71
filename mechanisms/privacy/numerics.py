"""Numerics that claims and bounds depend on: a root on the safe side, and what finitely many draws
leave open.
"""

from __future__ import annotations

import math
from collections.abc import Callable


def safe_root(
    excess: Callable[[float], float], inside: float, outside: float, *, xtol: float
) -> float:
    """Returns a monotone function's root, by Brent's method: at most 0 here as at `inside`, above 0
    at `outside`.

    xtol: absolute tolerance of the argument; a thousandth of it is the relative one.
    """
    from scipy.optimize import brentq  # takes half a second, and most commands solve nothing

    root = float(brentq(excess, *sorted((inside, outside)), xtol=xtol, rtol=xtol / 1000))  # pyrefly: ignore[bad-argument-type]
    while excess(root) > 0:  # Brent's root lies within the tolerance on either side
        root += math.copysign(xtol, inside - outside)
    return root


def failure_probability(draws: int) -> float:
    """Probability that one fresh draw exceeds the maximum over `draws` draws: 1/(S+1), by
    exchangeability.
    """
    return 1 / (draws + 1)
