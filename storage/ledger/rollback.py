"""Detects a ledger that is not the one used before, and puts its rows back from a journal, exactly as they were."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import dropwhile
from typing import TYPE_CHECKING

from sqlalchemy.engine import Connection

from storage.durable import write_atomically
from storage.errors import StorageError
from storage.ledger import chain
from storage.ledger.chain import Entry
from storage.ledger.database import Database, database_exists
from storage.ledger.fold import fold
from storage.ledger.heads import encoded_key
from storage.ledger.journal import Journal, journals_of
from storage.ledger.models import GENESIS, Mark, Row
from storage.ledger.policy import DEFAULT_POLICY, Policy
from storage.ledger.records import RecordSet
from storage.ledger.registry import register
from storage.paths import Workspace

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey


@dataclass(frozen=True)
class RollbackFinding:
    """Holds what is wrong with a ledger, and the rows that would put it right."""

    problem: str
    mark: Mark
    """The row that was used before."""
    missing: tuple[Entry, ...]
    """The rows that the ledger lacks, in order; empty where they do not follow its last one."""


def detect(url: str, workspace: Workspace) -> RollbackFinding | None:
    """Returns what is wrong with a ledger by the workspace's journal and the witness; None where nothing is."""
    journals, database = journals_of(workspace), Database(url, lock_timeout=60.0)
    if not database_exists(url):
        for journal in journals:
            if (mark := journal.last()) is not None:
                problem = f"no ledger at {database.url.database}, {journal.name} has used {mark}"
                return RollbackFinding(problem, mark, _missing((0, GENESIS), journal))
        return None
    database.prepare()
    with database.read() as connection:
        for journal in journals:
            problem, mark = journal.problem(connection), journal.last()
            if problem and mark is not None:
                return RollbackFinding(problem, mark, _missing(chain.last(connection), journal))
    return None


def _missing(last: tuple[int, str], journal: Journal) -> tuple[Entry, ...]:
    rows = list(dropwhile(lambda entry: entry.sequence < last[0], journal.rows()))
    if last[0] == 0:
        return tuple(rows)
    return tuple(rows[1:]) if rows and rows[0].hash == last[1] else ()


def restore(
    url: str,
    workspace: Workspace,
    finding: RollbackFinding,
    *,
    key: EllipticCurvePublicKey | None = None,
    policy: Policy | None = None,
) -> int:
    """Adds the rows that the ledger does not have and that follow from those that it has; returns how many.

    Anyone who writes in the workspace can write in its journal. So a policy that no one signed is not put in force,
    unless the operator names it, or a later row that this machine's key signed depends on it.

    Args:
        key: this machine's.
        policy: that may come into force without a signature.
    """
    database = Database(url, lock_timeout=60.0)
    database.prepare()
    with database.write() as connection:
        state = fold(chain.entries(connection))
        present = state.sequence
        rows = [row for entry in finding.missing if (row := state.take(entry)) is not None]
        state.require_sound()
        own = None if key is None else encoded_key(key)
        vouched = max((row.sequence for row in rows if own and row.signer == own), default=0)
        for bad in state.bad:
            # guard: test_a_policy_that_nobody_signed_in_the_journal
            if present < bad.sequence and bad.sequence > vouched:
                raise StorageError(f"recover: {bad.problem}. No row was put back. Restore the journal from a copy")
        for row in rows:
            if row.sequence > vouched:
                _require_known_policy(row, policy)
        current = {row.sequence: row for row in rows}
        for entry in finding.missing:
            chain.put(connection, entry.body)
            _restore_records(connection, workspace, current.get(entry.sequence))
        for journal in journals_of(workspace):
            journal.check(connection)
    return len(finding.missing)


def _restore_records(connection: Connection, workspace: Workspace, row: Row | None) -> None:
    # a release without its set is taken to share all records
    records = None if row is None else load_marks(workspace, row)
    if row is not None and records is not None and records.digest == row.details["records"]["set"]:
        register(connection, row.sequence, records)


def _require_known_policy(row: Row, named: Policy | None) -> None:
    known = {DEFAULT_POLICY.digest, None if named is None else named.digest}
    # guard: test_a_first_policy_that_nobody_signed_in_the_journal
    if row.kind == "budget-change" and not row.approvals and row.policy_digest not in known:
        raise StorageError(
            f"recover: row {row.sequence} would restore policy {row.label}, which no one signed. No row was put "
            "back. Read it, then give its file by --policy"
        )


def save_marks(workspace: Workspace, records: RecordSet) -> None:
    """Keeps a release's set of records in the workspace, to put it back beside its row."""
    file = workspace.private / "registry" / f"{records.digest}.marks"
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, records.encode())


def load_marks(workspace: Workspace, row: Row) -> RecordSet | None:
    """Returns the set of records of a reserved release, where it is kept here."""
    named = row.details.get("records") if row.state == "reserved" else None
    file = workspace.private / "registry" / f"{named['set']}.marks" if named else None
    return None if file is None or not file.is_file() else RecordSet.decode(file.read_bytes())
