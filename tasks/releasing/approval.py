"""Saves the signed decisions on a planned release and evaluates them under the policy in force.

A decision is a file `private/plans/<plan>.decisions/<key id>.json`; the ledger checks each again
when it reserves, so nothing depends on who may write there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from storage.bundle.trust import Trust
from storage.durable import read_regular, write_atomically
from storage.errors import InputError, StorageError
from storage.ledger import Decision, Ledger, Policy
from storage.ledger.decisions import approvers, signer
from storage.ledger.heads import encoded_key
from storage.ledger.policy import DEFAULT_POLICY
from tasks.releasing import gate
from tasks.releasing.gate import CheckedPlan
from tasks.releasing.plan import PlannedRelease
from tasks.running.stage import Context


@dataclass(frozen=True)
class ApprovalStatus:
    """Holds which decisions on a plan count, and which are missing."""

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
        return max(0, self.policy.approvals.minimum - len(self.approved))


def decisions_folder(context: Context, planned: PlannedRelease) -> Path:
    return context.workspace.private / "plans" / f"{planned.plan.idempotency_key[:16]}.decisions"


def saved_decisions(context: Context, planned: PlannedRelease) -> tuple[Decision, ...]:
    files = sorted(decisions_folder(context, planned).glob("*.json"))
    return tuple(Decision.read(file.read_text(encoding="utf-8")) for file in files)


def save_decision(context: Context, planned: PlannedRelease, decision: Decision) -> Path:
    """Saves a decision next to its plan; a key's newer decision replaces its older one."""
    folder = decisions_folder(context, planned)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{decision.key_id[:16]}.json"
    content = json.dumps(
        decision.model_dump(mode="json"), indent=2, sort_keys=True, ensure_ascii=False
    )
    write_atomically(file, content.encode() + b"\n")
    return file


def accept_decision(context: Context, plan: CheckedPlan, decision: Decision) -> str:
    """Saves a valid decision, a refusal in the ledger too; returns who signed it."""
    name = signer(decision, plan.policy.approvals, plan.matter)
    if decision.decision == "refuse":
        plan.ledger.refuse(
            plan.plan, decision
        )  # before the file, and again after a death: it records only the first
    elif any(
        (earlier.key_id, earlier.digest, earlier.decision)
        == (decision.key_id, decision.digest, decision.decision)
        for earlier in saved_decisions(context, plan.planned)
    ):
        raise InputError(f"approval by {name}: already given. Each person counts once")
    save_decision(context, plan.planned, decision)
    return name


def approval_status(context: Context, plan: CheckedPlan) -> ApprovalStatus:
    """Evaluates the saved decisions on a plan under its policy."""
    return weigh(plan, saved_decisions(context, plan.planned))


def require_unrefused(context: Context, plan: CheckedPlan) -> ApprovalStatus:
    """Returns the status of a plan without a refusal; records a saved refusal in the ledger first."""
    status = approval_status(context, plan)
    if status.refusal is not None:
        plan.ledger.refuse(plan.plan, status.refusal)
    row = plan.ledger.refusal(plan.plan)
    if row is not None:
        raise StorageError(
            f"{row.entry.reason} (ledger row {row.sequence}). Nothing was released or charged"
        )
    return status


def require_read(plan: CheckedPlan, accepted: str | None) -> None:
    """Refuses texts of no published list, unless the policy asks for signatures or someone states
    their digest.
    """
    output = plan.planned.output
    # guard: test_texts_that_nobody_read
    if output.texts and not plan.policy.approvals.minimum and accepted != output.texts_digest:
        raise StorageError(
            f"plan {plan.plan.release_label}: the bundle would contain {len(output.texts)} texts "
            "of no published "
            "list. `autocoder plan PLAN` prints them. If all may be released, give "
            "--accept-texts with the digest that "
            "it prints, or have an officer sign (`approvals` of the policy)"
        )


def may_release(plan: CheckedPlan, status: ApprovalStatus, *, file: str, deployed: bool) -> bool:
    """Checks whether the plan may be released now. No one is asked to sign a plan that the gate
    would stop.

    Args:
        deployed: a deployment releases it, which can wait for approvals and needs a policy of the
            agency.
    """
    if plan.released is not None:
        return True
    if deployed and plan.policy.digest == DEFAULT_POLICY.digest:
        raise StorageError(
            f"plan {file}: there is no budget policy, and without one a deployment releases "
            "nothing. Record a "
            "policy (`autocoder ledger change-policy`), then retry"
        )
    if status.missing:
        gate.check(plan)
    if status.missing and not deployed:
        missing = f"{status.missing} of {status.policy.approvals.signatures_required} missing"
        raise StorageError(
            "; ".join((f"plan {file}: {missing} (`autocoder approve`)", *status.problems))
        )
    return not status.missing


def weigh(plan: CheckedPlan, decisions: Sequence[Decision]) -> ApprovalStatus:
    """Separates the decisions that count from those that do not."""
    rule = plan.policy.approvals
    good: list[Decision] = []
    names: tuple[str, ...] = ()
    problems: list[str] = []
    refusal: Decision | None = None
    for decision in decisions:
        try:
            if decision.decision == "refuse":
                signer(decision, rule, plan.matter)
                refusal = refusal or decision
            else:
                names = approvers([*good, decision], rule, plan.matter)
                good.append(decision)
        except InputError as error:
            problems.append(str(error))
    return ApprovalStatus(plan.policy, names, tuple(good), refusal, tuple(problems))


def pinned_key(given: Path | None) -> Path | None:
    """Returns the file of the agency's key, or roots, that is pinned on this desk; pins the one
    given where none is.
    """
    base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    pinned = base / "autocoder" / "agency-key"
    if given is None:
        return pinned if pinned.is_file() else None
    content = read_regular(given.expanduser(), 8 << 20, option="--agency-key")
    if not pinned.is_file():
        Trust(given.expanduser()).load()
        pinned.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(pinned, content)
    elif pinned.read_bytes() != content:
        raise InputError(
            f"--agency-key {given}: another key is pinned. Remove {pinned} to pin this one"
        )
    return pinned


def require_agencys(ledger: Ledger, pinned: Path, *, first: bool = False) -> None:
    """Refuses a ledger that no release shows to be the agency's: its budget would be anyone's word.

    Args:
        first: the officer says that the agency released nothing yet, so that none is asked for.
    """
    root = Trust(pinned).load()
    keys = root.sealing_keys("") + [
        key for earlier in root.earlier for key in root.sealing_keys(earlier.release_id)
    ]
    # guard: test_a_ledger_of_the_operators_own
    if {row.signer for row in ledger.rows() if row.signer is not None} - {
        encoded_key(key) for key in keys
    }:
        raise StorageError(
            f"ledger {ledger.database.name}: another key than the agency's pinned one signed "
            "releases in it. Nothing "
            "was signed. Ask the agency which ledger and key are its own"
        )
    state = ledger.state()
    # guard: test_a_ledger_in_which_no_release_counts
    if not state.releases and not first:
        start = "none" if state.mark is None else state.mark.text
        raise StorageError(
            f"ledger {ledger.database.name}: no release in it has an effect, so that no signature "
            f"shows that it is the agency's. Before the agency's first release compare where it "
            f"stands ({start}) with the agency's own, then give --first-release"
        )
