"""The trials of each branch that is audited."""

from __future__ import annotations

from storage.artifacts import ArtifactRef
from tasks.auditing import trials as audit_trials
from tasks.auditing.settings import AuditParameters
from tasks.branches.branch import LINEAR, Branch, CompareParameters, linear_config, of_round
from tasks.parameters import RetrainParameters
from tasks.running.stage import Step


def trials_of(
    branch: Branch,
    parameters: RetrainParameters,
    compare: CompareParameters,
    settings: AuditParameters,
    *,
    target: float | None,
    records_per_unit: int,
    epsilon: float | None,
    pool: ArtifactRef,
    dataset: ArtifactRef,
    calibrated: ArtifactRef | None,
) -> tuple[Step, str]:
    """(the stage that holds a branch's trials, its mechanism's name there). Weighted rounds share one stage."""
    common = {"trials": settings.trials, "pool": pool, "dataset": dataset}
    if branch.family == "swag":
        widest = branch if branch.bounded else Branch("", "", "swag")
        own = of_round(parameters, widest, seed=parameters.fit.seed, target=target, records_per_unit=records_per_unit)
        return audit_trials.chain(own, draws=settings.trial_draws, **common), str(branch.round)
    if calibrated is None:
        return audit_trials.non_private(parameters, epochs=compare.epochs, **common), branch.name
    assert epsilon is not None
    assert target is not None
    linear = linear_config(branch, compare, target=target) if branch.family in LINEAR else None
    step = audit_trials.private(branch, parameters, epsilon=epsilon, linear=linear, calibrated=calibrated, **common)
    return step, branch.name
