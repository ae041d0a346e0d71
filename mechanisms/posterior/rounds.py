"""The rounds of a pseudo posterior, whatever it is drawn from: which fits there are, and what one
hands to the next.

base        the posterior without weights; risks over its draws          -> weights alpha
weighted    the posterior with these weights                             -> sensitivity Delta
reweighted  equation 7, then the same again                              -> Delta, measured anew

`run` is the one chain. A mechanism runs it once, an audit many times at once; they differ in how a
round is fitted and measured, and in the type of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from mechanisms.posterior.config import PseudoPosteriorConfig
from mechanisms.privacy.events import SwagPpmEvent

RoundName = Literal["base", "weighted", "reweighted"]
Purpose = Literal["risk", "sensitivity"]
Weights = TypeVar("Weights")
Measured = TypeVar("Measured")


@dataclass(frozen=True)
class Round:
    """Describes a round: the one before it, which its weights come from."""

    after: RoundName | None = None

    @property
    def purpose(self) -> Purpose:
        return "sensitivity" if self.after else "risk"

    @property
    def reweighted(self) -> bool:
        """Checks whether its weights are those of the round before by equation 7; otherwise risks
        give them.
        """
        return self.after is not None and TABLE[self.after].after is not None

    def draws(self, config: PseudoPosteriorConfig) -> int:
        return config.risk_draws if self.purpose == "risk" else config.sensitivity_draws


TABLE: Mapping[str, Round] = {
    "base": Round(),
    "weighted": Round(after="base"),
    "reweighted": Round(after="weighted"),
}


ROUNDS: Mapping[str, tuple[RoundName, ...]] = {
    "base": ("base",),
    "weighted": ("base", "weighted"),
    "reweighted": ("base", "weighted", "reweighted"),
}
"""The fits that a round needs, in order, itself the last."""


def run(
    names: Sequence[RoundName],
    fit: Callable[[RoundName, Weights | None], Measured],
    compute_weights: Callable[[RoundName, Weights | None, Measured], Weights | None],
    *,
    earlier: tuple[RoundName, Weights | None, Measured] | None = None,
) -> dict[RoundName, Measured]:
    """Runs these rounds in order; returns what was measured in each.

    Args:
        fit: fits the posterior of a round with these weights (None: all 1), and measures the
            records at its draws.
        compute_weights: returns the weights of a round, from those of the round before and from
            what was measured there.
        earlier: a round that was run already, with its weights and what was measured in it: the
            rounds up to it are left out.
    """
    weights: Weights | None = None
    measured: dict[RoundName, Measured] = {}
    if earlier is not None:
        done, weights, measured[earlier[0]] = earlier
        names = names[names.index(done) + 1 :]
    for name in names:
        before = TABLE[name].after
        weights = None if before is None else compute_weights(name, weights, measured[before])
        measured[name] = fit(name, weights)
    return measured


def event_of(
    round_name: str, *, snapshots: int, rank: int, sensitivity: float, draws: int
) -> SwagPpmEvent:
    """Returns the event of one round.

    Args:
        sensitivity: Delta of the round; of the base round, whose weights are 1, the largest risk.
    """
    return SwagPpmEvent(
        reweighted=round_name == "reweighted",
        snapshots=snapshots,
        rank=rank,
        sensitivity_draws=draws,
        sensitivity=sensitivity,
    )
