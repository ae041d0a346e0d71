"""The rounds of a pseudo posterior, for any sampler: which fits there are and what they pass on.

  base        the posterior without weights; risks over its draws  -> weights alpha
  weighted    the posterior with these weights                     -> sensitivity Delta
  reweighted  equation 7, then the same again                      -> Delta, measured again

`run` implements the sequence. A mechanism runs it once, and an audit runs it for many trials in
parallel. They differ in how a round is fitted and measured, and in the type of weights.
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
    """A round, with the preceding round from which its weights are computed."""

    after: RoundName | None = None

    @property
    def purpose(self) -> Purpose:
        return "sensitivity" if self.after else "risk"

    @property
    def reweighted(self) -> bool:
        """Whether its weights come from equation 7 applied to the preceding round's weights,
        instead of from risks.
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
"""The fits that a round requires, in order, ending with the round itself."""


def run(
    names: Sequence[RoundName],
    fit: Callable[[RoundName, Weights | None], Measured],
    compute_weights: Callable[[RoundName, Weights | None, Measured], Weights | None],
    *,
    earlier: tuple[RoundName, Weights | None, Measured] | None = None,
) -> dict[RoundName, Measured]:
    """Runs these rounds in order; returns the measurements of each.

    Args:
        fit: fits the posterior of a round with these weights (None: all 1), and measures the
            records at its draws.
        compute_weights: computes the weights of a round from the weights and measurements of the
            preceding round.
        earlier: a completed round with its weights and measurements. Rounds up to it are skipped.
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
    """The event of one round.

    Args:
        sensitivity: Delta of the round. For the base round, in which all weights are 1, this is the
            largest risk.
    """
    return SwagPpmEvent(
        reweighted=round_name == "reweighted",
        snapshots=snapshots,
        rank=rank,
        sensitivity_draws=draws,
        sensitivity=sensitivity,
    )
