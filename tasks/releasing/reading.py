"""A plan's page as a command has it: of a plan's file, a workspace and a ledger that are there. Changes nothing."""

from __future__ import annotations

from pathlib import Path

from storage.errors import InputError, StorageError
from storage.ledger.records import RecordSet
from storage.paths import Workspace
from tasks.parameters import LedgerParameters
from tasks.releasing import approval, code_lists, plan_page
from tasks.releasing.delta import ledger_at_hand
from tasks.releasing.plan import PlannedRelease
from tasks.releasing.records import record_set
from tasks.running.stage import Context


def read(context: Context, planned: PlannedRelease, *, file: Path, url: str | None = None) -> plan_page.PlanPage:
    """The page of a plan.

    Args:
        url: of the ledger, as `--ledger-url` has it.

    Raises:
        InputError: there is no ledger, so that nothing is known of budget, audit and siblings.
    """
    ledger = ledger_at_hand(context, LedgerParameters(ledger_url=url))
    if ledger is None:
        raise InputError(
            f"no ledger in {context.home}: budget and audits are there; give the plan's workspace (--home), "
            "--ledger-url or AUTOCODER_LEDGER_URL"
        )
    stands = approval.standing(context, ledger, planned)
    records = records_at_hand(context, planned)
    lists = () if records is None else code_lists.of_plan(context, planned)
    return plan_page.page_of(planned, ledger, stands, file=str(file), records=records, lists=lists)


def records_at_hand(context: Context, planned: PlannedRelease) -> RecordSet | None:
    """Marks of a plan's records, None where they do not lie here, as on an officer's own machine."""
    folder, private = Path(planned.candidate.dataset.path), Workspace(Path(context.home)).private
    if not folder.is_dir() or not folder.resolve().is_relative_to(private.resolve()):
        return None
    try:
        return record_set(context, planned.candidate.dataset)
    except StorageError:
        return None
