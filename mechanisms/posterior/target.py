"""Finds the scale c of the weight map that brings the measured epsilon to a target.

The risks r_i are of the unweighted fit and depend on no c, so that max_i alpha_i(c) r_i, which
grows with c, is known without a fit. Delta of a fit is that times an inflation near 1: a record of
less weight is learned less and surprises more, and equation 7 multiplies by k. So c is solved under
the inflation of the last fit. The search reads the records: c is tuned on them, and every fit is
recorded as that.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.posterior.risks import risk_weights

LARGEST_C, MAX_FITS = 10.0, 8
CLOSE, _AIM = 0.9, 0.97
"""A fit whose Delta is at least the first share of the goal is close enough; each aims at the
second.
"""


def search(goal: float, *, risk: Tensor, fit: Callable[[float], float]) -> float:
    """Returns the c whose fit has the largest Delta that is at most `goal`, in nats.

    Args:
        risk: r float32 [n] of the unweighted posterior.
        fit: Delta of the last round at a c, with g = 0.

    Raises:
        MechanismError: no fit was at or below the goal; names the smallest Delta.
    """
    from scipy.optimize import brentq

    def predicted(c: float) -> float:
        return float((risk_weights(risk, c=c, g=0.0) * risk).max())

    seen, inflation = dict[float, float](), 1.0
    while len(seen) < MAX_FITS:
        aim, c = _AIM * goal / inflation, LARGEST_C
        if predicted(LARGEST_C) > aim:
            c = float(f"{brentq(lambda c, aim=aim: predicted(c) - aim, 0.0, LARGEST_C):.4g}")
        if c in seen:
            break
        seen[c] = fit(c)
        if CLOSE * goal <= seen[c] <= goal or (c == LARGEST_C and seen[c] <= goal):
            return c
        inflation = seen[c] / predicted(c)
    met = {c: delta for c, delta in seen.items() if delta <= goal}
    if not met:
        raise MechanismError(
            f"no c gives a Delta of at most {goal:.3g} nats. The smallest of "
            f"{len(seen)} fits was {min(seen.values()):.3g}. Raise target_epsilon",
            kind="unreachable-sensitivity",
        )
    return max(met, key=lambda c: met[c])
