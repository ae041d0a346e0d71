"""The nightly check of the ledger: every row, against the head that the check before left behind."""

from __future__ import annotations

import json
from typing import Annotated

from prefect import flow
from pydantic import BaseModel

from flows.server.form import Workspace, titled
from flows.server.settings import home_of
from storage.durable import write_atomically
from storage.errors import StorageError
from storage.ledger.heads import read_head, state_head
from tasks.parameters import LedgerParameters
from tasks.releasing import publish
from tasks.running.failures import private_errors
from tasks.running.stage import Context


class Verified(BaseModel, frozen=True):
    """How far the ledger is sound, and its head."""

    rows: int
    sequence: int
    hash: str
    notes: tuple[str, ...]


@flow(
    name="ledger-verify",
    description="Check every row of the release ledger, and that none was cut off since the last check.",
    persist_result=False,
    result_serializer="json",
    log_prints=False,
)
def ledger_verify(
    home: Workspace = None, ledger: Annotated[LedgerParameters | None, titled("Ledger")] = None
) -> Verified:
    """Verify the ledger; fail, naming the first bad row, when somebody changed it.

    The head that is kept lies beside the ledger's own house: it finds a cut or rewritten chain as long as nobody
    changes both. Give a signed head away as well (`autocoder ledger head`).

    Args:
        home: workspace folder; empty: the worker's own (AUTOCODER_HOME).
        ledger: which ledger.
    """
    context = Context(home=str(home_of(home)))
    with private_errors("ledger-verify"):
        opened = publish.open_ledger(context, ledger or LedgerParameters())
        kept = context.workspace.create().private / "ledger-head.json"
        heads = [read_head(kept)] if kept.is_file() else []
        report = opened.verify(heads=heads)
        if not report.ok:
            raise StorageError(f"ledger: first bad row {report.first_bad_row}: {report.problem}")
        head = state_head(report.sequence, report.hash)
        write_atomically(kept, json.dumps(head.model_dump(), indent=1).encode() + b"\n")
        return Verified(rows=report.rows, sequence=report.sequence, hash=report.hash, notes=report.notes)
