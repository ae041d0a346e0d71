"""Validates and normalises plans before they become entries, and computes the terms that are
signed.
"""

from __future__ import annotations

from storage.errors import Contradiction, Missing
from storage.ledger import amounts
from storage.ledger.budget import BudgetRefused
from storage.ledger.entries import ReleaseRow, Reserved, Row, StatedAudit
from storage.ledger.models import GENESIS, Exact, LedgerPosition, ReleasePlan
from storage.ledger.policy import ALL_COHORTS


def settled(plan: ReleasePlan) -> ReleasePlan:
    """Normalises a plan for release, with sorted cohorts. Refuses plans that must not be released,
    such as plans without a claim.
    """
    claim = plan.claim
    if claim.guarantee_kind == "none" or plan.event.of_training.mechanism == "non-private":
        raise BudgetRefused(
            f"{plan.release_label}: mechanism {plan.event.of_training.mechanism} "
            f"with guarantee `{claim.guarantee_kind}` protects no one. It can be "
            "recorded as an evaluation, but never released",
            kind="unmatched-claim",
        )
    if claim.epsilon is None:
        raise Missing(f"epsilon: a {claim.guarantee_kind} claim needs one", kind="epsilon-missing")
    if claim.guarantee_kind == "formal" and claim.delta is None:
        raise Missing(
            "delta: a formal claim needs one. For a pure guarantee use 0, and "
            "explain it in delta_text",
            kind="delta-missing",
        )
    if len(set(plan.cohorts)) != len(plan.cohorts):
        raise Contradiction(
            "cohorts: one is listed twice and would be charged twice", kind="repeated-cohort"
        )
    if ALL_COHORTS in plan.cohorts:
        raise Contradiction(
            f"cohorts: `{ALL_COHORTS}` is reserved for the account of a "
            "population's units. Use another name",
            kind="reserved-cohort",
        )
    Exact.of(claim)  # refuses numbers that cannot be used in a budget
    return plan.model_copy(update={"cohorts": tuple(sorted(plan.cohorts))})


def anticipated(plan: ReleasePlan, *, audit: StatedAudit | None) -> ReleaseRow:
    """A plan's release as it would be drawn, for a rehearsal. It is not in any ledger."""
    entry = Reserved(release_id="0" * 16, plan=settled(plan), policy_digest="0" * 64, audit=audit)
    row = Row[Reserved](sequence=1, previous_hash=GENESIS, recorded_at="", entry=entry)
    return ReleaseRow(row, entry, Exact.of(plan.claim), "drawn")


def release_terms(plan: ReleasePlan) -> dict[str, str]:
    """The terms that a signature on a releasable plan covers, as text."""
    return terms_of(settled(plan))


def terms_of(plan: ReleasePlan, exact: Exact | None = None) -> dict[str, str]:
    """The terms of any plan.

    Args:
        exact: the exact amounts of its claim, if already known.
    """
    terms = {
        "idempotency_key": plan.idempotency_key,
        "label": plan.release_label,
        "population": plan.population,
        "guarantee_kind": plan.claim.guarantee_kind,
        "epsilon": str(amounts.text((exact or Exact.of(plan.claim)).epsilon)),
        "data_fingerprint": plan.data_fingerprint,
    }
    return terms if plan.ledger is None else terms | {"ledger": plan.ledger.text}


def policy_terms(
    name: str, in_force: LedgerPosition, *, requester: str, reason: str
) -> dict[str, str]:
    """The terms that a signature on a change of policy covers, as text.

    They include the position of the policy in force, so that a signature is valid only once and
    only in this ledger.
    """
    return {"name": name, "in_force": in_force.text, "requester": requester, "reason": reason}
