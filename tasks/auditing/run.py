"""Audits branches: fits or reuses candidates, reruns their mechanisms, and compares both with the claims."""

from __future__ import annotations

from collections.abc import Sequence

from mechanisms.mechanism import Batched
from mechanisms.privacy.claims import of_one_record
from mechanisms.privacy.events import Event
from storage.artifacts import ArtifactRef
from storage.errors import InputError
from storage.ledger import Row
from tasks.auditing import audit_result, gradients, membership, trials
from tasks.auditing import pool as audit_pool
from tasks.auditing.alpha_spending import count_attempt, evidence_of
from tasks.auditing.audit_result import AuditResult, BranchAudit
from tasks.auditing.bounds import event_to_test
from tasks.auditing.settings import AuditParameters, check, trial_draws_of
from tasks.branches import formal, search
from tasks.branches.branch import Branch, Terms
from tasks.branches.experiment import Do, Outcome, Study
from tasks.comparing import run as comparison
from tasks.fitting import fits
from tasks.parameters import RetrainParameters
from tasks.releasing.claims import privacy_unit
from tasks.releasing.evidence import Evidence
from tasks.releasing.ledger_access import open_ledger
from tasks.releasing.preflight import Estimate
from tasks.running.stage import Context


def run(
    context: Context,
    parameters: RetrainParameters,
    terms: Terms,
    settings: AuditParameters,
    chosen: Sequence[Branch],
    *,
    do: Do,
    prefect_run_id: str | None,
    seeds: int = 1,
    candidate: ArtifactRef | None = None,
) -> AuditResult:
    """Audits branches at every seed; trials run once per branch, at the first seed's settings.

    Args:
        seeds: how many candidates a branch has, from the run's seed on.
        candidate: the candidate of a plan; nothing else is audited then.

    Raises:
        InputError: invalid numbers of trials or draws, or another fit than the candidate.
    """
    check(parameters, settings)
    _refuse_draws(parameters, terms, settings, chosen)
    parameters, terms = settle_parameters(context, parameters, terms, do=do, prefect_run_id=prefect_run_id)
    groups = comparison.run(context, parameters, terms, chosen, seeds=seeds, do=do)
    study, outcomes = groups[0].study, [outcome for group in groups for outcome in group.outcomes]
    if candidate is not None and {outcome.fitted.sha256 for outcome in outcomes} != {candidate.sha256}:
        raise InputError(
            "plan: a new fit differs from the candidate, because code or a library changed or stages are gone. "
            "Retrain with the same options, and audit the new plan."
        )
    before = open_ledger(context, parameters.release).rows()
    pool = None
    if settings.trials:
        pool = study.do(audit_pool.pool(canaries=settings.canaries, seed=parameters.fit.seed, prepared=study.prepared))
    audits = tuple(
        _audit(study, outcome, settings, pool, before, prefect_run_id=prefect_run_id) for outcome in outcomes
    )
    return AuditResult(branches=audits, trials=settings.trials, target_epsilon=study.terms.target_epsilon)


def _refuse_draws(
    parameters: RetrainParameters, terms: Terms, settings: AuditParameters, chosen: Sequence[Branch]
) -> None:
    """Refuses, before anything is computed, more draws in reruns than a branch itself takes."""
    for branch in chosen if settings.trials else ():
        trial_draws_of(branch.name, branch.mechanism_for(parameters, terms), settings)


def estimate_stages(
    context: Context,
    parameters: RetrainParameters,
    terms: Terms,
    settings: AuditParameters,
    chosen: Sequence[Branch],
) -> Estimate:
    """Estimates the stages of an audit: those of a comparison, and the reruns of each branch."""
    _refuse_draws(parameters, terms, settings, chosen)
    estimate = comparison.refuse_early(context, parameters, terms, chosen)
    labels = {trials.label_of(branch.name): branch.name for branch in chosen}
    batched = [b.name for b in chosen if b.model(parameters).linear_head and isinstance(b.mechanism, Batched)]
    return estimate.with_trials(labels, trials=settings.trials, draws=settings.trial_draws, batched=batched)


def rerun_seconds(estimate: Estimate, chosen: Sequence[Branch]) -> float:
    """Returns that of all branches."""
    return sum(estimate.of_kind(trials.label_of(branch.name)) for branch in chosen)


def settle_parameters(
    context: Context, parameters: RetrainParameters, terms: Terms, *, do: Do, prefect_run_id: str | None
) -> tuple[RetrainParameters, Terms]:
    """Settles the parameters as a retrain with a target epsilon does: c searched, or the noise set."""
    if parameters.formal is not None:
        released = formal.formal_branch(parameters)[1]
        target = terms.target_epsilon or released.target_epsilon
        return parameters, terms.model_copy(update={"target_epsilon": target, "delta": released.delta})
    if parameters.needs_search:
        parameters = search.meet_target(context, parameters, do, prefect_run_id=prefect_run_id)
    return parameters, terms


def reruns(study: Study, settings: AuditParameters, branch: Branch, pool: ArtifactRef) -> tuple[ArtifactRef, str]:
    """Returns the stage with a branch's trials, and the mechanism's name in it."""
    experiment = study.at(branch)
    draws = trial_draws_of(branch.name, experiment.mechanism, settings)
    mechanism, name = experiment.mechanism.audited_as(draws, batched=experiment.model.linear_head)
    step = trials.reruns(
        branch.name,
        experiment.model,
        seed=experiment.seed,
        trials=settings.trials,
        delta=experiment.delta,
        unit=privacy_unit(study.parameters.data.ingest),
        pool=pool,
        dataset=study.dataset,
        planned=study.do(fits.plan(branch.name, mechanism, experiment.task)),
        mechanism=mechanism,
    )
    return study.do(step), name


def _evidence(
    study: Study, outcome: Outcome, settings: AuditParameters, pool: ArtifactRef | None, event: Event | None
) -> tuple[dict[str, ArtifactRef | None], str]:
    """Returns every stage that a measurement reads, by name, and the mechanism's name in its trials."""
    branch, experiment = outcome.branch, study.at(outcome.branch, outcome.seed)
    candidate = {"purpose": "audit-candidate", "splits": ("train", "test")}
    predictions = experiment.predict(outcome.mechanism, outcome.fitted, **candidate)
    inputs: dict[str, ArtifactRef | None] = {"prepared": study.prepared, "predictions": predictions}
    trials_of = ""
    if pool is not None:
        inputs["pool"] = pool
        inputs["trials"], trials_of = reruns(study, settings, branch, pool)
    if settings.gradient_canaries and event is not None and gradients.has_noisy_descent(event):
        step = gradients.gradients(
            branch.name,
            outcome.mechanism,
            experiment.model,
            seed=study.parameters.fit.seed,
            canaries=settings.gradient_canaries,
            planned=study.do(experiment.plan()),
            **study.records,
        )
        inputs["gradients"] = study.do(step)
    return inputs, trials_of


def _audit(
    study: Study,
    outcome: Outcome,
    settings: AuditParameters,
    pool: ArtifactRef | None,
    before: Sequence[Row],
    *,
    prefect_run_id: str | None,
) -> BranchAudit:
    branch, claim = outcome.branch, outcome.claim
    formal = claim.guarantee_kind == "formal"
    event = event_to_test(outcome.event) if formal else None
    inputs, trials_of = _evidence(study, outcome, settings, pool, event)
    evidence = evidence_of(study.context.store, inputs)
    attempt = count_attempt(study, outcome, evidence, before, confidence=settings.confidence)
    design = membership.Design(
        alpha=attempt.alpha,
        first=attempt.first,
        claimed=of_one_record(claim),
        delta=(claim.delta or 0.0) if formal else 0.0,
        coin=study.parameters.data.ingest.train_before is None,
        event=None if event is None else event.model_dump(mode="json"),
        refuted_before=attempt.refuted_before,
    )
    measured = study.do(membership.measure(branch.name, design, seed=outcome.seed, inputs=inputs, trials_of=trials_of))
    figures = study.context.store.figures(measured)
    measurement = Evidence.model_validate(
        figures
        | {"auc": figures["attack_auc"], "tpr": figures["attack_tpr_at_fpr_0.001"], "confidence": settings.confidence}
    )
    verdict = measurement.verdict(claim)
    entry = audit_result.record(
        study, outcome, measured, figures, verdict=verdict, attempt=attempt, prefect_run_id=prefect_run_id
    )
    return BranchAudit(
        branch=branch.name,
        title=branch.title,
        seed=outcome.seed,
        mechanism=outcome.event.mechanism,
        guarantee_kind=claim.guarantee_kind,
        epsilon=claim.epsilon,
        epsilon_add_remove=design.claimed,
        delta=figures["delta"],
        epsilon_lower_bound=figures["epsilon_lower_bound"],
        reach=figures["reach"],
        confidence=settings.confidence,
        delta_refuted=None if design.claimed is None else measurement.delta_refuted(design.claimed),
        attack=figures["attack"],
        auc=figures["attack_auc"],
        tpr_at_fpr_001=figures["attack_tpr_at_fpr_0.01"],
        tpr_at_fpr_0001=figures["attack_tpr_at_fpr_0.001"],
        loss_auc=figures["loss_auc"],
        verdict=verdict,
        weighted_f1=outcome.figures["weighted_f1"],
        macro_f1=outcome.figures["macro_f1"],
        figures=figures | {"attempt": attempt.number},
        curves=str(measured.path),
        ledger_sequence=entry.sequence,
    )
