"""A plan's page as a command has it: of a plan's file, a workspace and a ledger that are there. Changes nothing."""

from __future__ import annotations

from pathlib import Path

from storage.errors import InputError
from tasks.parameters import LedgerParameters
from tasks.releasing import approval, plan_page
from tasks.releasing.at_hand import AtHand
from tasks.releasing.delta import ledger_at_hand
from tasks.releasing.plan import PlannedRelease
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
    return plan_page.page_of(planned, ledger, stands, file=str(file), found=AtHand.of(context, ledger, planned))
