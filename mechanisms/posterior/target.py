"""Finds c and k that bring the measured epsilon to a target, from what the fits so far say.

What interacts with what:

- The risks r_i come from the unweighted fit and depend on none of c, g, k: they are measured once.
- Delta of the weighted fit is near max_i alpha_i(c, g) r_i, times an inflation, because a record of low weight is
  learned less and surprises more. The maximum is known without a fit; only the inflation must be measured.
- g > 0 keeps Delta at or above g max r, g < 0 does with an offset what c does: g stays 0, and c alone, which Delta
  grows with, is searched.
- Equation 7 puts every record's Delta_i at k Delta at the risks measured, again times an inflation. So k is solved when
  the weighted fit stands, and that fit need only be at or above the target, since k < 1 cannot raise it.

So a target costs the base fit, one weighted and one reweighted fit when the inflations are near 1, and one more fit for
each that is not. The search reads the records: c and k are tuned on them, and every fit is recorded as that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.posterior.risks import risk_weights

LARGEST_C = 10.0
MAX_FITS = 8
"""Weighted and reweighted fits of one search, in all."""
CLOSE = 0.9
"""A fit whose Delta is between this share of the target's and the target's is close enough."""
_AIM = 0.97
"""What each proposal aims at, as a share of the target: the maximum over draws is noisy."""
_FLATTEST = 0.25
_ROOM = 1.15
"""How far above the target the weighted fit is aimed where a reweighted one follows: k brings it down."""


@dataclass(frozen=True)
class Trial:
    """One fit of the search: its settings and the Delta measured. `k` is None for a weighted fit."""

    c: float
    k: float | None
    sensitivity: float


@dataclass(frozen=True)
class Solution:
    """Settings that meet the target, and every fit that it took."""

    c: float
    k: float | None
    sensitivity: float
    trials: tuple[Trial, ...]


def search(
    *,
    epsilon: float,
    epsilon_at: Callable[[float], float],
    risk: Tensor,
    fit_weighted: Callable[[float], float],
    fit_reweighted: Callable[[float, float], float] | None,
) -> Solution:
    """Fit until the claim of the last round is at most `epsilon`, and near it or as large as it gets.

    Args:
        epsilon_at: what the accountant claims at a Delta, in nats a record; proportional to it.
        risk: r float32 [n] of the unweighted posterior.
        fit_weighted: Delta of the fit with weights from (c, g = 0).
        fit_reweighted: Delta of the fit after equation 7, of (c, k); None where the weighted fit is the last.

    Raises:
        MechanismError: the target was not met in so many fits; names the nearest.
    """
    goal, trials = epsilon / epsilon_at(1.0), list[Trial]()
    aim = _ROOM * goal if fit_reweighted else _AIM * goal
    inflation, best = 1.0, None
    while len(trials) < MAX_FITS and best is None:
        c = propose_c(risk, aim / inflation)
        if trials and trials[-1].c == c:  # nothing more to gain from c
            best = trials[-1] if fit_reweighted else None
            break
        delta = fit_weighted(c)
        trials.append(Trial(c, None, delta))
        if fit_reweighted:
            best = trials[-1] if delta >= goal or c == LARGEST_C else None
        elif delta <= goal and (delta >= CLOSE * goal or c == LARGEST_C):
            best = trials[-1]
        inflation = delta / predicted(risk, c)
    if fit_reweighted and best is not None:
        weighted, best = best, None
        fits = [(0.0, math.log(weighted.sensitivity))]  # (ln k, ln Delta); k = 1 leaves Delta about where it is
        while len(trials) < MAX_FITS and best is None:
            k = _propose_k(fits, math.log(_AIM * goal))
            delta = fit_reweighted(weighted.c, k)
            trials.append(Trial(weighted.c, k, delta))
            if delta <= goal and (delta >= CLOSE * goal or k == 0.999):
                best = trials[-1]
            fits.append((math.log(k), math.log(delta)))
    if best is None:
        best = _best_below(trials, goal, reweighted=fit_reweighted is not None)
    if best is None:
        nearest = min(trials, key=lambda trial: trial.sensitivity).sensitivity
        raise MechanismError(
            f"target_epsilon {epsilon:g} was not met in {MAX_FITS} fits; the smallest epsilon was "
            f"{epsilon_at(nearest):.3g}: raise it"
        )
    return Solution(best.c, best.k, best.sensitivity, tuple(trials))


def _propose_k(fits: list[tuple[float, float]], goal: float) -> float:
    """The next k, by a secant in logarithms: Delta goes like k to a power, 1 at first, then as the last two fits say.

    The power is below 1 where records of less weight surprise more; it is kept at or above `_FLATTEST`.
    """
    power = 1.0
    if len(fits) > 1:
        (k0, d0), (k1, d1) = fits[-2:]
        power = min(max((d1 - d0) / (k1 - k0), _FLATTEST), 1.0) if k1 != k0 else 1.0
    k, delta = fits[-1]
    return min(math.exp(k + (goal - delta) / power), 0.999)


def _best_below(trials: list[Trial], goal: float, *, reweighted: bool) -> Trial | None:
    """The largest Delta of a last round that meets the target, if any does."""
    fair = [t for t in trials if t.sensitivity <= goal and (t.k is not None) == reweighted]
    return max(fair, key=lambda trial: trial.sensitivity, default=None)


def predicted(risk: Tensor, c: float) -> float:
    """max_i alpha_i(c, 0) r_i: Delta of the weighted fit if risks stayed as they are."""
    return float((risk_weights(risk, c=c, g=0.0) * risk).max())


def propose_c(risk: Tensor, goal: float) -> float:
    """The c at which the predicted Delta, which grows with c, is `goal`: four digits of it, at most `LARGEST_C`."""
    if predicted(risk, LARGEST_C) <= goal:
        return LARGEST_C
    from scipy.optimize import brentq

    return float(f"{brentq(lambda c: predicted(risk, c) - goal, 0.0, LARGEST_C):.4g}")
