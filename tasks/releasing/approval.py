"""Approvals of a planned release: signed decisions kept beside the plan, weighed under the policy in force.

A decision is a file `private/plans/<plan>.decisions/<key id>.json`; the ledger checks each again when it reserves, so
nothing rests on who may write there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from storage.durable import write_atomically
from storage.errors import InputError, StorageError
from storage.ledger import Decision, Ledger, Policy
from storage.ledger.content import release_terms
from storage.ledger.decisions import approvers, signer
from storage.ledger.policy import DEFAULT_POLICY
from tasks.parameters import DEMO
from tasks.releasing import gate
from tasks.releasing.plan import PlannedRelease
from tasks.running.stage import Context


@dataclass(frozen=True)
class Standing:
    """How far a plan is from its release."""

    policy: Policy
    approved: tuple[str, ...]
    """Names of those whose approvals count."""
    decisions: tuple[Decision, ...]
    """Their decisions, in the same order."""
    refusal: Decision | None = None
    problems: tuple[str, ...] = ()
    """Why other decisions do not count."""

    @property
    def missing(self) -> int:
        """Approvals still wanted."""
        return max(0, self.policy.approvals.minimum - len(self.approved))


def folder_of(context: Context, planned: PlannedRelease) -> Path:
    """Where the decisions on a plan are kept."""
    return context.workspace.private / "plans" / f"{planned.plan.idempotency_key[:16]}.decisions"


def kept(context: Context, planned: PlannedRelease) -> tuple[Decision, ...]:
    """The decisions kept beside a plan, in the order of their key ids.

    Raises:
        InputError: a file there is no decision.
    """
    files = sorted(folder_of(context, planned).glob("*.json"))
    return tuple(Decision.read(file.read_text(encoding="utf-8")) for file in files)


def keep(context: Context, planned: PlannedRelease, decision: Decision) -> Path:
    """Keep a decision beside its plan; a key's newer decision takes the place of its older one."""
    folder = folder_of(context, planned)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{decision.key_id[:16]}.json"
    content = json.dumps(decision.model_dump(mode="json"), indent=2, sort_keys=True, ensure_ascii=False)
    write_atomically(file, content.encode() + b"\n")
    return file


def admit(context: Context, ledger: Ledger, planned: PlannedRelease, decision: Decision) -> str:
    """Keep a decision that counts, a refusal in the ledger too; return who signed it.

    Raises:
        InputError: it is wrong or stale, an approval repeats its signer's, or a refusal comes after the release.
    """
    name = signer(
        decision,
        ledger.policy().approvals,
        subject="release",
        digest=planned.digest,
        terms=release_terms(planned.plan),
        requester=planned.plan.requester,
    )
    if decision.decision == "refuse":
        ledger.refuse(planned.plan, decision)  # before the file, and again after a death: it records only the first
    elif any(
        (earlier.key_id, earlier.digest, earlier.decision) == (decision.key_id, decision.digest, decision.decision)
        for earlier in kept(context, planned)
    ):
        raise InputError(f"approval by {name}: given already; each person counts once")
    keep(context, planned, decision)
    return name


def standing(context: Context, ledger: Ledger, planned: PlannedRelease) -> Standing:
    """Weigh what is kept beside a plan under the policy in force."""
    return weigh(ledger.policy(), planned, kept(context, planned))


def require_unrefused(context: Context, ledger: Ledger, planned: PlannedRelease) -> Standing:
    """How far a plan is that nobody has refused; a refusal that is kept beside it goes into the ledger first.

    Raises:
        StorageError: it is refused.
    """
    stands = standing(context, ledger, planned)
    if stands.refusal is not None:
        ledger.refuse(planned.plan, stands.refusal)
    row = ledger.refusal(planned.plan)
    if row is not None:
        raise StorageError(f"{row.reason} (ledger row {row.sequence}); nothing was drawn or charged")
    return stands


def suffices(ledger: Ledger, planned: PlannedRelease, stands: Standing, *, plan: str, deployed: bool) -> bool:
    """Whether the plan may be released now. Nobody is asked to sign what the gate would stop afterwards.

    Args:
        plan: its path, for errors.
        deployed: a deployment asks, which can wait for what is missing and must have a policy of the agency's own.

    Raises:
        BudgetRefused: the policy wants an audit that is not there, or an audit contradicts the claim.
        StorageError: there is no such policy, or approvals are missing and nothing can wait for them.
    """
    if ledger.release_of(planned.plan) is not None:
        return True
    if deployed and stands.policy.digest == DEFAULT_POLICY.digest and planned.plan.population != DEMO:
        raise StorageError(
            f"plan {plan}: no budget policy is in force, and without one a deployment releases the population "
            f"{DEMO} alone; record the agency's (`autocoder ledger change-policy`), then Retry"
        )
    if stands.missing:
        gate.check(ledger, planned)
    if stands.missing and not deployed:
        missing = f"{stands.missing} of {stands.policy.approvals.wanted} missing"
        raise StorageError("; ".join((f"plan {plan}: {missing} (`autocoder approve`)", *stands.problems)))
    return not stands.missing


def weigh(policy: Policy, planned: PlannedRelease, decisions: Sequence[Decision]) -> Standing:
    """Sort decisions into those that count and those that do not."""
    rule, plan = policy.approvals, planned.plan
    good: list[Decision] = []
    names: tuple[str, ...] = ()
    problems: list[str] = []
    refusal: Decision | None = None
    for decision in decisions:
        common = {
            "subject": "release",
            "digest": planned.digest,
            "terms": release_terms(plan),
            "requester": plan.requester,
        }
        try:
            if decision.decision == "refuse":
                signer(decision, rule, **common)
                refusal = refusal or decision
            else:
                names = approvers([*good, decision], rule, **common)
                good.append(decision)
        except InputError as error:
            problems.append(str(error))
    return Standing(policy, names, tuple(good), refusal, tuple(problems))
