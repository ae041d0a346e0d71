"""What is measured beside what is claimed: membership tests and reruns of the mechanism, for every branch.

Nothing leaves and nothing is charged. Each audit is a row of the ledger, which the gate of a release reads.
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow
from prefect.runtime import flow_run

from flows.compare import Fitted, fitted
from flows.retrain import settled
from mechanisms.privacy.events import Claim
from storage.artifacts import ArtifactRef
from tasks.auditing import branches as audit_branches
from tasks.auditing import membership
from tasks.auditing import pool as audit_pool
from tasks.auditing import row as audit_ledger
from tasks.auditing.audited import Audited, AuditResult
from tasks.auditing.settings import AuditParameters, check, choose_branches
from tasks.branches import one_fit
from tasks.branches.branch import Branch, CompareParameters
from tasks.comparing.summary import Outcome
from tasks.parameters import RetrainParameters
from tasks.releasing import gate
from tasks.releasing.claims import privacy_unit
from tasks.running.failures import private_errors
from tasks.running.stage import Context, submit


@flow(
    name="audit",
    description="Measure what a release would leak, beside what it claims. Internal: nothing is released.",
    persist_result=False,
    result_serializer="json",
    log_prints=False,
    validate_parameters=False,
)
def audit_branches_flow(
    parameters: RetrainParameters,
    compare: CompareParameters,
    settings: AuditParameters,
    branches: str = "release",
    home: str = "workspace",
    device: str = "auto",
) -> AuditResult:
    """Audit branches at every seed; trials are run once a branch, at the first seed's settings.

    Args:
        parameters: those of the retrain whose candidate is audited.
        compare: seeds, and the rivals' target, delta and common settings.
        branches: names by comma, `all`, or `release` for what the retrain releases from.

    Raises:
        InputError: an unknown branch, or trials that cannot be.
    """
    context = Context(home=str(Path(home).expanduser().resolve()), device=device)
    with private_errors("audit"):
        chosen = choose_branches(branches, parameters)
        check(parameters, settings)
        context.workspace.create()
        parameters, compare = as_retrained(context, parameters, compare)
        done = fitted(context, parameters, compare, chosen)
        pool = None
        if settings.trials:
            step = audit_pool.pool(
                parameters.model,
                canaries=settings.canaries,
                seed=parameters.fit.seed,
                dataset=done.dataset,
                prepared=done.prepared,
            )
            pool = submit(context, step)
        trials: dict[str, tuple[ArtifactRef, str]] = {}
        audited = []
        for outcome, claim in done.claimed:
            branch = outcome.branch
            if pool is not None and branch.name not in trials:
                trials[branch.name] = _trials(context, parameters, compare, settings, done, branch, claim, pool)
            audited.append(_audit(context, parameters, settings, done, outcome, claim, pool, trials.get(branch.name)))
        return AuditResult(branches=tuple(audited), trials=settings.trials, target_epsilon=done.target)


def as_retrained(
    context: Context, parameters: RetrainParameters, compare: CompareParameters
) -> tuple[RetrainParameters, CompareParameters]:
    """What a retrain with a target epsilon of its own fits: searched c and k, or the bound that it asks for."""
    own = parameters.pseudo_posterior
    if own.target_epsilon is None:
        return parameters, compare
    if own.mechanism == "weighted":
        return settled(context, parameters), compare
    if compare.target_epsilon == "match":
        _, unit = privacy_unit(parameters.data.ingest)
        compare = compare.model_copy(update={"target_epsilon": unit * own.target_epsilon})
    return parameters, compare


def _trials(
    context: Context,
    parameters: RetrainParameters,
    compare: CompareParameters,
    settings: AuditParameters,
    done: Fitted,
    branch: Branch,
    claim: Claim,
    pool: ArtifactRef,
) -> tuple[ArtifactRef, str]:
    _, unit = privacy_unit(parameters.data.ingest)
    calibrated = None
    if branch.kind == "formal" and done.target is not None:
        step = one_fit.calibrate(
            branch, parameters.model, compare, target=done.target, records=done.facts["train"], records_per_unit=unit
        )
        calibrated = submit(context, step)
    step, name = audit_branches.trials_of(
        branch,
        parameters,
        compare,
        settings,
        target=done.target,
        records_per_unit=unit,
        epsilon=claim.epsilon,
        pool=pool,
        dataset=done.dataset,
        calibrated=calibrated,
    )
    return submit(context, step), name


def _audit(
    context: Context,
    parameters: RetrainParameters,
    settings: AuditParameters,
    done: Fitted,
    outcome: Outcome,
    claim: Claim,
    pool: ArtifactRef | None,
    trials: tuple[ArtifactRef, str] | None,
) -> Audited:
    branch, seed = outcome.branch, outcome.seed
    drawn = branch.family == "swag"
    step = membership.measure(
        branch.name,
        parameters.model,
        settings,
        seed=seed,
        std_scale=parameters.fit.swag.std_scale if drawn else None,
        delta=(claim.delta or 0.0) if claim.guarantee_kind == "formal" else 0.0,
        dataset=done.dataset,
        prepared=done.prepared,
        fitted=outcome.fitted,
        pool=pool,
        trials=trials[0] if trials else None,
        trials_of=trials[1] if trials else "",
    )
    measured = submit(context, step)
    figures = context.store.figures(measured)
    row = audit_ledger.record(
        context,
        parameters,
        outcome,
        claim,
        measured,
        figures,
        facts=done.facts,
        prefect_run_id=str(flow_run.get_id() or "") or None,
    )
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
        ledger_sequence=row.sequence,
    )
