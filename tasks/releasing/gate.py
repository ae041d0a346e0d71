"""The gate: what audits say of a candidate, held against its claim before anything is reserved.

A lower bound above the claimed epsilon contradicts the claim. The release is refused then, the ledger says so, and only
a signed override with a reason lets it pass: by somebody whose key the policy names, other than the requester, over the
plan and the measurement that they saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

from mechanisms.privacy.events import Claim
from storage.errors import InputError
from storage.ledger import BudgetRefused, Decision, Evaluation, Ledger, Row
from storage.ledger.content import release_terms
from storage.ledger.decisions import from_row, signer
from tasks.releasing.plan import PlannedRelease

USUAL_CONFIDENCE = 0.95
"""An audit at more than this bounds less: enough more, and it can contradict nothing."""
AUDITED = "audited"
"""Name, among a row's artifacts, of the fit or posterior that an audit looked at."""


def verdict(claim: Claim, lower_bound: float) -> str:
    """What the measurement says of the claim: nothing proves a claim, some refute it.

    Args:
        lower_bound: on epsilon of adding or removing one. A claim of replacing one is held to its own figure for that.
    """
    if claim.epsilon is None:
        return "no claim"
    replaces = claim.neighbouring_relation == "replace-one" and claim.epsilon_add_remove is not None
    claimed = claim.epsilon_add_remove if replaces else claim.epsilon
    return "contradicted" if lower_bound > (claimed or 0.0) else "not contradicted"


class Measured(BaseModel):
    """What audits say of one candidate, in the words of a statement: the largest bound of them."""

    model_config = ConfigDict(frozen=True)

    epsilon_claimed: float | None
    epsilon_lower_bound: float
    confidence: float
    auc: float
    tpr_at_fpr_0001: float
    trials: int
    verdict: str
    ledger_sequence: int

    @property
    def line(self) -> str:
        """Claim and measurement in one line."""
        claimed = "nothing" if self.epsilon_claimed is None else f"ε {self.epsilon_claimed:.4g}"
        by = f"{self.trials} reruns and " if self.trials else ""
        return (
            f"claimed {claimed}, measured at least ε {self.epsilon_lower_bound:.3g} "
            f"({100 * self.confidence:.6g} % confidence, {by}one membership test: AUC {self.auc:.3f}, "
            f"TPR {self.tpr_at_fpr_0001:.2%} at FPR 0.1 %): {self.verdict}"
        )


def audits_of(ledger: Ledger, fitted: str) -> Sequence[Row]:
    """Audits of one fit or posterior, by its digest, oldest first."""
    return [row for row in ledger.rows() if row.kind == "audit" and row.artifact_digests.get(AUDITED) == fitted]


def measured(ledger: Ledger, fitted: str, claim: Claim) -> Measured | None:
    """The audit with the largest bound of a candidate, held against this claim; None where there is no audit.

    A smaller bound takes nothing back: each of them holds with its confidence.
    """
    rows = audits_of(ledger, fitted)
    if not rows:
        return None
    row = max(rows, key=lambda one: one.details["epsilon_lower_bound"])
    told = row.details
    return Measured(
        epsilon_claimed=claim.epsilon,
        epsilon_lower_bound=told["epsilon_lower_bound"],
        confidence=told["confidence"],
        auc=told["auc"],
        tpr_at_fpr_0001=told["tpr_at_fpr_0.001"],
        trials=told["trials"],
        verdict=verdict(claim, told["epsilon_lower_bound"]),
        ledger_sequence=row.sequence,
    )


def check(ledger: Ledger, planned: PlannedRelease) -> dict[str, Any] | None:
    """Let a plan pass, or refuse it; returns what was measured, for the release's row.

    Raises:
        BudgetRefused: an audit contradicts the claim and nobody has overridden it, or the policy wants an audit and
            there is none. Nothing was drawn or charged.
    """
    plan = planned.plan
    found = measured(ledger, planned.candidate.fitted.sha256, plan.claim)
    audited = [row.details["confidence"] for row in audits_of(ledger, planned.candidate.fitted.sha256)]
    if ledger.policy().require_audit and min(audited, default=1.0) > USUAL_CONFIDENCE:
        raise BudgetRefused(
            f"policy {ledger.policy().name} releases nothing that was not audited at a confidence of "
            f"{USUAL_CONFIDENCE:g} or less; run `autocoder audit` with the options of the retrain"
        )
    if found is None:
        return None
    told = found.model_dump(mode="json") | {"line": found.line}
    if found.verdict != "contradicted":
        return told
    overridden = _overridden(ledger, planned, found)
    if overridden is not None:
        by, decision = overridden
        return told | {"line": f"{found.line}; overridden by {by}: {decision.reason}", "overridden_by": by}
    row = _record(
        ledger,
        planned,
        label="release blocked: contradicted by an audit",
        key=f"blocked-{planned.digest}-{found.ledger_sequence}",
        details={"verdict": "blocked", "audit_row": found.ledger_sequence, "line": found.line},
    )
    raise BudgetRefused(
        f"the audit of row {found.ledger_sequence} contradicts the claim: {found.line}. Blocked (ledger row "
        f"{row.sequence}); nothing was drawn or charged. `autocoder override` with a reason and an approver's key"
    )


def override_terms(planned: PlannedRelease, found: Measured) -> dict[str, str]:
    """What an override is signed over, beside the plan's digest: a larger bound found later makes it stale."""
    return release_terms(planned.plan) | {
        "epsilon_lower_bound": f"{found.epsilon_lower_bound:.6f}",
        "audit_row": str(found.ledger_sequence),
    }


def override(ledger: Ledger, planned: PlannedRelease, decision: Decision) -> Row:
    """Record a signed override.

    Raises:
        InputError: nothing contradicts the claim, there is no reason, or the signature does not count.
    """
    found = measured(ledger, planned.candidate.fitted.sha256, planned.plan.claim)
    if found is None or found.verdict != "contradicted":
        raise InputError("override: no audit contradicts this plan's claim; there is nothing to override")
    by = _signer(ledger, planned, found, decision)
    return _record(
        ledger,
        planned,
        label=f"override by {by}: {decision.reason}"[:300],
        key=f"override-{planned.digest}-{found.ledger_sequence}-{decision.key_id[:16]}",
        details={
            "verdict": "overridden",
            "audit_row": found.ledger_sequence,
            "plan_digest": planned.digest,
            "line": found.line,
            "decisions": [decision.model_dump(mode="json")],
        },
    )


def _overridden(ledger: Ledger, planned: PlannedRelease, found: Measured) -> tuple[str, Decision] | None:
    """Who overrode this contradiction of this plan; a row alone is not believed, its signature is checked again."""
    for row in ledger.rows():
        if row.kind != "audit" or row.details.get("plan_digest") != planned.digest:
            continue
        for decision in from_row(row.details):
            try:
                return _signer(ledger, planned, found, decision, at=datetime.fromisoformat(row.recorded_at)), decision
            except InputError:
                continue
    return None


def _signer(
    ledger: Ledger, planned: PlannedRelease, found: Measured, decision: Decision, *, at: datetime | None = None
) -> str:
    if decision.decision != "approve" or not decision.reason.strip():
        raise InputError("override: it needs a reason")
    return signer(
        decision,
        ledger.policy().approvals,
        subject="override",
        digest=planned.digest,
        terms=override_terms(planned, found),
        requester=planned.plan.requester,
        at=at,
    )


def _record(ledger: Ledger, planned: PlannedRelease, *, label: str, key: str, details: dict[str, Any]) -> Row:
    plan = planned.plan
    return ledger.record(
        Evaluation(
            kind="audit",
            label=label,
            population=plan.population,
            cohorts=plan.cohorts,
            data_fingerprint=plan.data_fingerprint,
            event=plan.event,
            claim=plan.claim,
            code_commit=plan.code_commit,
            code_dirty=plan.code_dirty,
            requester=plan.requester,
            idempotency_key=key,
            details=details,
        )
    )
