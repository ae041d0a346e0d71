"""Stage: compares a candidate's claim with the results of reruns and gradient canaries.

There are two kinds of evidence, each with half of the false-alarm rate. Reruns repeat the whole
mechanism on records and canaries that a coin toss includes or excludes, and bound epsilon for
adding or removing one record. Gradient canaries are records in one more fit of a noisy gradient
mechanism: guesses about them bound its noise, and checks of its sums find faults. One audit
therefore contradicts a true claim with probability 1 - confidence at most. An audit repeated with
other draws is another test, and contradictions are permanent, so auditing a true claim k times has
k times that risk.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from pydantic import BaseModel

from mechanisms.audit.gradient_canaries import Check
from mechanisms.privacy.events import decode, descent_of
from storage.artifacts import ArtifactRef
from storage.json_values import Config, Figures
from tasks.auditing.bounds import Bound, gradient_bound, trial_bounds
from tasks.auditing.pool import Pool
from tasks.auditing.trials import Trials
from tasks.running.stage import Step, Work


class BoundFigures(BaseModel, frozen=True):
    """What one kind of guesses bounds."""

    name: str
    epsilon: float
    guesses: int
    correct: int
    coins: int
    reach: float
    claimed_in_trials: float | None


class AuditFigures(BaseModel, frozen=True):
    """What an audit measured, as the manifest of its stage has it."""

    trials: int
    gradient_runs: int
    checks: dict[str, float]
    """P-values of the checks of the noisy sums, by name."""
    epsilon_lower_bound: float
    noise_at_most: float | None
    epsilon_of_any: float | None
    reach: float
    faults: tuple[str, ...]
    """Checks that failed."""
    bounds: tuple[BoundFigures, ...]


def measure(name: str, *, seed: int, inputs: Mapping[str, ArtifactRef], **design: Any) -> Step:
    """Declares the audit of one candidate.

    Args:
        confidence, delta, event: of the claim. Delta is 0 if the claim has none; the event is JSON.
        inputs: `fitted` (the candidate), and `pool` with `trials`, `gradients`, or both.
        trials_of: name of the candidate's mechanism in the trials.
    """
    return Step(
        name="audit",
        label=f"audit {name}, seed {seed}",
        config={"seed": seed, **design},
        inputs=dict(inputs),
        body=partial(_measure, **design),
        modules=("tasks.auditing.measure",),
    )


def _measure(
    work: Work, *, confidence: float, delta: float, event: Config, trials_of: str
) -> Figures:
    alpha = (1 - confidence) / 2
    bounds: list[Bound] = []
    faults: list[str] = []
    trial_count = gradient_runs = 0
    checks: dict[str, float] = {}
    if "trials" in work.inputs:
        trials = Trials.load(work.inputs["trials"], trials_of)
        bounds += trial_bounds(Pool.load(work.inputs["pool"]), trials, delta=delta, alpha=alpha)
        trial_count = len(trials.ell)
    if "gradients" in work.inputs:
        gradients = work.context.store.figures(work.refs["gradients"])
        alpha_per_test = alpha / (len(Check) + 1)
        if gradients["coins"]:
            descent = descent_of(decode(dict(event)))
            right, coins = gradients["right"], gradients["coins"]
            bounds.append(
                gradient_bound(descent, right=right, coins=coins, delta=delta, alpha=alpha_per_test)
            )
        checks = gradients["checks"]
        faults = [name for name, p_value in checks.items() if p_value <= alpha_per_test]
        gradient_runs = int(bool(checks))
    best = max(bounds, key=lambda bound: bound.refutes, default=None)
    # guard: test_reruns_that_claim_as_much_as_could_be_measured
    reach = max((bound.could_refute for bound in bounds), default=0.0)
    measured = AuditFigures(
        trials=trial_count,
        gradient_runs=gradient_runs,
        checks=checks,
        epsilon_lower_bound=best.refutes if best else 0.0,
        noise_at_most=best.noise_at_most if best else None,
        epsilon_of_any=best.epsilon_of_any if best else None,
        reach=reach,
        faults=tuple(faults),
        bounds=tuple(map(_bound_figures, bounds)),
    )
    return measured.model_dump(mode="json")


def _bound_figures(bound: Bound) -> BoundFigures:
    return BoundFigures(
        name=bound.name,
        epsilon=bound.epsilon,
        guesses=bound.guesses.guessed,
        correct=bound.guesses.correct,
        coins=bound.guesses.coins,
        reach=bound.reach,
        claimed_in_trials=bound.claimed,
    )
