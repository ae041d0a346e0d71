"""Verification: folds the whole chain anew and names every row that is not as it was written or does not follow.

Beside the fold (`storage.ledger.fold`): the columns that repeat a body, the sets of records beside the rows, and the
heads and copies that someone else kept, without which a chain that was cut or rewritten from some row on looks whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from storage.errors import InputError, StorageError
from storage.ledger import chain, triggers
from storage.ledger.fold import BadRow, State
from storage.ledger.models import GENESIS, Mark, Row
from storage.ledger.records import RecordSet, Shared
from storage.ledger.registry import stored_sets
from storage.ledger.schema import COLUMNS, ledger_row

if TYPE_CHECKING:
    from storage.ledger.database import Database
    from storage.ledger.heads import Head

_BATCH = 1000


@dataclass(frozen=True)
class Report:
    """Holds the result of `verify`."""

    rows: int
    sequence: int
    hash: str
    """Of the last row up to which the chain is whole."""
    bad: tuple[BadRow, ...] = ()
    """Every row that has no effect, or that says other than what follows from those before, oldest first."""
    notes: tuple[str, ...] = field(default=())
    """What weakens the protection without being a change: missing triggers, a role with too many rights."""

    @property
    def ok(self) -> bool:
        return not self.bad

    @property
    def problem(self) -> str:
        """The first fault in words; empty where there is none."""
        return self.bad[0].problem if self.bad else ""


def verify(
    database: Database,
    *,
    heads: Iterable[Head] = (),
    earlier: Iterable[Mark] = (),
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Checks every row of the ledger.

    Args:
        heads: statements exported before; the chain must still go through each.
        earlier: rows exported before; each must still be there, which names the first rewritten row exactly.
        progress: gets the number of rows checked, now and then.
    """
    state, findings, hashes, whole = State(), [], {0: GENESIS}, 0
    with database.read() as connection:
        notes, registry = _protections(connection), _Registry(connection)
        columns = sa.select(ledger_row).order_by(ledger_row.c.sequence)
        with connection.execute(columns, execution_options={"yield_per": _BATCH}) as rows:
            for stored in rows:
                known = len(state.releases)
                row = state.take(chain.Entry(stored.sequence, stored.hash, stored.body))
                hashes[stored.sequence] = stored.hash
                whole = whole if state.broken else stored.sequence
                if row is not None:
                    wrong = [name for name in COLUMNS if getattr(stored, name) != getattr(row, name)]
                    if wrong:
                        findings.append((row.sequence, f"was edited: column {', '.join(wrong)} contradicts its body"))
                    if len(state.releases) > known:
                        findings += [(row.sequence, problem) for problem in registry.check(state, row)]
                if progress is not None and len(hashes) % _BATCH == 0:
                    progress(len(hashes))
        findings += [
            (sequence, "a set of records is stored with it that it does not name") for sequence in registry.left
        ]
    beside = [BadRow(sequence, f"row {sequence}: {problem}", void=False) for sequence, problem in findings]
    every = sorted([*state.bad, *beside, *_compare(hashes, heads, earlier)], key=lambda bad: bad.sequence)
    return Report(len(hashes) - 1, whole, hashes[whole], tuple(every), notes)


class _Registry:
    """The sets of records beside the releases' rows: each has its row's digest, and shares what its row says."""

    def __init__(self, connection: Connection) -> None:
        self.left = dict(stored_sets(connection))
        """Sets that no row named yet, by the sequence of their row."""
        self._sets: dict[int, RecordSet] = {}
        self._lost: set[str] = set()

    def check(self, state: State, row: Row) -> Sequence[str]:
        """Returns what is wrong with the set of a reservation that the state took."""
        named, marks = row.details.get("records"), self.left.get(row.sequence)
        if named is None:
            return []
        self.left.pop(row.sequence, None)
        if marks is None or sha256(marks).hexdigest() != named["set"]:
            self._lost.add(str(row.release_id))
            return ["the set of records beside it is gone, or another"]
        try:
            records = RecordSet.decode(marks)
        except StorageError as error:
            return [str(error)]
        shared: dict[int, Shared | None] = {sequence: records.shared(of) for sequence, of in self._sets.items()}
        self._sets[row.sequence] = records
        names = {
            str(release.row.release_id)
            for release in state.sharing(row, shared)
            if release.reserved.sequence < row.sequence
        }
        # guard: test_verify_names_a_row_that_hides_what_it_shares
        if names - self._lost != set(named["overlap"]) - self._lost:
            return ["it shares records with other releases than it says"]
        return []


def _compare(hashes: Mapping[int, str], heads: Iterable[Head], earlier: Iterable[Mark]) -> list[BadRow]:
    bad, agreed, end = [], 0, max(hashes)
    for sequence, row_hash in sorted({(mark.sequence, mark.hash) for mark in (*heads, *earlier)}):
        if sequence == 0 and row_hash != GENESIS:
            raise InputError("head: of an empty ledger, yet with a hash")
        if sequence > end:
            gap = f"the ledger ends at row {end}, row {sequence} was kept outside"
            return [*bad, BadRow(end + 1, f"row {end + 1} missing: {gap}")]
        if hashes.get(sequence) == row_hash:
            agreed = sequence
        elif sequence in hashes:
            since = f"row {sequence}" if sequence == agreed + 1 else f"a row between {agreed + 1} and {sequence}"
            problem = f"row {sequence} isn't the one kept outside: the chain was rewritten from {since} on"
            bad.append(BadRow(sequence, problem, void=False))
    return bad


def _protections(connection: Connection) -> tuple[str, ...]:
    """Say which of the protections against change are absent or not what they were."""
    notes = []
    if connection.dialect.name != "sqlite":
        excessive = connection.execute(
            sa.text(
                "SELECT bool_or(has_table_privilege(name, privilege))"
                " FROM unnest(ARRAY['ledger_row', 'record_set']) AS name,"
                " unnest(ARRAY['INSERT', 'UPDATE', 'DELETE', 'TRUNCATE']) AS privilege"
            )
        ).scalar()
        if excessive:
            notes.append(
                "this role may change rows by its grants, only the triggers stop it: connect the pipeline as the"
                " role given to `autocoder ledger migrate --release-role`, or --app-role"
            )
    changed = triggers.changed(connection)
    if changed:
        notes.append(f"append-only triggers and functions are missing or were changed: {', '.join(changed)}")
    return tuple(notes)
