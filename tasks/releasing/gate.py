"""Checks a plan against its ledger and policy, and its claim against the audits of its candidate,
before a reservation.

If an audit contradicts the claim, the gate refuses the release and records this in the ledger. Only
a signed override with a reason lets it pass. It is signed by a person with a key in the policy,
other than the requester, and covers the plan and the measurement. If the policy requires a
conclusive audit, an inconclusive one is refused and can be overridden in the same way.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from mechanisms.privacy.claims import of_one_record
from storage.errors import Contradiction, Fault, InputError, Missing
from storage.ledger import BudgetRefused, Decision, ReleaseRow
from storage.ledger.decisions import signer
from storage.ledger.entries import Blocked, ChainRow, Overridden, StatedAudit
from tasks.releasing.case import ReleaseCase
from tasks.releasing.evidence import (
    CONTRADICTED,
    INCONCLUSIVE,
    USUAL_CONFIDENCE,
    Evidence,
    Measurement,
    describe_reach,
    has_reruns,
)


def check(case: ReleaseCase) -> StatedAudit | None:
    """Accepts or refuses a plan, and returns the measurement for the release's row."""
    measurement, problem = case.measurement, obstacle(case)
    if problem is None:
        return None if measurement is None else _stated(case, measurement)
    if measurement is None or measurement.verdict != CONTRADICTED:
        raise BudgetRefused(problem.text, kind=problem.kind)
    row = case.ledger.note(
        Blocked(
            plan_digest=case.digest,
            audit_row=measurement.ledger_sequence,
            line=measurement.line,
            requester=case.plan.requester,
        )
    )
    raise BudgetRefused(
        f"the audit of row {measurement.ledger_sequence} contradicts the claim: "
        f"{measurement.line}. Blocked (ledger "
        f"row {row.sequence}). Nothing was released or charged. {_remedy(case)}",
        kind="blocked",
    )


def _stated(case: ReleaseCase, measurement: Measurement) -> StatedAudit:
    by = _overridden(case, measurement)
    figures = measurement.model_dump(mode="json")
    if by is None:
        return StatedAudit(line=measurement.line, **figures)
    # the reason is free text, so it remains in the ledger
    line = f"{measurement.line}; overridden by {by}"
    return StatedAudit(line=line, **figures, overridden_by=by)


def _remedy(case: ReleaseCase) -> str:
    signed = "`autocoder approve --despite-audit` with a reason and an approver's key"
    if case.plan.claim.guarantee_kind == "formal":
        return (
            "A formal claim that is contradicted is a fault of the program: report it. Only "
            f"{signed} lets it pass"
        )
    return (
        "Plan a release of a formal method (`autocoder train --profile formal`), or accept "
        f"the measurement: {signed}"
    )


def obstacle(case: ReleaseCase) -> Fault | None:
    """Returns why the gate would refuse a plan now. Records nothing."""
    measurement = case.measurement
    if measurement is not None and _overridden(case, measurement) is not None:
        return None
    if measurement is not None and measurement.verdict == CONTRADICTED:
        return Fault(
            f"the audit of row {measurement.ledger_sequence} contradicts the claim",
            kind="contradicted",
        )
    return _lacks_audit(case, measurement) if case.policy.require_audit else None


def _lacks_audit(case: ReleaseCase, measurement: Measurement | None) -> Fault | None:
    policy, claim = case.policy, case.plan.claim
    rows = [Evidence.of(row.evaluation.details) for row in case.audits]
    usual = [bound for bound in rows if bound.confidence <= USUAL_CONFIDENCE]
    reran = [bound for bound in rows if has_reruns(bound)]
    if any(bound.judge(claim, minimum=policy.audit_reach) != INCONCLUSIVE for bound in reran):
        return None
    if not usual:
        why = Fault(
            f"was not audited at a confidence of {USUAL_CONFIDENCE:g} or less", kind="unaudited"
        )
    elif not reran:
        why = Fault(
            "was audited without repeating its mechanism (--trials 0)", kind="audit-without-reruns"
        )
    else:
        most = max(bound.reach for bound in reran)
        why = Fault(
            f"was audited without result: {describe_reach(most, of_one_record(claim))}",
            kind="audit-without-result",
        )
    accepted = measurement is not None and bool(reran)
    instead = (
        f", or let an approver accept audit row {measurement.ledger_sequence}: `autocoder approve "
        "--despite-audit`"
        if accepted and measurement is not None
        else ""
    )
    return Fault(
        f"policy {policy.name} requires an audit that could have contradicted the claim. This plan "
        f"{why.text}. Run `autocoder audit PLAN`{' with more --trials' if usual else ''}{instead}",
        kind=why.kind,
    )


def override_terms(case: ReleaseCase, measurement: Measurement) -> dict[str, str]:
    """Returns the terms that an override signs, with the plan's digest. A larger
    bound invalidates it.
    """
    terms = {
        "epsilon_lower_bound": f"{measurement.epsilon_lower_bound:.6f}",
        "audit_row": str(measurement.ledger_sequence),
    }
    if measurement.verdict != CONTRADICTED:
        terms["verdict"] = measurement.verdict
    return {**case.matter.terms, **terms}


def override(case: ReleaseCase, decision: Decision) -> ChainRow:
    measurement = case.measurement
    if measurement is None or not _blocks(case, measurement):
        raise Contradiction(
            "override: no audit contradicts this plan's claim. There is nothing to override",
            kind="nothing-to-override",
        )
    if measurement.verdict != CONTRADICTED and not has_reruns(measurement):
        raise Contradiction(
            f"override: the audit of row {measurement.ledger_sequence} did not rerun the "
            "mechanism, or has a "
            f"confidence above {USUAL_CONFIDENCE:g}. Run `autocoder audit` with --trials, then "
            "sign its result",
            kind="not-overridable",
        )
    return case.ledger.note(
        Overridden(
            plan_digest=case.digest,
            audit_row=measurement.ledger_sequence,
            line=measurement.line,
            decision=decision,
            by=_signer(case, measurement, decision),
            requester=case.plan.requester,
        )
    )


def _blocks(case: ReleaseCase, measurement: Measurement) -> bool:
    return measurement.verdict == CONTRADICTED or (
        case.policy.require_audit and measurement.verdict == INCONCLUSIVE
    )


def _overridden(case: ReleaseCase, measurement: Measurement) -> str | None:
    """Returns who overrode this measurement of this plan. The signature is checked again, because a
    row alone is not sufficient.
    """
    if not _blocks(case, measurement):
        return None
    for row in case.ledger.rows():
        entry = None if isinstance(row, ReleaseRow) else row.entry
        if not isinstance(entry, Overridden) or entry.plan_digest != case.digest:
            continue
        moment = datetime.fromisoformat(row.recorded_at)
        with suppress(InputError):
            return _signer(case, measurement, entry.decision, moment=moment)
    return None


def _signer(
    case: ReleaseCase,
    measurement: Measurement,
    decision: Decision,
    *,
    moment: datetime | None = None,
) -> str:
    if decision.decision != "approve" or not decision.reason.strip():
        raise Missing("override: the reason is missing. Pass --reason", kind="no-reason")
    matter = replace(case.matter, subject="override", terms=override_terms(case, measurement))
    return signer(decision, case.policy.approvals, matter, moment=moment)
