"""Searches for the scale c of the weight map at which the measured epsilon meets a target.

The risks r_i come from the unweighted fit and do not depend on c, so max_i alpha_i(c) r_i, which
increases with c, is known without a fit. The Delta of a fit equals this times an inflation factor
near 1: a record with less weight is learned less and has larger losses, and equation 7 multiplies
by k. So c is solved with the inflation of the last fit. The search reads the records, so every fit
is recorded as tuning of c on them.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.posterior.risks import risk_weights

LARGEST_C, MAX_FITS = 10.0, 8
CLOSE, _AIM = 0.9, 0.97
"""A fit is close enough if its Delta is at least the first fraction of the goal. Each fit aims at
the second.
"""


def search(goal: float, *, risk: Tensor, fit: Callable[[float], float]) -> float:
    """The c of the fit with the largest Delta that is at most `goal`, in nats.

    Args:
        risk: r float32 [n] of the unweighted posterior.
        fit: Delta of the last round for a value of c, with g = 0.

    Raises:
        MechanismError: no fit met the goal. The text contains the smallest Delta.
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
