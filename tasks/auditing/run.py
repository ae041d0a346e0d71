"""Branches audited: candidates fitted or found, reruns of their mechanisms, and what both say beside the claims."""

from __future__ import annotations

from collections.abc import Sequence

from storage.artifacts import ArtifactRef
from tasks.auditing import membership, row, trials
from tasks.auditing import pool as audit_pool
from tasks.auditing.audited import Audited, AuditResult
from tasks.auditing.settings import AuditParameters, check
from tasks.branches import search
from tasks.branches.branch import Branch, CompareParameters
from tasks.branches.outcome import Outcome, Study
from tasks.branches.swag_chain import chain
from tasks.comparing import run as comparison
from tasks.comparing.run import Do
from tasks.fitting import fits
from tasks.parameters import RetrainParameters
from tasks.releasing import gate
from tasks.releasing.claims import privacy_unit
from tasks.running.stage import Context


def run(
    context: Context,
    parameters: RetrainParameters,
    compare: CompareParameters,
    settings: AuditParameters,
    chosen: Sequence[Branch],
    *,
    do: Do,
    prefect_run_id: str | None,
) -> AuditResult:
    """Audit branches at every seed; trials are run once a branch, at the first seed's settings.

    Raises:
        InputError: trials that cannot be.
    """
    check(parameters, settings)
    parameters, compare = as_retrained(context, parameters, compare, do=do, prefect_run_id=prefect_run_id)
    compared = comparison.run(context, parameters, compare, chosen, do=do)
    study = compared.study
    pool = None
    if settings.trials:
        pool = study.do(
            audit_pool.pool(parameters.model, canaries=settings.canaries, seed=parameters.fit.seed, **study.records)
        )
    audited = tuple(
        _audit(study, settings, outcome, pool, prefect_run_id=prefect_run_id) for outcome in compared.outcomes
    )
    return AuditResult(branches=audited, trials=settings.trials, target_epsilon=study.target)


def as_retrained(
    context: Context,
    parameters: RetrainParameters,
    compare: CompareParameters,
    *,
    do: Do,
    prefect_run_id: str | None,
) -> tuple[RetrainParameters, CompareParameters]:
    """What a retrain with a target epsilon of its own fits: searched c and k, or the bound that it asks for."""
    own = parameters.pseudo_posterior
    if own.target_epsilon is None:
        return parameters, compare
    if own.mechanism == "weighted":
        parameters = search.settle(
            context, parameters, lambda tried, rounds: chain(tried, do, rounds=rounds), prefect_run_id=prefect_run_id
        )
    elif compare.target_epsilon == "match":
        compare = compare.model_copy(update={"target_epsilon": own.target_epsilon})
    return parameters, compare


def reruns(study: Study, settings: AuditParameters, branch: Branch, pool: ArtifactRef) -> tuple[ArtifactRef, str]:
    """(the stage that holds a branch's trials, its mechanism's name there)."""
    mechanism, name = study.mechanism(branch).audited_as(settings.trial_draws)
    planned = study.do(fits.plan(branch.name, mechanism, study.task(branch)))
    step = trials.reruns(
        branch.name,
        branch.model(study.parameters),
        seed=study.parameters.fit.seed,
        trials=settings.trials,
        delta=study.delta(branch),
        unit=privacy_unit(study.parameters.data.ingest),
        pool=pool,
        dataset=study.dataset,
        planned=planned,
        mechanism=mechanism,
    )
    return study.do(step), name


def _audit(
    study: Study,
    settings: AuditParameters,
    outcome: Outcome,
    pool: ArtifactRef | None,
    *,
    prefect_run_id: str | None,
) -> Audited:
    branch, seed, claim = outcome.branch, outcome.seed, outcome.claim
    trials_ref, trials_of = (None, "") if pool is None else reruns(study, settings, branch, pool)
    predictions = fits.predict(
        branch.name,
        outcome.mechanism,
        branch.model(study.parameters),
        seed=seed,
        fitted=outcome.fitted,
        purpose="audit-candidate",
        splits=("train", "test"),
        **study.records,
    )
    step = membership.measure(
        branch.name,
        settings,
        seed=seed,
        delta=(claim.delta or 0.0) if claim.guarantee_kind == "formal" else 0.0,
        prepared=study.prepared,
        predictions=study.do(predictions),
        pool=pool,
        trials=trials_ref,
        trials_of=trials_of,
    )
    measured = study.do(step)
    figures = study.context.store.figures(measured)
    entry = row.record(study, outcome, measured, figures, prefect_run_id=prefect_run_id)
    return Audited(
        branch=branch.name,
        title=branch.title,
        seed=seed,
        mechanism=outcome.event.mechanism,
        guarantee_kind=claim.guarantee_kind,
        epsilon=claim.epsilon,
        delta=figures["delta"],
        epsilon_lower_bound=figures["epsilon_lower_bound"],
        confidence=figures["confidence"],
        auc=figures["loss_auc"],
        tpr_at_fpr_001=figures["loss_tpr_at_fpr_0.01"],
        tpr_at_fpr_0001=figures["loss_tpr_at_fpr_0.001"],
        verdict=gate.verdict(claim, figures["epsilon_lower_bound"]),
        weighted_f1=outcome.figures["weighted_f1"],
        macro_f1=outcome.figures["macro_f1"],
        figures=figures,
        curves=str(measured.path),
        ledger_sequence=entry.sequence,
    )
