"""Checks a plan against its ledger and policy, and the audits of its candidate against its claim,
before a reservation.

The gate refuses a release whose claim an audit contradicts and records that in the ledger. Only a
signed override with a reason lets it pass: by a person whose key the policy lists, other than the
requester, over the plan and the measurement. Where the policy requires a conclusive audit, an
inconclusive one is refused and overridden in the same way.
"""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

from mechanisms.errors import MechanismError
from mechanisms.privacy.claims import of_one_record
from storage.errors import InputError
from storage.ledger import BudgetRefused, Decision, Ledger, Policy, ReleasePlan, ReleaseRow
from storage.ledger.content import release_terms
from storage.ledger.decisions import Matter, signer
from storage.ledger.entries import Blocked, ChainRow, Overridden, StatedAudit
from tasks.releasing.evidence import (
    CONTRADICTED,
    INCONCLUSIVE,
    USUAL_CONFIDENCE,
    Evidence,
    Measurement,
    audits_of,
    describe_reach,
    has_reruns,
    measurement_of,
)
from tasks.releasing.plan import PlannedRelease
from tasks.running.stage import Context


@dataclass(frozen=True)
class CheckedPlan:
    """Holds a plan that could be released, the policy in force, its release if it has one, and what
    is signed of it.
    """

    planned: PlannedRelease
    ledger: Ledger
    policy: Policy
    released: ReleaseRow | None
    """Its release as it is now."""
    matter: Matter
    """What a signature on it is about."""

    @property
    def plan(self) -> ReleasePlan:
        return self.planned.plan

    @property
    def digest(self) -> str:
        """Returns the SHA-256 of everything that an approval covers."""
        return self.matter.digest

    @cached_property
    def measurement(self) -> Measurement | None:
        """Returns the audit that speaks most against the claim, or the best one for it; None
        without any audit.
        """
        return measurement_of(
            self.ledger,
            fitted=self.planned.candidate.fitted.sha256,
            fingerprint=self.plan.data_fingerprint,
            event=self.plan.event,
            claim=self.plan.claim,
            minimum=self.policy.audit_reach,
        )

    def require_current(self, context: Context) -> None:
        """Requires, of a plan without a release, that it is this ledger's and states how its fit
        was chosen.
        """
        if self.released is not None:
            return
        self.ledger.require_here(self.plan)
        now = self.planned.selection_now(self.ledger, context)
        # guard: test_the_number_left_out_or_another
        if now != self.planned.selection:
            raise MechanismError(
                f"this plan is out of date: {now.since(self.planned.selection)}. Partners are "
                "told this, so the plan "
                "must state it. Nothing was charged. State it again, which takes seconds and "
                "needs approvals again: "
                f"`autocoder plan {shlex.quote(str(self.planned.file(context)))} --renew`. Then "
                "release it"
            )

    @staticmethod
    def of(planned: PlannedRelease, ledger: Ledger, policy: Policy | None = None) -> CheckedPlan:
        """Returns a plan with what the ledger knows of it now; the policy is by default the one in
        force.
        """
        plan = planned.plan
        matter = Matter("release", planned.digest, release_terms(plan), plan.requester)
        return CheckedPlan(
            planned, ledger, policy or ledger.policy(), ledger.find(plan.idempotency_key), matter
        )


def check(plan: CheckedPlan) -> StatedAudit | None:
    """Accepts a plan or refuses it; returns the measurement for the release's row."""
    measurement, problem = plan.measurement, obstacle(plan)
    if problem is None:
        return None if measurement is None else _stated(plan, measurement)
    if measurement is None or measurement.verdict != CONTRADICTED:
        raise BudgetRefused(problem)
    row = plan.ledger.note(
        Blocked(
            plan_digest=plan.digest,
            audit_row=measurement.ledger_sequence,
            line=measurement.line,
            requester=plan.plan.requester,
        )
    )
    raise BudgetRefused(
        f"the audit of row {measurement.ledger_sequence} contradicts the claim: "
        f"{measurement.line}. Blocked (ledger "
        f"row {row.sequence}). Nothing was released or charged. {_remedy(plan)}"
    )


def _stated(plan: CheckedPlan, measurement: Measurement) -> StatedAudit:
    by = _overridden(plan, measurement)
    figures = measurement.model_dump(mode="json")
    if by is None:
        return StatedAudit(line=measurement.line, **figures)
    # the reason, which is free text, stays in the ledger
    line = f"{measurement.line}; overridden by {by}"
    return StatedAudit(line=line, **figures, overridden_by=by)


def _remedy(plan: CheckedPlan) -> str:
    signed = "`autocoder approve --despite-audit` with a reason and an approver's key"
    if plan.plan.claim.guarantee_kind == "formal":
        return (
            "A formal claim that is contradicted is a fault of the program: report it. Only "
            f"{signed} lets it pass"
        )
    return (
        "Plan a release of a formal method (`autocoder train --profile formal`), or accept "
        f"the measurement: {signed}"
    )


def obstacle(plan: CheckedPlan) -> str | None:
    """Returns in one sentence why the gate would refuse a plan now. Records nothing."""
    measurement = plan.measurement
    if measurement is not None and _overridden(plan, measurement) is not None:
        return None
    if measurement is not None and measurement.verdict == CONTRADICTED:
        return f"the audit of row {measurement.ledger_sequence} contradicts the claim"
    return _lacks_audit(plan, measurement) if plan.policy.require_audit else None


def _lacks_audit(plan: CheckedPlan, measurement: Measurement | None) -> str | None:
    policy, claim = plan.policy, plan.plan.claim
    rows = [
        Evidence.of(row.evaluation.details)
        for row in audits_of(plan.ledger, plan.planned.candidate.fitted.sha256)
    ]
    usual = [bound for bound in rows if bound.confidence <= USUAL_CONFIDENCE]
    reran = [bound for bound in rows if has_reruns(bound)]
    if any(bound.judge(claim, minimum=policy.audit_reach) != INCONCLUSIVE for bound in reran):
        return None
    if not usual:
        why = f"was not audited at a confidence of {USUAL_CONFIDENCE:g} or less"
    elif not reran:
        why = "was audited without repeating its mechanism (--trials 0)"
    else:
        most = max(bound.reach for bound in reran)
        why = f"was audited without result: {describe_reach(most, of_one_record(claim))}"
    accepted = measurement is not None and bool(reran)
    return (
        f"policy {policy.name} requires an audit that could have contradicted the claim. This "
        f"plan {why}. "
        f"Run `autocoder audit PLAN`{' with more --trials' if usual else ''}"
        + (
            (
                f", or let an approver accept audit row {measurement.ledger_sequence}: `autocoder "
                "approve --despite-audit`"
            )
            if accepted and measurement is not None
            else ""
        )
    )


def override_terms(plan: CheckedPlan, measurement: Measurement) -> dict[str, str]:
    """Returns the terms that an override signs, with the plan's digest. A larger bound makes it
    stale.
    """
    named = {
        "epsilon_lower_bound": f"{measurement.epsilon_lower_bound:.6f}",
        "audit_row": str(measurement.ledger_sequence),
    }
    if measurement.verdict != CONTRADICTED:
        named["verdict"] = measurement.verdict
    return {**plan.matter.terms, **named}


def override(plan: CheckedPlan, decision: Decision) -> ChainRow:
    """Records a signed override."""
    measurement = plan.measurement
    if measurement is None or not _blocks(plan, measurement):
        raise InputError(
            "override: no audit contradicts this plan's claim. There is nothing to override"
        )
    if measurement.verdict != CONTRADICTED and not has_reruns(measurement):
        raise InputError(
            f"override: the audit of row {measurement.ledger_sequence} did not rerun the "
            "mechanism, or has a "
            f"confidence above {USUAL_CONFIDENCE:g}. Run `autocoder audit` with --trials, then "
            "sign its result"
        )
    return plan.ledger.note(
        Overridden(
            plan_digest=plan.digest,
            audit_row=measurement.ledger_sequence,
            line=measurement.line,
            decision=decision,
            by=_signer(plan, measurement, decision),
            requester=plan.plan.requester,
        )
    )


def _blocks(plan: CheckedPlan, measurement: Measurement) -> bool:
    return measurement.verdict == CONTRADICTED or (
        plan.policy.require_audit and measurement.verdict == INCONCLUSIVE
    )


def _overridden(plan: CheckedPlan, measurement: Measurement) -> str | None:
    """Returns who overrode this measurement of this plan. Checks the signature again; a row alone
    is not enough.
    """
    if not _blocks(plan, measurement):
        return None
    for row in plan.ledger.rows():
        entry = None if isinstance(row, ReleaseRow) else row.entry
        if not isinstance(entry, Overridden) or entry.plan_digest != plan.digest:
            continue
        moment = datetime.fromisoformat(row.recorded_at)
        with suppress(InputError):
            return _signer(plan, measurement, entry.decision, moment=moment)
    return None


def _signer(
    plan: CheckedPlan,
    measurement: Measurement,
    decision: Decision,
    *,
    moment: datetime | None = None,
) -> str:
    if decision.decision != "approve" or not decision.reason.strip():
        raise InputError("override: the reason is missing. Give --reason")
    matter = replace(plan.matter, subject="override", terms=override_terms(plan, measurement))
    return signer(decision, plan.policy.approvals, matter, moment=moment)
