"""Assesses branches for a decision: claim, F1, measured leakage, budget, and plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from storage.ledger import BudgetRefused, Ledger
from storage.ledger.records import RecordSet
from tasks.branches import plan as branch_plan
from tasks.branches.experiment import Outcome, Study
from tasks.comparing.run import Comparison, plan_name
from tasks.comparing.summary import BranchSummary, by_branch, resampled_scores, summarise
from tasks.releasing import ledger_access, ledger_records
from tasks.releasing.claims import MATCHED
from tasks.releasing.evidence import measurement_of
from tasks.releasing.ledger_records import save_record_set
from tasks.releasing.recommendation import Figures

STUDY = "its epsilon comes from these records, for study only"
NEVER = "never released: it is for comparison only"
NO_BUNDLE = "cannot be released: a model of this kind has no bundle"


@dataclass(frozen=True)
class BranchAssessment:
    """Assesses one branch at one claim."""

    figures: Figures
    auc: float | None = None
    """Of the strongest membership test; None without an audit."""
    plan: str | None = None
    """The file of its release plan."""


def assess(comparison: Comparison, plans: Mapping[str, str]) -> list[BranchAssessment]:
    """Assesses every branch of a comparison at every epsilon that it was fitted for, with the ledger's audits."""
    study = comparison.study
    ledger = ledger_access.open_ledger(study.context, study.parameters.release)
    records = save_record_set(study.context, study.dataset)
    targets = [(study, None, comparison.outcomes)]
    targets += [(study.retargeted(epsilon), epsilon, outcomes) for epsilon, outcomes in comparison.further.items()]
    assessments = []
    for at, epsilon, outcomes in targets:
        for name, group in by_branch(outcomes).items():
            assessments.append(_assess_branch(at, ledger, records, group, plan=plans.get(plan_name(name, epsilon))))
    return assessments


def _assess_branch(
    study: Study, ledger: Ledger, records: RecordSet, outcomes: list[Outcome], *, plan: str | None
) -> BranchAssessment:
    (summary,), first = summarise(outcomes), outcomes[0]
    fingerprint = study.facts["fingerprint"]
    audits = [
        measurement_of(ledger, fitted=o.fitted.sha256, fingerprint=fingerprint, event=o.event, claim=o.claim)
        for o in outcomes
        if o.claim.guarantee_kind != "none"
    ]
    measured = [audit for audit in audits if audit is not None]
    worst = max(measured, key=ledger_records.evidence_rank, default=None)
    figures = Figures(
        name=summary.branch,
        title=summary.title,
        kind=first.claim.guarantee_kind,
        mechanism=first.event.mechanism,
        trainable=first.branch.model(study.parameters).trainable,
        weighted_f1=summary.mean["weighted_f1"],
        macro_f1=summary.mean.get("macro_f1"),
        spread=summary.spread["weighted_f1"],
        seeds=summary.seeds,
        epsilon=summary.epsilon,
        delta=summary.delta,
        relation=first.claim.neighbouring_relation,
        epsilon_replaced=summary.epsilon_replaced,
        resampled=resampled_scores(study.context, outcomes),
        audit=None if worst is None else worst.verdict,
        lower_bound=None if worst is None else worst.epsilon_lower_bound,
        refused=_refusal(study, ledger, records, first, summary),
    )
    return BranchAssessment(figures, auc=max((audit.auc for audit in measured), default=None), plan=plan)


def _refusal(study: Study, ledger: Ledger, records: RecordSet, first: Outcome, summary: BranchSummary) -> str:
    """Returns why the release would be refused; empty if it would pass."""
    if first.claim.guarantee_kind == "none":
        return ""
    if not first.branch.releasable:
        return NEVER
    if any(line == MATCHED for line in summary.unprotected):
        return STUDY
    release = branch_plan.plan_release(study, first, prefect_run_id=None)
    if not release.has_bundle(study.context.store):
        return NO_BUNDLE
    released = ledger.release_of(release.plan) or ledger_records.release_of_fit(ledger, release)
    if released is not None:
        return f"released already ({released.release_id}): another release is charged again and gives nothing new"
    try:
        ledger.quote(release.plan, records=records)
    except BudgetRefused as refused:
        return str(refused)
    return ""
