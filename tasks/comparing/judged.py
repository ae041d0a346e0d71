"""Branches as whoever decides sees them: claim, F1, measured leakage, what the budget says, and the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from storage.ledger import BudgetRefused, Ledger
from storage.ledger.records import RecordSet
from tasks.branches import plan as branch_plan
from tasks.branches.outcome import Outcome, Study
from tasks.comparing.run import Compared, aimed, plan_name
from tasks.comparing.summary import BranchSummary, summarise
from tasks.releasing import publish, recorded
from tasks.releasing.claims import MATCHED
from tasks.releasing.recommendation import Figures, Recommendation, recommend, why_not
from tasks.releasing.records import record_set

STUDY = "its epsilon was taken from these records, for study"
NEVER = "never released: it is there to compare with"


@dataclass(frozen=True)
class Judged:
    """One branch at one claim."""

    figures: Figures
    auc: float | None = None
    """Of the strongest membership test; None where nobody audited it."""
    plan: str | None = None
    """Its release plan."""

    @property
    def name(self) -> str:
        """Of the branch, with its epsilon: that of a further target is another row."""
        return self.figures.name

    @property
    def why_not(self) -> str:
        """Why it is not recommended whatever its figures; empty where it could be."""
        return why_not(self.figures)


def judge(compared: Compared, plans: Mapping[str, str]) -> list[Judged]:
    """Every branch of a comparison, at every epsilon that it was fitted for; the audits are those of the ledger."""
    study = compared.study
    ledger = publish.open_ledger(study.context, study.parameters.release)
    records = record_set(study.context, study.dataset)
    targets = [(study, None, compared.outcomes)]
    targets += [(aimed(study, epsilon), epsilon, outcomes) for epsilon, outcomes in compared.further.items()]
    found = []
    for at, epsilon, outcomes in targets:
        for name in dict.fromkeys(outcome.branch.name for outcome in outcomes):
            group = [outcome for outcome in outcomes if outcome.branch.name == name]
            found.append(_judged(at, ledger, records, group, plan=plans.get(plan_name(name, epsilon))))
    return found


def recommended(rows: Sequence[Judged]) -> Recommendation:
    """What these figures support."""
    return recommend([row.figures for row in rows])


def _judged(study: Study, ledger: Ledger, records: RecordSet, outcomes: list[Outcome], *, plan: str | None) -> Judged:
    (summary,), first = summarise(outcomes), outcomes[0]
    fingerprint = study.facts["fingerprint"]
    found = [
        recorded.audit_of(ledger, fitted=o.fitted.sha256, fingerprint=fingerprint, event=o.event, claim=o.claim)
        for o in outcomes
        if o.claim.guarantee_kind != "none"
    ]
    measured = [one for one in found if one is not None]
    worst = max(measured, key=recorded.against, default=None)
    figures = Figures(
        name=summary.branch,
        title=summary.title,
        kind=first.claim.guarantee_kind,
        weighted_f1=summary.mean["weighted_f1"],
        macro_f1=summary.mean.get("macro_f1"),
        spread=summary.spread["weighted_f1"],
        seeds=summary.seeds,
        epsilon=summary.epsilon,
        delta=summary.delta,
        relation=first.claim.neighbouring_relation,
        audit=recorded.verdict_of(worst),
        lower_bound=None if worst is None else worst.epsilon_lower_bound,
        refused=_refused(study, ledger, records, first, summary),
    )
    return Judged(figures, auc=max((one.auc for one in measured), default=None), plan=plan)


def _refused(study: Study, ledger: Ledger, records: RecordSet, first: Outcome, summary: BranchSummary) -> str:
    """Why it would not pass, whatever its claim is worth."""
    if first.claim.guarantee_kind == "none":
        return ""
    if not first.branch.releasable:
        return NEVER
    if any(line == MATCHED for line in summary.unprotected):
        return STUDY
    planned = branch_plan.planned(study, first, prefect_run_id=None)
    if ledger.release_of(planned.plan) is not None:
        return ""
    try:
        ledger.quote(planned.plan, records=records)
    except BudgetRefused as refused:
        return str(refused)
    return ""
