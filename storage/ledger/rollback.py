"""Detects a ledger that is not the one used before, and restores its rows or records who signed to abandon them.

A workspace keeps every row that it saw (`journal.py`). A database that went back to a backup, or is gone, gets the rows
that it lacks from there, exactly: they are linked to its last one by their hashes, and nothing is decided. Where that
can't be, since the two went different ways or nothing was kept, those who approve releases sign which history is given
up. From then on plans from before, and with them their approvals, count no more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.engine import Connection

from storage.artifacts import digest
from storage.durable import write_atomically
from storage.errors import InputError
from storage.ledger import chain
from storage.ledger.content import policy_content, recovery_content, recovery_terms
from storage.ledger.database import Database, database_exists
from storage.ledger.decisions import Decision, Matter, approvers
from storage.ledger.journal import journals_of, own_journal
from storage.ledger.models import Mark, Row
from storage.ledger.policy import Policy
from storage.ledger.records import RecordSet
from storage.ledger.registry import compare, register
from storage.ledger.schema import POLICY_ROW
from storage.paths import Workspace


@dataclass(frozen=True)
class RollbackFinding:
    """Holds what is wrong with a ledger, and the rows that would put it right."""

    problem: str
    mark: Mark
    """The row that was used before."""
    missing: tuple[str, ...]
    """Bodies of the rows that the ledger lacks, in order; empty where they are not kept, or do not follow."""


def detect(url: str, workspace: Workspace) -> RollbackFinding | None:
    """Returns what is wrong with a ledger by the workspace's journal and the witness; None where nothing is."""
    journals, database = journals_of(workspace), Database(url, lock_timeout=60.0)
    if not database_exists(url):
        for journal in journals:
            if (mark := journal.last()) is not None:
                problem = f"no ledger at {database.url.database}, {journal.name} has used {mark}"
                return RollbackFinding(problem, mark, _missing((0, chain.GENESIS), workspace, mark))
        return None
    database.prepare()
    with database.read() as connection:
        for journal in journals:
            problem, mark = journal.problem(connection), journal.last()
            if problem is not None and mark is not None:
                return RollbackFinding(problem, mark, _missing(chain.last(connection), workspace, mark))
    return None


def restore(url: str, workspace: Workspace, finding: RollbackFinding) -> int:
    """Add the rows that the ledger lacks; return how many."""
    database = Database(url, lock_timeout=60.0)
    database.prepare()
    with database.write() as connection:
        for body in finding.missing:
            chain.put(connection, body)
            row = chain.parse(body, chain.digest(body))
            records = load_marks(workspace, row)
            stored = None if records is None else compare(connection, records)[0].encode()
            # without a set that it builds on it is another; a release without its set is taken to share all records
            if stored is not None and hashlib.sha256(stored).hexdigest() == row.details["records"]["stored"]:
                register(connection, row.sequence, stored)
        for journal in journals_of(workspace):
            journal.check(connection)
    return len(finding.missing)


def request_recovery(
    url: str, workspace: Workspace, finding: RollbackFinding, *, requester: str, reason: str
) -> dict[str, Any]:
    """Returns what those who approve are to sign, as plain data."""
    if finding.missing:
        raise InputError("recover: the rows are kept here; put them back (--apply), nothing needs to be given up")
    if not reason.strip():
        raise InputError("--reason: say why the other history is given up")
    database = Database(url, lock_timeout=60.0)
    database.prepare()
    with database.read() as connection:
        first = chain.hash_of(connection, 1)
        sequence, row_hash = chain.last(connection)
        current = None if first is None else Mark(ledger=first, sequence=sequence, hash=row_hash)
        policy = _policy(connection, workspace)
    if not policy.approvals.approvers:
        raise InputError(
            f"recover: policy {policy.name} lists nobody who may give up a ledger. Restore the one "
            "that was used, or begin another workspace"
        )
    rows = [
        row
        for row in _journal_rows(workspace)
        if row.kind == "release" and (current is None or row.sequence > current.sequence)
    ]
    newest = {row.release_id: row for row in rows}
    return {
        "abandoned": finding.mark.model_dump(),
        "continued": None if current is None else current.model_dump(),
        "policy": policy.as_json(),
        "requester": requester,
        "reason": reason.strip(),
        "releases": [
            {
                "release_id": row.release_id,
                "state": row.state,
                "population": row.population,
                "cohorts": list(row.cohorts),
                "guarantee_kind": row.guarantee_kind,
                "epsilon": row.as_json()["epsilon"],
            }
            for row in newest.values()
        ],
    }


def accept_recovery(url: str, workspace: Workspace, content: dict[str, Any], decisions: Sequence[Decision]) -> Row:
    """Go on with the ledger at hand; record who signed, and what is given up."""
    finding = detect(url, workspace)
    if finding is None:
        raise InputError("recover: this is the ledger that was used before; there is nothing to give up")
    if content != request_recovery(url, workspace, finding, requester=content["requester"], reason=content["reason"]):
        raise InputError("recover: the ledger or its journal changed since. Ask for signatures again")
    policy, name = Policy.parse(content["policy"]), digest(content)
    matter = Matter("recovery", name, recovery_terms(content), content["requester"])
    names = approvers(decisions, policy.approvals, matter)
    if len(names) < max(1, policy.approvals.minimum):
        raise InputError(f"recover: {max(1, policy.approvals.minimum)} signatures are needed, {len(names)} given")
    database = Database(url, lock_timeout=60.0)
    with database.write() as connection:
        if chain.newest(connection, POLICY_ROW) is None:
            reason = "policy of the ledger that is lost"
            chain.append(connection, policy_content(policy, None, requester=content["requester"], reason=reason))
        row = chain.append(connection, recovery_content(content, name, names, decisions))
    with database.read() as connection:
        for journal in journals_of(workspace):
            if journal.last() is not None:
                journal.anchor(connection, row)
    return row


def save_marks(workspace: Workspace, records: RecordSet) -> None:
    """Keep a release's set of records in the workspace, to put it back beside its row."""
    file = _marks_file(workspace, records.digest)
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, records.encode())


def load_marks(workspace: Workspace, row: Row) -> RecordSet | None:
    """Returns the set of records of a reserved release, where it is kept here."""
    records = row.details.get("records") if row.state == "reserved" else None
    file = None if records is None else _marks_file(workspace, records["set"])
    return None if file is None or not file.is_file() else RecordSet.decode(file.read_bytes())


def _marks_file(workspace: Workspace, digest_: str) -> Path:
    return workspace.private / "registry" / f"{digest_}.marks"


def _journal_rows(workspace: Workspace) -> list[Row]:
    journal = own_journal(workspace)
    return [chain.parse(entry.body, entry.mark.hash) for entry in journal.rows()] if journal.file.is_file() else []


def _bodies(workspace: Workspace, mark: Mark) -> dict[int, tuple[str, str]]:
    """Hash and body of the rows kept of one ledger, as far as the mark; empty where they do not reach it."""
    journal = own_journal(workspace)
    entries = [row for row in journal.rows() if row.mark.ledger == mark.ledger] if journal.file.is_file() else []
    rows = {row.mark.sequence: (row.mark.hash, row.body) for row in entries if row.mark.sequence <= mark.sequence}
    whole = all(chain.digest(body) == row_hash for row_hash, body in rows.values())
    return rows if whole and rows.get(mark.sequence, ("", ""))[0] == mark.hash else {}


def _run(rows: dict[int, tuple[str, str]], first: int, last: int, previous: str) -> tuple[str, ...]:
    """Bodies of rows `first` to `last`, if they are all there and linked to `previous`."""
    bodies: list[str] = []
    for sequence in range(first, last + 1):
        row_hash, body = rows.get(sequence, ("", "{}"))
        if json.loads(body).get("previous_hash") != previous:
            return ()
        bodies.append(body)
        previous = row_hash
    return tuple(bodies)


def _missing(last: tuple[int, str], workspace: Workspace, mark: Mark) -> tuple[str, ...]:
    """Bodies of the rows behind the last one, by sequence and hash, up to the mark."""
    sequence, row_hash = last
    return _run(_bodies(workspace, mark), sequence + 1, mark.sequence, row_hash) if sequence < mark.sequence else ()


def _policy(connection: Connection, workspace: Workspace) -> Policy:
    """The policy that was in force by the workspace's journal, else the ledger's own."""
    policies = [row for row in _journal_rows(workspace) if row.kind == "budget-change"]
    row = policies[-1] if policies else chain.newest(connection, POLICY_ROW)
    if row is None:
        raise InputError("recover: the policy is unknown, so nobody can sign to give up the ledger. Restore it")
    return Policy.parse(row.details["policy"])
