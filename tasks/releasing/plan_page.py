"""The planned release as a person reads it before deciding: what, from which data, at what cost, resting on what."""

from __future__ import annotations

from storage.ledger import BudgetRefused, Ledger
from storage.ledger.amounts import short
from tasks.releasing import gate
from tasks.releasing.approval import Standing
from tasks.releasing.plan import PlannedRelease


def plan_markdown(planned: PlannedRelease, ledger: Ledger, standing: Standing, *, file: str) -> str:
    """The plan as Markdown; `file` is the path that the officer gives to `autocoder approve`."""
    plan, claim = planned.plan, planned.plan.claim
    facts = {
        "population": plan.population,
        "cohorts": ", ".join(plan.cohorts),
        "records (rounded)": f"{standing.policy.round_records(plan.records_rounded):,}",
        "data fingerprint": f"`{plan.data_fingerprint}`",
        "mechanism": plan.event.mechanism,
        "guarantee": claim.guarantee_kind,
        "ε": "none" if claim.epsilon is None else f"{claim.epsilon:.6g}",
        "δ": claim.delta_text or ("none" if claim.delta is None else f"{claim.delta:.3g}"),
        "sensitivity Δ": "not part of the claim" if claim.sensitivity is None else f"{claim.sensitivity:.6g}",
        "draws behind Δ": "–" if claim.draws is None else f"{claim.draws:,}",
        "P(a fresh draw exceeds Δ)": "–" if claim.mc_failure_prob is None else f"{claim.mc_failure_prob:.3g}",
        "neighbours": f"{claim.neighbouring_relation}, unit {claim.privacy_unit}",
        "requested by": plan.requester,
        "code": f"{plan.code_commit}{' with uncommitted changes' if plan.code_dirty else ''}",
        "measured": _measured(planned, ledger),
        "label": plan.release_label,
        "plan": f"`{file}`",
        "digest": f"`{planned.digest}`",
    }
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    listed = "\n".join(f"- {line}" for line in claim.assumptions) or "- none stated"
    open_inputs = "\n".join(f"- {line}" for line in claim.unprotected_inputs) or "- none"
    return (
        f"## Planned release: {plan.population}, {plan.release_label}\n\n"
        f"| | |\n|---|---|\n{rows}\n\n"
        f"### Spend\n\n{_spend(planned, ledger)}\n\n"
        f"### It rests on\n\n{listed}\n\n### Not protected\n\n{open_inputs}\n\n"
        f"### Decision\n\n{_decision(standing, file)}\n"
    )


def _measured(planned: PlannedRelease, ledger: Ledger) -> str:
    found = gate.measured(ledger, planned.candidate.fitted.sha256, planned.plan.claim)
    return "not audited (`autocoder audit`)" if found is None else found.line


def _spend(planned: PlannedRelease, ledger: Ledger) -> str:
    released = ledger.release_of(planned.plan)
    if released is not None:
        return f"This plan is release `{released.release_id}` already ({released.state}); nothing more is charged."
    try:
        charges = ledger.quote(planned.plan)
    except BudgetRefused as refused:
        return f"**It does not fit**: {refused}"
    lines = [
        f"| {c.cohort} | {short(c.epsilon_before)} | {short(c.epsilon)} | {short(c.epsilon_after)} "
        f"| {short(c.epsilon_cap)} |"
        for c in charges
    ]
    head = "| cohort | ε spent before | this release | after | cap |\n|---|---|---|---|---|\n"
    return head + "\n".join(lines)


def _decision(standing: Standing, file: str) -> str:
    rule = standing.policy.approvals
    if not rule.minimum:
        return f"Policy {standing.policy.name} asks for no approval."
    who = ", ".join(sorted(rule.approvers))
    given = ", ".join(standing.approved) or "nobody yet"
    problems = "".join(f"\n- does not count: {problem}" for problem in standing.problems)
    return (
        f"Policy {standing.policy.name} asks for {rule.minimum} signed approvals by {who}; "
        f"given by: {given}; missing: {standing.missing}.{problems}\n\n"
        f"Approve with `autocoder approve {file} --key KEY.pem`, or refuse with "
        f'`autocoder refuse {file} --key KEY.pem --reason "…"`.'
    )
