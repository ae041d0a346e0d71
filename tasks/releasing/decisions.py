"""Stores the signed decisions on a planned release, and counts those that its policy accepts.

A decision is a file `private/plans/<plan>.decisions/<key id>.json`. The ledger checks each decision
again when it reserves, so write access to the folder gives no power.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from storage.durable import write_atomically
from storage.errors import InputError
from storage.ledger import Decision, Policy
from storage.ledger.decisions import Matter, signer
from tasks.releasing.plan import PlannedRelease
from tasks.running.stage import Context


@dataclass(frozen=True)
class ApprovalStatus:
    """The decisions on a plan that count, and those that are missing."""

    policy: Policy
    approved: tuple[str, ...]
    """Names of the approvers with approvals that count."""
    decisions: tuple[Decision, ...]
    """Their decisions, in the same order."""
    refusal: Decision | None = None
    problems: tuple[str, ...] = ()
    """Why other decisions do not count."""

    @property
    def missing(self) -> int:
        return max(0, self.policy.approvals.minimum - len(self.approved))


def decisions_folder(context: Context, planned: PlannedRelease) -> Path:
    return context.workspace.private / "plans" / f"{planned.plan.idempotency_key[:16]}.decisions"


def saved_decisions(context: Context, planned: PlannedRelease) -> tuple[Decision, ...]:
    files = sorted(decisions_folder(context, planned).glob("*.json"))
    return tuple(Decision.read(file.read_text(encoding="utf-8")) for file in files)


def save_decision(context: Context, planned: PlannedRelease, decision: Decision) -> Path:
    """Saves a decision next to its plan. A key's newer decision replaces its older one."""
    folder = decisions_folder(context, planned)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{decision.key_id[:16]}.json"
    content = json.dumps(
        decision.model_dump(mode="json"), indent=2, sort_keys=True, ensure_ascii=False
    )
    write_atomically(file, content.encode() + b"\n")
    return file


def count_approvals(
    policy: Policy, matter: Matter, decisions: Sequence[Decision]
) -> ApprovalStatus:
    """Separates the decisions that count from the others. Each signature is checked once."""
    approvals: dict[str, Decision] = {}
    problems: list[str] = []
    refusal: Decision | None = None
    for decision in decisions:
        try:
            name = signer(decision, policy.approvals, matter)
        except InputError as error:
            problems.append(str(error))
            continue
        if decision.decision == "refuse":
            refusal = refusal or decision
        elif name in approvals:
            problems.append(f"approval by {name}: already given. Each person counts once")
        else:
            approvals[name] = decision
    names, counted = tuple(approvals), tuple(approvals.values())
    return ApprovalStatus(policy, names, counted, refusal, tuple(problems))
