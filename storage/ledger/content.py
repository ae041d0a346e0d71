"""Settles what callers hand in, before it becomes an entry; and the terms that
signatures are on.
"""

from __future__ import annotations

from storage.errors import Contradiction, Missing
from storage.ledger import amounts
from storage.ledger.budget import BudgetRefused
from storage.ledger.entries import ReleaseRow, Reserved, Row, StatedAudit
from storage.ledger.models import GENESIS, Exact, LedgerPosition, ReleasePlan
from storage.ledger.policy import ALL_COHORTS


def settled(plan: ReleasePlan) -> ReleasePlan:
    """Returns a plan that may be released, its cohorts in order; where nothing is claimed, nothing
    may be.
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
    Exact.of(claim)  # refuses numbers that no budget can be kept with
    return plan.model_copy(update={"cohorts": tuple(sorted(plan.cohorts))})


def anticipated(plan: ReleasePlan, *, audit: StatedAudit | None) -> ReleaseRow:
    """Returns a plan's release as it would be drawn, for a rehearsal; no ledger has it."""
    entry = Reserved(release_id="0" * 16, plan=settled(plan), policy_digest="0" * 64, audit=audit)
    row = Row[Reserved](sequence=1, previous_hash=GENESIS, recorded_at="", entry=entry)
    return ReleaseRow(row, entry, Exact.of(plan.claim), "drawn")


def release_terms(plan: ReleasePlan) -> dict[str, str]:
    """Returns what a signature on a plan that may be released says of it, as text."""
    return terms_of(settled(plan))


def terms_of(plan: ReleasePlan, exact: Exact | None = None) -> dict[str, str]:
    """Returns the terms of a plan, whatever it is.

    Args:
        exact: the amounts of its claim, where they are known already.
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
    """Returns what a signature on a change of policy says of it, as text.

    The row of the policy in force is of this ledger and this moment, so that a signature is good
    once.
    """
    return {"name": name, "in_force": in_force.text, "requester": requester, "reason": reason}
