"""Accepts signed decisions on a planned release, and determines whether it may be released now."""

from __future__ import annotations

import os
from pathlib import Path

from storage.bundle.trust import Trust
from storage.durable import read_regular, write_atomically
from storage.errors import Contradiction, StorageError
from storage.ledger import Decision, Ledger
from storage.ledger.decisions import signer
from storage.ledger.keys import encoded_key
from storage.ledger.policy import DEFAULT_POLICY
from tasks.releasing import gate
from tasks.releasing.case import ReleaseCase
from tasks.releasing.decisions import save_decision
from tasks.running.stage import Context


def accept_decision(context: Context, case: ReleaseCase, decision: Decision) -> str:
    """Saves a valid decision, and records a refusal in the ledger too. Returns the
    signer's name.
    """
    name = signer(decision, case.policy.approvals, case.matter)
    if decision.decision == "refuse":
        # before the file is written, and again after a crash: only the first refusal is recorded
        case.ledger.refuse(case.plan, decision)
    elif any(_is_the_same(earlier, decision) for earlier in case.decisions):
        raise Contradiction(
            f"approval by {name}: already given. Each person counts once", kind="repeated-approval"
        )
    save_decision(context, case.planned, decision)
    return name


def _is_the_same(earlier: Decision, decision: Decision) -> bool:
    return (earlier.key_id, earlier.digest, earlier.decision) == (
        decision.key_id,
        decision.digest,
        decision.decision,
    )


def require_unrefused(case: ReleaseCase) -> None:
    """Raises if the plan was refused. A saved refusal is recorded in the ledger first."""
    refusal = case.approvals.refusal
    if refusal is not None:
        case.ledger.refuse(case.plan, refusal)
    row = case.ledger.refusal(case.plan)
    if row is not None:
        raise StorageError(
            f"{row.entry.reason} (ledger row {row.sequence}). Nothing was released or charged",
            kind="refused-earlier",
            row=row.sequence,
        )


def require_read(case: ReleaseCase, accepted: str | None) -> None:
    """Refuses unpublished texts, unless the policy requires signatures or their
    digest was passed.
    """
    output = case.planned.output
    # guard: test_texts_that_nobody_read
    if output.texts and not case.policy.approvals.minimum and accepted != output.texts_digest:
        raise StorageError(
            f"plan {case.plan.release_label}: the bundle would contain "
            f"{len(output.texts)} texts of no published list. `autocoder plan "
            "PLAN` prints them. If all may be released, pass the digest that it "
            "prints with --accept-texts, or have an officer sign (`approvals` of "
            "the policy)",
            kind="unread-texts",
        )


def may_release(case: ReleaseCase, *, deployed: bool) -> bool:
    """Returns whether the plan may be released now. Nobody is asked to sign a plan that the gate
    would refuse.

    Args:
        deployed: whether a deployment releases it. A deployment can wait for approvals and requires
            the agency's policy.
    """
    if case.released is not None:
        return True
    if deployed and case.policy.digest == DEFAULT_POLICY.digest:
        raise StorageError(
            f"plan {case.file}: there is no budget policy, and a deployment "
            "releases nothing without one. Record a policy (`autocoder ledger "
            "change-policy`), then retry",
            kind="no-policy",
        )
    status = case.approvals
    if status.missing:
        gate.check(case)
    if status.missing and not deployed:
        missing = f"{status.missing} of {status.policy.approvals.signatures_required} missing"
        raise StorageError(
            "; ".join((f"plan {case.file}: {missing} (`autocoder approve`)", *status.problems)),
            kind="approvals-missing",
        )
    return not status.missing


def pinned_key(given: Path | None) -> Path | None:
    """Returns the pinned file with the agency's key, or with its roots. If none is pinned on this
    machine, the given file is pinned.
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
        raise Contradiction(
            f"--agency-key {given}: another key is pinned. Remove {pinned} to pin this one",
            kind="another-pinned-key",
        )
    return pinned


def require_agency_ledger(ledger: Ledger, pinned: Path, *, first: bool = False) -> None:
    """Refuses a ledger unless a release proves that it is the agency's, because anyone could write
    its budget.

    Args:
        first: the officer confirms that the agency has released nothing yet, so no release is
            required.
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
            f"ledger {ledger.database.name}: its releases are signed with another "
            "key than the agency's pinned one. Nothing was signed. Ask the "
            "agency which ledger and key are its own",
            kind="ledger-of-another-key",
        )
    state = ledger.state()
    # guard: test_a_ledger_in_which_no_release_counts
    if not state.releases and not first:
        start = "none" if state.mark is None else state.mark.text
        raise StorageError(
            f"ledger {ledger.database.name}: no release in it has an effect, so "
            "no signature shows that it is the agency's. Before the agency's "
            f"first release, compare its position ({start}) with the agency's "
            "own, then use --first-release",
            kind="unproven-ledger",
        )
