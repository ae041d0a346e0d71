"""The rounds of a pseudo posterior, whatever it is drawn from: which fits there are, and what one hands to the next.

base        the posterior without weights; risks over its draws          -> weights alpha
weighted    the posterior with these weights                             -> sensitivity Delta
reweighted  equation 7, then the same again                              -> Delta, measured anew
censored    one posterior of a likelihood bounded by target_epsilon / 2
both        base, then one of the weighted and bounded likelihood
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from torch import Tensor

from mechanisms.posterior import risks
from mechanisms.posterior.risks import PseudoPosteriorConfig, RiskPass

RoundName = Literal["base", "weighted", "reweighted", "censored", "both"]
ROUNDS: Mapping[str, tuple[RoundName, ...]] = {
    "base": ("base",),
    "weighted": ("base", "weighted"),
    "reweighted": ("base", "weighted", "reweighted"),
    "censored": ("censored",),
    "both": ("base", "both"),
}
"""The fits that a round needs, in order, itself the last."""
WEIGHTED = ("weighted", "reweighted", "both")
BOUNDED = ("censored", "both")


def run(
    last: RoundName, config: PseudoPosteriorConfig, posterior: Callable[[RoundName, Tensor | None], RiskPass]
) -> RiskPass:
    """All rounds up to `last`; what its draws say.

    Args:
        posterior: fits the posterior of a round with these weights alpha float32 [n] (None: all 1) and looks at the
            records at its draws.
    """
    seen: RiskPass | None = None
    alpha: Tensor | None = None
    for name in ROUNDS[last]:
        if seen is not None:
            alpha = weights_after(config, alpha, seen)
        seen = posterior(name, alpha)
    assert seen is not None
    return seen


def weights_after(config: PseudoPosteriorConfig, alpha: Tensor | None, seen: RiskPass) -> Tensor:
    """Weights of the next round: the map of the base round's risks, then equation 7."""
    if alpha is None:
        return risks.risk_weights(seen.risk, c=config.c, g=config.g)
    return risks.reweight(alpha, seen.risk, k=config.k)
