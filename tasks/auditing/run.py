"""Audits branches: fits or reuses candidates, reruns their mechanisms, and compares the results
with the claims.
"""

from collections.abc import Sequence

from mechanisms.mechanism import Mechanism
from mechanisms.privacy.claims import of_one_record
from storage.artifacts import ArtifactRef
from storage.errors import InputError
from tasks.auditing import gradients, measure, result, trials
from tasks.auditing import pool as audit_pool
from tasks.auditing.result import AuditResult, BranchAudit
from tasks.auditing.settings import AuditParameters, trial_draws_of
from tasks.branches.branch import ComparisonSettings, mechanism_for, model_for
from tasks.branches.experiment import Outcome, RunStep, Study
from tasks.branches.released import terms_of
from tasks.comparing import run as comparison
from tasks.fitting import fits
from tasks.method import Method
from tasks.parameters import RetrainParameters
from tasks.releasing.claims import privacy_unit
from tasks.releasing.evidence import Evidence
from tasks.releasing.preflight import Estimate
from tasks.running.stage import Context


def run(
    context: Context,
    parameters: RetrainParameters,
    terms: ComparisonSettings,
    settings: AuditParameters,
    chosen: Sequence[Method],
    *,
    run_step: RunStep,
    seeds: int = 1,
    candidate: ArtifactRef | None = None,
) -> AuditResult:
    """Audits branches at every seed. Trials run once per branch, with the settings of the first
    seed.
    """
    _refuse_draws(parameters, terms, settings, chosen)
    terms = _as_released(parameters, terms)
    groups = comparison.run(context, parameters, terms, chosen, seeds=seeds, run_step=run_step)
    study, outcomes = groups[0].study, [outcome for group in groups for outcome in group.outcomes]
    if candidate is not None and {outcome.fitted.sha256 for outcome in outcomes} != {
        candidate.sha256
    }:
        raise InputError(
            "plan: a new training run differs from the planned model, because code or a library "
            "changed or stages were removed. Train again with the same options, and audit the new "
            "plan.",
            kind="model-not-reproduced",
        )
    pool = None
    if settings.trials:
        pool = study.run_step(
            audit_pool.pool(
                canaries=settings.canaries, seed=parameters.seed, prepared=study.prepared
            )
        )
    audits = [_audit(study, outcome, settings, pool) for outcome in outcomes]
    return AuditResult(branches=tuple(audits), trials=settings.trials)


def _refuse_draws(
    parameters: RetrainParameters,
    terms: ComparisonSettings,
    settings: AuditParameters,
    chosen: Sequence[Method],
) -> None:
    for branch in chosen if settings.trials else ():
        trial_draws_of(branch.name, mechanism_for(branch, parameters, terms), settings)


def estimate_stages(
    context: Context,
    parameters: RetrainParameters,
    terms: ComparisonSettings,
    settings: AuditParameters,
    chosen: Sequence[Method],
) -> Estimate:
    """Estimates the stages of an audit: the comparison, and the reruns of each branch."""
    _refuse_draws(parameters, terms, settings, chosen)
    terms = _as_released(parameters, terms)
    estimate = comparison.refuse_early(context, parameters, terms, chosen)
    labels = {trials.label_of(branch.name): branch.name for branch in chosen}
    batched = [
        branch.name
        for branch in chosen
        if branch.mechanism.batched(model_for(branch, parameters)) is not None
    ]
    estimate = estimate.with_trials(
        labels, trials=settings.trials, draws=settings.trial_draws, batched=batched
    )
    return (
        estimate.with_witness(gradients.KIND, chosen[0].name)
        if settings.gradient_canaries
        else estimate
    )


def audit_seconds(estimate: Estimate, chosen: Sequence[Method]) -> float:
    """Returns the seconds of the attacks, excluding stages that are reused."""
    kinds = [*(trials.label_of(branch.name) for branch in chosen), gradients.KIND]
    return sum(estimate.of_kind(kind) for kind in kinds if kind in estimate.stages)


def _as_released(parameters: RetrainParameters, terms: ComparisonSettings) -> ComparisonSettings:
    """Fills in missing target and delta with the values that the run would release with."""
    released = terms_of(parameters.method)
    target = terms.target_epsilon or released.target_epsilon
    delta = terms.delta if released.target_epsilon is None else released.delta
    return terms.model_copy(update={"target_epsilon": target, "delta": delta})


def reruns(
    study: Study,
    settings: AuditParameters,
    branch: Method,
    pool: ArtifactRef,
    mechanism: Mechanism,
) -> tuple[ArtifactRef, str]:
    experiment = study.experiment(branch)
    draws = trial_draws_of(branch.name, mechanism, settings)
    rerun, name = mechanism.audited_as(draws, batched=experiment.model.linear_head)
    step = trials.reruns(
        branch.name,
        experiment.model,
        seed=experiment.seed,
        trials=settings.trials,
        delta=experiment.delta,
        unit=privacy_unit(study.parameters.data.ingest),
        pool=pool,
        dataset=study.dataset,
        planned=study.run_step(fits.plan(branch.name, rerun, experiment.task)),
        mechanism=rerun,
    )
    return study.run_step(step), name


def _audit(
    study: Study, outcome: Outcome, settings: AuditParameters, pool: ArtifactRef | None
) -> BranchAudit:
    branch, claim, store = outcome.branch, outcome.claim, study.context.store
    is_formal = claim.guarantee_kind == "formal"
    inputs, trials_of = {"fitted": outcome.fitted}, ""
    if pool is not None:
        inputs["pool"] = pool
        inputs["trials"], trials_of = reruns(study, settings, branch, pool, outcome.rerun)
    if settings.gradient_canaries and is_formal and gradients.has_noisy_descent(outcome.event):
        step = gradients.gradients(
            branch.name,
            outcome.mechanism,
            study.experiment(branch).model,
            outcome.event,
            seed=study.parameters.seed,
            canaries=settings.gradient_canaries,
            planned=study.run_step(study.experiment(branch, outcome.seed).plan()),
            **study.records,
        )
        inputs["gradients"] = study.run_step(step)
    delta = (claim.delta or 0.0) if is_formal else 0.0
    design = {
        "confidence": settings.confidence,
        "delta": delta,
        "event": outcome.event.model_dump(mode="json"),
    }
    step = measure.measure(
        branch.name, seed=outcome.seed, inputs=inputs, trials_of=trials_of, **design
    )
    measured = study.run_step(step)
    figures = measure.AuditFigures.model_validate(store.figures(measured))
    evidence = figures.model_dump() | {"confidence": settings.confidence}
    verdict = Evidence.of(evidence).judge(claim)
    how = {"verdict": verdict, "confidence": settings.confidence}
    return BranchAudit(
        branch=branch.name,
        title=branch.shown,
        seed=outcome.seed,
        mechanism=outcome.event.mechanism,
        guarantee_kind=claim.guarantee_kind,
        epsilon=claim.epsilon,
        epsilon_add_remove=of_one_record(claim),
        delta=claim.delta,
        figures=figures,
        ledger_sequence=result.record(study, outcome, measured, figures, **how),
        **how,
    )
