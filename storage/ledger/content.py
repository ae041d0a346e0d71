"""Builds the fields of a row from what callers hand in; every number becomes an exact decimal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mechanisms.privacy.events import Claim
from storage.errors import InputError
from storage.ledger import amounts
from storage.ledger.budget import BudgetRefused
from storage.ledger.decisions import Decision
from storage.ledger.models import EPSILON_REPLACED, GENESIS, Evaluation, Mark, ReleasePlan, Row
from storage.ledger.policy import ALL_COHORTS, Policy

_CLAIMED = (
    "guarantee_kind",
    "delta_text",
    "draws",
    "neighbouring_relation",
    "privacy_unit",
    "max_records_per_unit",
    "accountant",
    "assumptions",
    "unprotected_inputs",
)


def claim_content(claim: Claim) -> dict[str, Any]:
    """Returns a claim's fields, its numbers as exact decimals, rounded up."""
    delta, failure = claim.delta, claim.mc_failure_prob
    # A pure guarantee has delta 0 by proof; a zero without words is an unset field or an underflow.
    pure = delta == 0 and claim.delta_text != ""
    losses = {
        name: getattr(claim, name) for name in ("epsilon", "sensitivity", "epsilon_add_remove")
    }
    return {
        **{name: getattr(claim, name) for name in _CLAIMED},
        **{
            name: None if value is None else amounts.epsilon(value, name=name)
            for name, value in losses.items()
        },
        "delta": None if delta is None else amounts.ZERO_DELTA if pure else amounts.delta(delta),
        "mc_failure_prob": None
        if failure is None
        else amounts.probability(failure, name="mc_failure_prob"),
    }


def replaced_details(claim: Claim | None) -> dict[str, Any]:
    """Return the epsilon of one unit's values replaced, where a claim's epsilon is not that
    already, as details.
    """
    if (
        claim is None
        or claim.guarantee_kind != "formal"
        or claim.neighbouring_relation == "replace-one"
    ):
        return {}
    if claim.epsilon_replaced is None:
        return {}
    # at a delta near 1 an accountant may say 0: rounded up as every measured amount is
    return {
        EPSILON_REPLACED: format(
            amounts.epsilon(max(claim.epsilon_replaced, amounts.LEAST_EPSILON)), "f"
        )
    }


_SAME_NAMES = (
    "idempotency_key",
    "population",
    "cohorts",
    "data_fingerprint",
    "trust_model",
    "randomness_source",
    "floating_point_caveat",
    "code_commit",
    "code_dirty",
    "lock_digest",
    "parameters_digest",
    "artifact_digests",
    "requester",
    "prefect_run_id",
)


def plan_content(plan: ReleasePlan) -> dict[str, Any]:
    """Return the fields that a release's plan settles; where nothing is claimed, nothing may be
    released.
    """
    claim = plan.claim
    if claim.guarantee_kind == "none" or plan.event.of_training.mechanism == "non-private":
        raise BudgetRefused(
            f"{plan.release_label}: mechanism {plan.event.of_training.mechanism} with guarantee "
            f"`{claim.guarantee_kind}`"
            " protects no one; it can be recorded as an evaluation, never released"
        )
    if claim.epsilon is None:
        raise InputError(f"epsilon: a {claim.guarantee_kind} claim needs one")
    if claim.guarantee_kind == "formal" and claim.delta is None:
        raise InputError(
            "delta: a formal claim needs one; for a pure guarantee give 0 and say so in delta_text"
        )
    if len(set(plan.cohorts)) != len(plan.cohorts):
        raise InputError("cohorts: one is named twice and would be charged twice")
    if ALL_COHORTS in plan.cohorts:
        raise InputError(
            f"cohorts: none may be called `{ALL_COHORTS}`, which is the account of a "
            "population's units"
        )
    return {
        **{name: getattr(plan, name) for name in _SAME_NAMES},
        **claim_content(claim),
        "kind": "release",
        "label": plan.release_label,
        "cohorts": tuple(sorted(plan.cohorts)),
        "mechanism": plan.event.of_training.mechanism,
        "event": plan.event.model_dump(mode="json"),
        "supersedes": plan.supersedes,
    }


def anticipated(plan: ReleasePlan, *, audit: Mapping[str, Any] | None) -> Row:
    """Returns the row of a plan's release as it would be drawn, for a rehearsal; no ledger has it."""
    return Row.model_validate(
        plan_content(plan)
        | {
            "sequence": 1,
            "previous_hash": GENESIS,
            "recorded_at": "",
            "state": "drawn",
            "release_id": "0" * 16,
            "details": {} if audit is None else {"audit": dict(audit)},
        }
    )


TERMS = ("idempotency_key", "label", "population", "guarantee_kind", "epsilon", "data_fingerprint")
"""Fields of a planned release that its approvers see and sign."""


def release_terms(plan: ReleasePlan, content: Mapping[str, Any] | None = None) -> dict[str, str]:
    """Returns what a signature on this plan says of it, as text; its `plan_content` may be computed
    already.
    """
    content = plan_content(plan) if content is None else content
    epsilon = str(amounts.text(content["epsilon"]))
    terms = {name: epsilon if name == "epsilon" else str(content[name]) for name in TERMS}
    return terms if plan.ledger is None else terms | {"ledger": plan.ledger.text}


def signed_terms(row: Mapping[str, Any]) -> dict[str, str]:
    """Returns what the signatures of a reserved release say, by its row as plain data."""
    terms = {name: row[name] for name in TERMS}
    mark = row["details"].get("ledger")
    return terms if mark is None else terms | {"ledger": Mark.model_validate(mark).text}


def policy_terms(name: str, in_force: Mark, *, requester: str, reason: str) -> dict[str, str]:
    """Returns what a signature on a change of policy says of it, as text.

    The row of the policy in force is of this ledger and this moment, so that a signature is good
    once.
    """
    return {"name": name, "in_force": in_force.text, "requester": requester, "reason": reason}


def evaluation_content(evaluation: Evaluation) -> dict[str, Any]:
    """Return the fields of an evaluation's or an audit's row."""
    event = evaluation.event
    return {
        **{name: getattr(evaluation, name) for name in _SAME_NAMES},
        **({} if evaluation.claim is None else claim_content(evaluation.claim)),
        "kind": evaluation.kind,
        "state": "internal" if evaluation.kind == "evaluation" else "recorded",
        "subject": evaluation.subject,
        "label": evaluation.title,
        "release_id": evaluation.release_id,
        "mechanism": None if event is None else event.of_training.mechanism,
        "event": None if event is None else event.model_dump(mode="json"),
        "details": evaluation.details | replaced_details(evaluation.claim),
    }


def policy_content(
    policy: Policy,
    *,
    requester: str,
    reason: str,
    approvals: Sequence[str] = (),
    decisions: Sequence[Decision] = (),
) -> dict[str, Any]:
    """Returns the fields of the row that puts a policy in force, the policy itself among them."""
    return {
        "kind": "budget-change",
        "state": "recorded",
        "label": policy.name,
        "policy_digest": policy.digest,
        "requester": requester,
        "approvals": tuple(approvals),
        "reason": reason,
        "details": {
            "policy": policy.as_json(),
            "decisions": [decision.model_dump(mode="json") for decision in decisions],
        },
    }
