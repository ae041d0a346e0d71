"""What an officer's desk checks before a signature, with the agency's key that is pinned there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from storage.bundle.trust import Trust
from storage.durable import read_regular, write_atomically
from storage.errors import InputError, StorageError
from storage.ledger.heads import encoded_key
from tasks.releasing import gate
from tasks.releasing.checked_plan import CheckedPlan
from tasks.releasing.plan_page import PlanContext
from tasks.running.stage import Context

if TYPE_CHECKING:
    from storage.ledger import Ledger

_MOST = 8 << 20


def pinned_key(given: Path | None) -> Path | None:
    """Returns the file of the agency's key, or roots, that is pinned on this desk; pins the one given where none is."""
    base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    pinned = base / "autocoder" / "agency-key"
    if given is None:
        return pinned if pinned.is_file() else None
    content = read_regular(given.expanduser(), _MOST, option="--agency-key")
    if not pinned.is_file():
        Trust(given.expanduser()).load()
        pinned.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(pinned, content)
    elif pinned.read_bytes() != content:
        raise InputError(f"--agency-key {given}: another key is pinned. Remove {pinned} to pin this one")
    return pinned


def require_agencys(ledger: Ledger, pinned: Path) -> None:
    """Refuses a ledger whose releases another key than the agency's signed: its budget would be anyone's word."""
    root = Trust(pinned).load()
    keys = root.sealing_keys("") + [key for earlier in root.earlier for key in root.sealing_keys(earlier.release_id)]
    # guard: test_a_ledger_of_the_operators_own
    if {row.signer for row in ledger.rows() if row.signer is not None} - {encoded_key(key) for key in keys}:
        raise StorageError(
            f"ledger {ledger.database.name}: another key than the agency's pinned one signed releases in it. Nothing "
            "was signed. Ask the agency which ledger and key are its own"
        )


def require_releasable(context: Context, checked: CheckedPlan) -> None:
    """Refuses to sign what a release would refuse now."""
    plan, ledger = checked.plan, checked.ledger
    if checked.released is not None:
        raise InputError(f"plan {plan.release_label}: it is release {checked.released.release_id} already")
    refusal = ledger.refusal(plan)
    if refusal is not None:
        raise InputError(f"plan {plan.release_label}: {refusal.reason} (ledger row {refusal.sequence})")
    ledger.require_here(plan)
    here = PlanContext.of(context, checked)
    if here.outdated is not None:
        raise InputError(here.outdated)
    ledger.quote(plan, records=here.records)
    obstacle = gate.obstacle(checked)
    if obstacle is not None:
        raise InputError(f"plan {plan.release_label}: {obstacle}")
