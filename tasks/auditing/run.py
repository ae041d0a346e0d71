"""Branches audited: candidates fitted or found, reruns of their mechanisms, and what both say beside the claims."""

from __future__ import annotations

from collections.abc import Sequence

from mechanisms.mechanism import Batched
from mechanisms.privacy.claims import of_one_record
from mechanisms.privacy.events import Event
from storage.artifacts import ArtifactRef
from storage.errors import InputError
from storage.ledger import Row
from tasks.auditing import densities, gradients, membership, row, trials
from tasks.auditing import pool as audit_pool
from tasks.auditing.audited import Audited, AuditResult
from tasks.auditing.bounds import of_noise
from tasks.auditing.looks import evidence_of, look
from tasks.auditing.settings import AuditParameters, check, draws_of_trials
from tasks.branches import formal, search
from tasks.branches.branch import Branch, CompareParameters
from tasks.branches.outcome import Outcome, Study
from tasks.branches.swag_chain import chain
from tasks.comparing import run as comparison
from tasks.comparing.run import Do
from tasks.fitting import fits
from tasks.parameters import RetrainParameters
from tasks.releasing import gate
from tasks.releasing.claims import privacy_unit
from tasks.releasing.estimate import Estimate
from tasks.releasing.publish import open_ledger
from tasks.running.shard_runs import ShardRuns
from tasks.running.shards import place_of
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
    candidate: ArtifactRef | None = None,
) -> AuditResult:
    """Audit branches at every seed; trials are run once a branch, at the first seed's settings.

    Args:
        candidate: what a plan releases; nothing else is audited then.

    Raises:
        InputError: trials that cannot be, or another fit than the candidate.
    """
    check(parameters, settings)
    _refuse_draws(parameters, compare, settings, chosen)
    parameters, compare = as_retrained(context, parameters, compare, do=do, prefect_run_id=prefect_run_id)
    compared = comparison.run(context, parameters, compare, chosen, do=do)
    study = compared.study
    if candidate is not None and {outcome.fitted.sha256 for outcome in compared.outcomes} != {candidate.sha256}:
        raise InputError(
            "plan: fitted again, it came out otherwise (the code or a library changed since, or its stages are gone); "
            "retrain with the same options, and audit the plan that comes of it"
        )
    before = open_ledger(context, parameters.release).rows()
    pool = None
    if settings.trials:
        pool = study.do(
            audit_pool.pool(parameters.model, canaries=settings.canaries, seed=parameters.fit.seed, **study.records)
        )
    audited = tuple(
        _audit(study, outcome, settings, pool, before, prefect_run_id=prefect_run_id) for outcome in compared.outcomes
    )
    return AuditResult(
        branches=audited, trials=settings.trials, target_epsilon=study.target, refused=dict(compared.refused)
    )


def _refuse_draws(
    parameters: RetrainParameters, compare: CompareParameters, settings: AuditParameters, chosen: Sequence[Branch]
) -> None:
    """Before anything is computed: more draws in reruns than a branch itself takes."""
    for branch in chosen if settings.trials else ():
        draws_of_trials(branch.name, branch.settled(parameters, compare), settings)


def expected(
    context: Context,
    parameters: RetrainParameters,
    compare: CompareParameters,
    settings: AuditParameters,
    chosen: Sequence[Branch],
) -> Estimate:
    """What the stages of an audit take: those of a comparison, and the reruns of each branch."""
    _refuse_draws(parameters, compare, settings, chosen)
    estimate = comparison.refuse_early(context, parameters, compare, chosen)
    if context.fan_out.shards > 1 and settings.trials:
        with ShardRuns.at(trials.DEPLOYMENT, place_of(context)):
            pass
    noises = (1.0, 0.5) if settings.power else (1.0,)
    labels = {trials.label_of(branch.name, noise=noise): branch.name for branch in chosen for noise in noises}
    batched = [b.name for b in chosen if b.model(parameters).linear_head and isinstance(b.mechanism, Batched)]
    return estimate.with_trials(labels, trials=settings.trials, draws=settings.trial_draws, batched=batched)


def seconds_of_reruns(estimate: Estimate, settings: AuditParameters, chosen: Sequence[Branch]) -> float:
    """Of all branches; half of the noise is tried of mechanisms that have noise alone."""
    labels = [trials.label_of(branch.name) for branch in chosen]
    labels += [trials.label_of(b.name, noise=0.5) for b in chosen if settings.power and b.mechanism.aims]
    return sum(map(estimate.of_kind, labels))


def as_retrained(
    context: Context,
    parameters: RetrainParameters,
    compare: CompareParameters,
    *,
    do: Do,
    prefect_run_id: str | None,
) -> tuple[RetrainParameters, CompareParameters]:
    """What a retrain with a target epsilon of its own fits: searched c and k, the bound or the noise it asks for."""
    if parameters.formal is not None:
        settings = formal.branch_of(parameters)[1]
        own_target = compare.target_epsilon if compare.target_epsilon != "match" else settings.target_epsilon
        return parameters, compare.model_copy(update={"target_epsilon": own_target, "delta": settings.delta})
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


def reruns(
    study: Study, settings: AuditParameters, branch: Branch, pool: ArtifactRef, *, noise: float = 1.0
) -> tuple[ArtifactRef, str]:
    """(the stage that holds a branch's trials, its mechanism's name there); `noise`: times the planned."""
    model = branch.model(study.parameters)
    own = study.mechanism(branch)
    draws = draws_of_trials(branch.name, own, settings)
    mechanism, name = own.audited_as(draws, batched=model.linear_head)
    planned = study.do(fits.plan(branch.name, mechanism, study.task(branch)))
    step = trials.reruns(
        branch.name,
        model,
        seed=study.parameters.fit.seed,
        trials=settings.trials,
        delta=study.delta(branch),
        unit=privacy_unit(study.parameters.data.ingest),
        pool=pool,
        dataset=study.dataset,
        planned=planned,
        mechanism=mechanism,
        noise=noise,
    )
    return study.do(step), name


def _evidence(
    study: Study, outcome: Outcome, settings: AuditParameters, pool: ArtifactRef | None, event: Event | None
) -> tuple[dict[str, ArtifactRef | None], str]:
    """Every stage that a measurement reads, by name; and the mechanism's name in its trials."""
    branch, seed, model = outcome.branch, outcome.seed, outcome.branch.model(study.parameters)
    predictions = fits.predict(
        branch.name,
        outcome.mechanism,
        model,
        seed=seed,
        fitted=outcome.fitted,
        purpose="audit-candidate",
        splits=("train", "test"),
        **study.records,
    )
    inputs: dict[str, ArtifactRef | None] = {"prepared": study.prepared, "predictions": study.do(predictions)}
    if study.facts.get("fields"):
        inputs["dataset"] = study.dataset
    trials_of = ""
    if pool is not None:
        inputs["pool"] = pool
        inputs["trials"], trials_of = reruns(study, settings, branch, pool)
        if settings.power and event is not None:
            inputs["halved"], _ = reruns(study, settings, branch, pool, noise=0.5)
    if settings.gradient_canaries and event is not None and gradients.descends(event):
        planned = study.do(fits.plan(branch.name, study.mechanism(branch), study.task(branch)))
        step = gradients.gradients(
            branch.name,
            outcome.mechanism,
            model,
            seed=study.parameters.fit.seed,
            canaries=settings.gradient_canaries,
            planned=planned,
            **study.records,
        )
        inputs["gradients"] = study.do(step)
    if settings.left_out and densities.applies(study, outcome):
        inputs["densities"] = study.do(densities.densities(study, outcome, records=settings.left_out))
    return inputs, trials_of


def _audit(
    study: Study,
    outcome: Outcome,
    settings: AuditParameters,
    pool: ArtifactRef | None,
    before: Sequence[Row],
    *,
    prefect_run_id: str | None,
) -> Audited:
    branch, claim = outcome.branch, outcome.claim
    formal = claim.guarantee_kind == "formal"
    event = of_noise(outcome.event) if formal else None
    inputs, trials_of = _evidence(study, outcome, settings, pool, event)
    evidence = evidence_of(study.context.store, inputs, candidates=study.settings.seeds)
    looked = look(study, outcome, evidence, before, confidence=settings.confidence)
    design = membership.Design(
        alpha=looked.alpha,
        first=looked.first,
        claimed=of_one_record(claim),
        delta=(claim.delta or 0.0) if formal else 0.0,
        event=None if event is None else event.model_dump(mode="json"),
        suspected=looked.suspected,
    )
    measured = study.do(membership.measure(branch.name, design, seed=outcome.seed, inputs=inputs, trials_of=trials_of))
    figures = study.context.store.figures(measured)
    told = gate.Evidence.model_validate(
        figures
        | {"auc": figures["attack_auc"], "tpr": figures["attack_tpr_at_fpr_0.001"], "confidence": settings.confidence}
    )
    verdict = told.verdict(claim)
    entry = row.record(study, outcome, measured, figures, verdict=verdict, look=looked, prefect_run_id=prefect_run_id)
    return Audited(
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
        delta_refuted=None if design.claimed is None else told.delta_refuted(design.claimed),
        attack=figures["attack"],
        auc=figures["attack_auc"],
        tpr_at_fpr_001=figures["attack_tpr_at_fpr_0.01"],
        tpr_at_fpr_0001=figures["attack_tpr_at_fpr_0.001"],
        loss_auc=figures["loss_auc"],
        verdict=verdict,
        weighted_f1=outcome.figures["weighted_f1"],
        macro_f1=outcome.figures["macro_f1"],
        figures=figures | {"look": looked.number},
        curves=str(measured.path),
        ledger_sequence=entry.sequence,
    )
