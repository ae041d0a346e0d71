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
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine import Connection

from storage.artifacts import digest
from storage.durable import write_atomically
from storage.errors import InputError, StorageError
from storage.ledger import chain
from storage.ledger.content import policy_content, recovery_content, recovery_terms
from storage.ledger.database import Database, database_exists
from storage.ledger.decisions import Decision, Matter, approvers
from storage.ledger.fold import fold, policy_after
from storage.ledger.heads import encoded_key
from storage.ledger.journal import JournalEntry, journals_of, own_journal
from storage.ledger.models import Mark, Row
from storage.ledger.policy import DEFAULT_POLICY, Policy
from storage.ledger.records import RecordSet
from storage.ledger.registry import compare, register
from storage.paths import Workspace

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey


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


def restore(
    url: str,
    workspace: Workspace,
    finding: RollbackFinding,
    *,
    key: EllipticCurvePublicKey | None = None,
    policy: Policy | None = None,
) -> int:
    """Adds the rows that the ledger lacks, as far as they follow from those that it has; returns how many.

    Whoever writes in the workspace can write in its journal. So a policy that nobody signed is not put in force, unless
    the operator names it, or a later row that this machine's key signed stands on it.

    Args:
        key: this machine's.
        policy: that may come into force without a signature.
    """
    database = Database(url, lock_timeout=60.0)
    database.prepare()
    with database.write() as connection:
        state = fold(chain.entries(connection))
        rows = [state.take(_entry(body)) for body in finding.missing]
        state.require_sound()
        own = None if key is None else encoded_key(key)
        vouched = max((row.sequence for row in rows if row is not None and own and row.signer == own), default=0)
        for bad in state.bad:
            # guard: rows that do not follow are not put back
            if state.sequence - len(rows) < bad.sequence and bad.sequence > vouched:
                raise StorageError(f"recover: {bad.problem}. No row was put back. Restore the journal from a copy")
        for row in rows:
            if row is not None and row.sequence > vouched:
                _require_known_policy(row, policy)
        for body in finding.missing:
            row = chain.parse(body, chain.put(connection, body).hash)
            records = load_marks(workspace, row)
            stored = None if records is None else compare(connection, records)[0].encode()
            # without a set that it builds on it is another; a release without its set is taken to share all records
            if stored is not None and hashlib.sha256(stored).hexdigest() == row.details["records"]["stored"]:
                register(connection, row.sequence, stored)
        for journal in journals_of(workspace):
            journal.check(connection)
    return len(finding.missing)


def _require_known_policy(row: Row, named: Policy | None) -> None:
    known = {DEFAULT_POLICY.digest, None if named is None else named.digest}
    # guard: recovery puts no policy in force that nobody signed
    if row.kind == "budget-change" and not row.approvals and row.policy_digest not in known:
        raise StorageError(
            f"recover: row {row.sequence} would put policy {row.label} in force, which nobody signed. No row was put "
            "back. Read it, then give its file by --policy"
        )


def _entry(body: str) -> chain.Entry:
    return chain.Entry(json.loads(body)["sequence"], chain.digest(body), body)


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
        policy = _policy(connection, workspace, finding.mark)
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
        state = fold(chain.entries(connection))
        if state.policy is None:
            reason = "policy of the ledger that is lost"
            first = policy_content(policy, None, requester=content["requester"], reason=reason)
            state.take(chain.append(connection, first))
        row = state.take(chain.append(connection, recovery_content(content, name, names, decisions)))
        state.require_sound()
        if row is None or (state.bad and state.bad[-1].sequence == state.sequence):
            raise InputError(f"recover: {state.bad[-1].problem}")
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
    return [chain.parse(entry.body, entry.mark.hash) for entry in _entries(workspace)]


def _bodies(workspace: Workspace, mark: Mark) -> dict[int, tuple[str, str]]:
    """Hash and body of the rows kept of one ledger, as far as the mark; empty where they do not reach it."""
    entries = [row for row in _entries(workspace) if row.mark.ledger == mark.ledger]
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


def _policy(connection: Connection, workspace: Workspace, mark: Mark) -> Policy:
    """The policy in force after the rows that were used before, else the ledger's own; never one that a row claims."""
    policy_rows = [
        row for entry in _entries(workspace) if entry.mark.ledger == mark.ledger for row in _policy_rows(entry)
    ]
    policy = policy_after(policy_rows, mark.ledger) or fold(chain.entries(connection)).policy
    if policy is None:
        raise InputError("recover: the policy is unknown, so nobody can sign to give up the ledger. Restore it")
    return policy


def _policy_rows(entry: JournalEntry) -> list[Row]:
    whole = chain.digest(entry.body) == entry.mark.hash
    row = chain.parse(entry.body, entry.mark.hash) if whole else None
    return [row] if row is not None and row.kind == "budget-change" else []


def _entries(workspace: Workspace) -> list[JournalEntry]:
    journal = own_journal(workspace)
    return list(journal.rows()) if journal.file.is_file() else []
