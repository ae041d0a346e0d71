"""Settings of an audit: the amount of work, and the branches."""

from collections.abc import Mapping

from pydantic import BaseModel, Field, field_validator

from mechanisms.mechanism import Mechanism
from mechanisms.posterior.config import PseudoPosteriorConfig
from storage.errors import OutOfRange
from tasks.branches.branch import choose
from tasks.method import RELEASE_BRANCH, Method
from tasks.parameters import RetrainParameters

FEWEST_TRIALS = 16
"""With fewer trials there are too few reference runs."""
USUAL_DRAWS = 50


class AuditParameters(BaseModel, frozen=True, extra="forbid", title="Audit"):
    """The amount of work that an audit may do."""

    trials: int = Field(
        default=32,
        ge=0,
        le=100_000,
        title="Trials",
        description=f"Training runs of the whole mechanism, at least {FEWEST_TRIALS}; 0 for none.",
    )
    trial_draws: int = Field(
        default=USUAL_DRAWS,
        ge=2,
        le=100_000,
        title="Samples per trial",
        description="Draws for risks and Delta in each trial; at most as many as the method's own.",
    )
    canaries: int = Field(
        default=32, ge=2, le=1000, title="Canaries", description="Records with a wrong code."
    )
    gradient_canaries: int = Field(
        default=200,
        ge=0,
        le=10_000,
        title="Gradient canaries",
        description="Records with orthogonal features in one more noisy training run, in which "
        "every sum is tested; at most half as many as there are features. 0: no such run.",
    )
    confidence: float = Field(
        default=0.95,
        gt=0.5,
        le=0.999,
        title="Confidence",
        description="Joint confidence of all tests of one audit.",
    )

    @field_validator("trials")
    @classmethod
    def _enough_trials(cls, trials: int) -> int:
        if 0 < trials < FEWEST_TRIALS:
            raise ValueError(
                f"{trials} are too few for a result; use at least {FEWEST_TRIALS}, or 0 for none"
            )
        return trials


def choose_branches(
    names: str, parameters: RetrainParameters, branches: Mapping[str, Method]
) -> tuple[Method, ...]:
    """Returns methods by name; `release` stands for the method that a training run with these
    parameters releases.
    """
    from tasks.branches.released import released_branch  # imports Prefect: configure it first

    if RELEASE_BRANCH not in [name.strip() for name in names.split(",")]:
        return choose(names, parameters, branches)
    released = released_branch(parameters)[0]
    return choose(names, parameters, {**branches, RELEASE_BRANCH: released})


def trial_draws_of(name: str, mechanism: Mechanism, settings: AuditParameters) -> int:
    """Returns the number of draws in each rerun of a planned mechanism, at most as many as the
    mechanism itself uses.
    """
    config: PseudoPosteriorConfig | None = getattr(mechanism, "pseudo_posterior", None)
    if config is None:
        return settings.trial_draws
    limit = min(config.risk_draws, config.sensitivity_draws)
    # guard: test_reruns_with_more_draws_than_the_candidate
    if settings.trial_draws > max(limit, USUAL_DRAWS):
        raise OutOfRange(
            f"--trial-draws: {settings.trial_draws} are more than the {limit} "
            f"samples of {name}, so the trials would claim more than it does and "
            f"would not count. Use at most {limit}.",
            kind="too-many-draws",
        )
    return min(settings.trial_draws, limit)
