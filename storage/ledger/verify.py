"""Verification: folds the whole chain anew and names every row that is not as it was written or does not follow.

Beside the fold (`storage.ledger.fold`): the columns that repeat a body, the sets of records beside the rows, and the
heads and copies that somebody else kept, without which a chain that was cut or rewritten from some row on looks whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from storage.errors import InputError, StorageError
from storage.ledger import chain, triggers
from storage.ledger.fold import BadRow, State
from storage.ledger.models import GENESIS, Row
from storage.ledger.records import KINDS, Shared
from storage.ledger.registry import Kinds, StoredSet
from storage.ledger.schema import COLUMNS, ledger_row, record_set

if TYPE_CHECKING:
    from storage.ledger.database import Database
    from storage.ledger.heads import Head

_BATCH = 1000


@dataclass(frozen=True)
class Report:
    """Holds the result of `verify`."""

    rows: int
    """Rows read; fewer than there are where the chain is damaged."""
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

    @property
    def first_bad_row(self) -> int | None:
        return self.bad[0].sequence if self.bad else None


def verify(
    database: Database,
    *,
    heads: Iterable[Head] = (),
    earlier: Iterable[Row] = (),
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Checks every row of the ledger.

    Args:
        heads: statements exported before; the chain must still go through each.
        earlier: rows exported before; each must still be there, which names the first rewritten row exactly.
        progress: gets the number of rows checked, now and then.
    """
    external, state, bad = _ExternalRows(heads, earlier), State(), []
    with database.read() as connection:
        notes, registry = _protections(connection), _Registry(connection)
        columns = sa.select(ledger_row).order_by(ledger_row.c.sequence)
        with connection.execute(columns, execution_options={"yield_per": _BATCH}) as rows:
            for stored in rows:
                row = state.take(chain.Entry(stored.sequence, stored.hash, stored.body))
                if state.broken:
                    break
                bad += external.check(stored.sequence, stored.hash)
                if row is not None:
                    wrong = [name for name in COLUMNS if getattr(stored, name) != getattr(row, name)]
                    if wrong:
                        problem = f"was edited: column {', '.join(wrong)} contradicts its body"
                        bad.append(BadRow(row.sequence, f"row {row.sequence} {problem}", void=False))
                    if row.sequence not in state.void:
                        bad += registry.check(row)
                if progress is not None and state.sequence % _BATCH == 0:
                    progress(state.sequence)
        if not state.broken:
            bad += external.finish(state.sequence)
    bad_rows = sorted([*state.bad, *bad], key=lambda one: one.sequence)
    return Report(state.sequence, state.sequence, state.hash, tuple(bad_rows), notes)


class _Registry:
    """The sets of records beside the releases' rows: each has its row's digest, and shares what its row says."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._left = set(connection.execute(sa.select(record_set.c.sequence)).scalars())
        self._sets: list[tuple[str, str, str, dict[int, Kinds]]] = []
        self._sizes: dict[int, tuple[int, ...]] = {}
        self._marks = [np.empty(0, dtype=np.uint64) for _ in KINDS]
        self._unmarked: dict[tuple[str, str], list[str]] = {}

    def check(self, row: Row) -> list[BadRow]:
        try:
            self._check(row)
        except StorageError as error:
            return [BadRow(row.sequence, f"row {row.sequence}: {error}", void=False)]
        return []

    def _check(self, row: Row) -> None:
        sequence = row.sequence
        if row.kind != "release" or row.state != "reserved":
            return self._none(sequence)
        kind, release_id, population = row.guarantee_kind, str(row.release_id), str(row.population)
        recorded = row.details.get("records")
        if recorded is None:
            self._unmarked.setdefault((kind, str(row.data_fingerprint)), []).append(release_id)
            return self._none(sequence)
        marks = self._connection.execute(
            sa.select(record_set.c.marks).where(record_set.c.sequence == sequence)
        ).scalar()
        if marks is None or hashlib.sha256(marks).hexdigest() != recorded["stored"]:
            raise StorageError("the set of records beside it is gone, or another")
        self._left.discard(sequence)
        bits = self._take(sequence, marks)
        shared = []
        for name, of, whose, other_bits in self._sets:
            counts = [
                sum(int((one[place] & other_bits[at][place]).sum()) for at, one in bits.items() if at in other_bits)
                for place in range(len(KINDS))
            ]
            common = Shared(counts[0], counts[1])
            if of == kind and (common.records or (whose != population and common.units)):
                shared.append(name)
        if sorted([*shared, *self._unmarked.get((kind, str(row.data_fingerprint)), ())]) != recorded["overlap"]:
            raise StorageError("it shares records with other releases than it says")
        self._sets.append((release_id, kind, population, bits))

    def _take(self, sequence: int, marks: bytes) -> dict[int, Kinds]:
        """Returns what a stored set has of every set and of its own; no mark is stored twice."""
        stored = StoredSet.decode(marks)
        bits = stored.bits(self._sizes)
        every = (np.ones(size, dtype=np.bool_) for size in stored.new.sizes)
        if bits is None:
            raise StorageError("its set of records names another that is not there")
        bits[sequence] = (next(every), next(every))
        self._sizes[sequence] = stored.new.sizes
        for place, name in enumerate(KINDS):
            fresh, known = getattr(stored.new, name), self._marks[place]
            total = sum(int(kinds[place].sum()) for kinds in bits.values())
            merged = np.union1d(known, fresh)
            # guard: verify names a mark that is stored twice
            if len(merged) != len(known) + len(fresh) or total != stored.totals[place]:
                raise StorageError("its set of records is not as the program stores one")
            self._marks[place] = merged
        return bits

    def _none(self, sequence: int) -> None:
        if sequence in self._left:
            raise StorageError("a set of records stands beside it, which it does not name")


class _ExternalRows:
    """Heads and rows that somebody kept outside: (sequence, hash) pairs that the chain must go through."""

    def __init__(self, heads: Iterable[Head], earlier: Iterable[Row]) -> None:
        expected: dict[int, set[str]] = {}
        for one in (*heads, *earlier):
            expected.setdefault(one.sequence, set()).add(one.hash)
        if expected.get(0, {GENESIS}) != {GENESIS}:
            raise InputError("head: of an empty ledger, yet with a hash")
        expected.pop(0, None)
        self._expected = expected
        self._agreed = 0

    def check(self, sequence: int, row_hash: str) -> list[BadRow]:
        hashes = self._expected.pop(sequence, None)
        if hashes is None:
            return []
        if hashes != {row_hash}:
            first = self._agreed + 1
            since = f"row {sequence}" if first == sequence else f"a row between {first} and {sequence}"
            problem = f"row {sequence} isn't the one kept outside: the chain was rewritten from {since} on"
            return [BadRow(sequence, problem, void=False)]
        self._agreed = sequence
        return []

    def finish(self, last: int) -> list[BadRow]:
        if not self._expected:
            return []
        gap = f"the ledger ends at row {last}, row {max(self._expected)} was gap outside"
        return [BadRow(last + 1, f"row {last + 1} missing: {gap}")]


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
