"""What an audit is asked to do: how much to spend, and on which branches."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict, Field

from mechanisms.mechanism import Mechanism
from mechanisms.posterior.risks import PseudoPosteriorConfig
from mechanisms.swag_ppm import SwagPpm
from storage.errors import InputError
from tasks.branches.branch import Branch, choose
from tasks.parameters import RELEASED, RetrainParameters

FEWEST_TRIALS = 16
"""Fewer leave no reference runs to speak of."""
FEWEST_GRADIENT_CANARIES = 1000
"""So many tell half of the noise of epsilon 1 (delta 1e-5) in 70 % of first audits, 100 in 3 %: though, all of them
guessed right, they would refute the claim as well."""
USUAL_DRAWS = 50


class AuditParameters(BaseModel):
    """How much is spent on measuring."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Audit")

    trials: int = Field(
        default=32, ge=0, le=100_000, title="Trials", description="Reruns of the whole mechanism; 0: none."
    )
    trial_draws: int = Field(
        default=USUAL_DRAWS,
        ge=2,
        le=100_000,
        title="Draws a trial",
        description="For risks and for Delta in each trial; at most as many as the candidate's own.",
    )
    canaries: int = Field(default=32, ge=2, le=1000, title="Canaries a family", description="Of each of five.")
    gradient_canaries: int = Field(
        default=1000,
        ge=0,
        le=100_000,
        title="Gradient canaries",
        description="Coins of a white-box test of DP-SGD's noise, in one more fit of such a branch; at least 1000, or "
        "0: none.",
    )
    left_out: int = Field(
        default=5,
        ge=0,
        le=1000,
        title="Records left out",
        description="Of a SWAG posterior refitted without each, to compare exact densities; 0: none.",
    )
    power: bool = Field(
        default=True,
        title="Power",
        description="Rerun formal mechanisms at half of their noise as well: what the tests would have said.",
    )
    confidence: float = Field(
        default=0.95, gt=0.5, le=0.999, title="Confidence", description="Of all that an audit says of one claim."
    )


def choose_branches(names: str, parameters: RetrainParameters, known: Mapping[str, Branch]) -> tuple[Branch, ...]:
    """Branches by name; `release` is what a retrain with these parameters releases from.

    Raises:
        InputError: an unknown branch.
    """
    if parameters.formal is not None:
        from tasks.branches import formal  # brings Prefect, which reads its settings when it is imported

        released = formal.asked_for(parameters).branch
    else:
        last = SwagPpm(round=parameters.rounds[-1])
        released = next(branch.name for branch in known.values() if branch.mechanism == last)
    asked = [released if name.strip() == RELEASED else name for name in names.split(",")]
    return choose(",".join(asked), model=parameters.model, data=parameters.data, known=known)


def check(parameters: RetrainParameters, settings: AuditParameters) -> None:
    """Refuse trials that cannot be.

    Raises:
        InputError: too few to say anything, or of records that are no narratives.
    """
    if 0 < settings.trials < FEWEST_TRIALS:
        raise InputError(f"--trials: {settings.trials} say nothing; give at least {FEWEST_TRIALS}, or 0 for none")
    if 0 < settings.gradient_canaries < FEWEST_GRADIENT_CANARIES:
        raise InputError(
            f"--gradient-canaries: {settings.gradient_canaries} say nothing; give at least {FEWEST_GRADIENT_CANARIES}, "
            "or 0 for none"
        )
    if settings.trials and parameters.data.ingest.kind != "text":
        raise InputError(
            "--trials: reruns plant canaries in narratives; of other records --trials 0 gives the tests without reruns"
        )


def draws_of_trials(name: str, mechanism: Mechanism, settings: AuditParameters) -> int:
    """Draws in each rerun of a settled mechanism; of the usual number as many as the mechanism itself takes.

    A rerun's Delta is a maximum over its draws, and a bound counts only above what the reruns claim: with more draws
    than the candidate's they would claim more than it does, and nothing measured in them would count.

    Raises:
        InputError: more than the usual number, and than the mechanism itself takes.
    """
    config: PseudoPosteriorConfig | None = getattr(mechanism, "pseudo_posterior", None)
    if config is None:
        return settings.trial_draws
    own = min(config.risk_draws, config.sensitivity_draws)
    if settings.trial_draws > max(own, USUAL_DRAWS):
        raise InputError(
            f"--trial-draws: {settings.trial_draws} are more than the {own} that {name} itself takes, so that reruns "
            f"would claim more than it does and count for nothing; give at most {own}"
        )
    return min(settings.trial_draws, own)
