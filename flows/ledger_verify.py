"""Verifies every row of the ledger each night, against the head that the previous check saved."""

import json
from typing import Annotated

from pydantic import BaseModel

from flows.server.form import Workspace, with_title
from flows.server.prefect_run import as_flow
from flows.server.settings import home_of
from storage.durable import write_atomically
from storage.errors import DamagedData
from storage.ledger.checkpoints import read_checkpoint, state_checkpoint
from tasks.parameters import LedgerParameters
from tasks.releasing import ledger_access
from tasks.running.failures import private_errors
from tasks.running.stage import Context


class VerificationResult(BaseModel, frozen=True):
    rows: int
    sequence: int
    hash: str
    notes: tuple[str, ...]


@as_flow(
    name="ledger-verify",
    description=(
        "Check every row of the release ledger, and that none was cut off since the last check."
    ),
)
def ledger_verify(
    home: Workspace = None, ledger: Annotated[LedgerParameters | None, with_title("Ledger")] = None
) -> VerificationResult:
    """Verify the ledger. If it was changed, fail and name the bad rows.

    The saved head is next to the ledger. It reveals a truncated or rewritten chain unless somebody
    changed both. Give a signed head to others as well (`autocoder ledger export head`).

    Args:
        home: workspace folder; empty: the worker's (AUTOCODER_HOME).
        ledger: which ledger.
    """
    context = Context(home=str(home_of(home)))
    with private_errors("ledger-verify"):
        opened = ledger_access.open_ledger(context, ledger or LedgerParameters())
        head_file = context.workspace.create().private / "ledger-head.json"
        checkpoints = [read_checkpoint(head_file)] if head_file.is_file() else []
        report = opened.verify(checkpoints=checkpoints)
        if not report.ok:
            problems = "; ".join(bad.problem for bad in report.bad[:20])
            raise DamagedData(
                f"ledger: {len(report.bad)} bad rows: {problems}. Run `autocoder ledger verify`",
                kind="bad-rows",
            )
        head = state_checkpoint(report.sequence, report.hash)
        write_atomically(head_file, json.dumps(head.model_dump(), indent=1).encode() + b"\n")
        return VerificationResult(
            rows=report.rows, sequence=report.sequence, hash=report.hash, notes=report.notes
        )
