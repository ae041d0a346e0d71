"""The planned release as a person reads it before deciding: what, from which data, at what cost, resting on what."""

from __future__ import annotations

from storage.ledger import BudgetRefused, Ledger
from tasks.bundle.sentences import said_of
from tasks.pages.render import render
from tasks.releasing import gate
from tasks.releasing.approval import Standing
from tasks.releasing.plan import PlannedRelease


def plan_markdown(planned: PlannedRelease, ledger: Ledger, standing: Standing, *, file: str) -> str:
    """The plan as Markdown; `file` is the path that the officer gives to `autocoder approve`."""
    plan = planned.plan
    audit = gate.measured(ledger, planned.candidate.fitted.sha256, plan.claim)
    released, charges, refusal = ledger.release_of(plan), (), None
    if released is None:
        try:
            charges = ledger.quote(plan)
        except BudgetRefused as refused:
            refusal = str(refused)
    said = said_of(
        {
            "guarantee_kind": plan.claim.guarantee_kind,
            "mechanism": plan.event.mechanism,
            "max_records_per_unit": plan.claim.max_records_per_unit,
            "unprotected_inputs": plan.claim.unprotected_inputs,
        }
    )
    return render(
        "plan.md",
        plan=plan,
        claim=plan.claim,
        records=standing.policy.round_records(plan.records_rounded),
        measured="not audited (`autocoder audit`)" if audit is None else audit.line,
        file=file,
        digest=planned.digest,
        released=released,
        charges=charges,
        refusal=refusal,
        standing=standing,
        assumed=[one for one in said if one["status"] == "assumed"],
    )
