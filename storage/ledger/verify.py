"""Verification: reads the whole chain once, in order, and stops at the first row that isn't as it was written.

Three layers, each a row at a time: the bytes (hash, link to the row before, canonical JSON, columns equal to the
body), the meaning (states, budgets and policies replayed), and the outside (heads and copies that somebody
else kept), without which a chain that was cut or rewritten from some row on looks whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from storage.errors import InputError
from storage.ledger import chain, triggers
from storage.ledger.models import GENESIS, Row
from storage.ledger.records import KINDS, Shared
from storage.ledger.registry import Kinds, StoredSet
from storage.ledger.replay import Inconsistent, Replay, Total
from storage.ledger.schema import COLUMNS, ledger_row, record_set, spend

if TYPE_CHECKING:
    from storage.ledger.database import Database
    from storage.ledger.heads import Head

_BATCH = 1000


@dataclass(frozen=True)
class Report:
    """Holds the result of `verify`."""

    rows: int
    """Rows read before it stopped."""
    sequence: int
    """Sequence of the last good row."""
    hash: str
    """Hash of the last good row."""
    first_bad_row: int | None = None
    problem: str = ""
    notes: tuple[str, ...] = field(default=())
    """Notes on what weakens the protection without being a change: missing triggers, a role with too many rights."""

    @property
    def ok(self) -> bool:
        """True where no row is bad."""
        return self.first_bad_row is None


class _Bad(Exception):
    def __init__(self, sequence: int, problem: str) -> None:
        super().__init__(problem)
        self.sequence = sequence


def verify(
    database: Database,
    *,
    heads: Iterable[Head] = (),
    earlier: Iterable[Row] = (),
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Check every row of the ledger.

    Args:
        heads: statements exported before; the chain must still go through each.
        earlier: rows exported before; each must still be there, which names the first rewritten row exactly.
        progress: gets the number of rows checked, now and then.
    """
    external = _ExternalRows(heads, earlier)
    last, last_hash, count = 0, GENESIS, 0
    with database.read() as connection:
        notes = _protections(connection)
        streaming = connection.execution_options(yield_per=_BATCH)
        with streaming.execute(_SELECT_ROWS) as rows, streaming.execute(_SELECT_TOTALS) as total_rows:
            totals, registry = _Totals(total_rows), _Registry(connection)
            replay = Replay()
            try:
                for row in rows:
                    record = tuple(row)
                    sequence, row_hash = record[0], record[-2]
                    content = _check_bytes(record, last, last_hash)
                    external.check(sequence, row_hash)
                    totals.check(sequence, _replayed(replay, sequence, content))
                    registry.check(sequence, content)
                    last, last_hash, count = sequence, row_hash, count + 1
                    if progress is not None and count % _BATCH == 0:
                        progress(count)
                totals.finish(last)
                external.finish(last)
            except _Bad as bad:
                return Report(count, last, last_hash, bad.sequence, str(bad), notes)
    return Report(count, last, last_hash, None, "", notes)


def _selected(table: sa.Table, names: Iterable[str]) -> sa.Select[Any]:
    """Selects columns in the order of the rows, amounts as their text."""
    columns = [table.c[name] for name in names]
    exact = [sa.cast(column, sa.Text) if isinstance(column.type, sa.Numeric) else column for column in columns]
    return sa.select(*exact).order_by(table.c.sequence)


_SELECT_ROWS = _selected(ledger_row, (*COLUMNS, "hash", "body"))
_SELECT_TOTALS = _selected(spend, spend.c.keys())  # in the order of `Total`
_repeated = itemgetter(*COLUMNS)


def _replayed(replay: Replay, sequence: int, content: dict[str, Any]) -> list[Total]:
    try:
        return replay.step(content)
    except (Inconsistent, InputError) as error:
        raise _Bad(sequence, f"row {sequence}: {error}") from error
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise _Bad(sequence, f"row {sequence}: a field is missing or of another type") from error


def _check_bytes(record: tuple[Any, ...], last: int, last_hash: str) -> dict[str, Any]:
    sequence, row_hash, body = record[0], record[-2], record[-1]
    if sequence != last + 1:
        missing = str(last + 1) if sequence == last + 2 else f"{last + 1} to {sequence - 1}"
        raise _Bad(last + 1, f"row {missing} missing: row {sequence} follows row {last}")
    raw = body.encode()
    if hashlib.sha256(raw).hexdigest() != row_hash:
        raise _Bad(sequence, f"row {sequence} was edited: its content doesn't have its hash")
    try:
        content = json.loads(raw, parse_float=_canonical_float, parse_constant=_no_constant)
        canonical = json.dumps(content, ensure_ascii=False, sort_keys=True, separators=(",", ":")) == body
        # Python writes exponents another way than RFC 8785, and sorts other planes' keys another way.
        if not (canonical or chain.canonical(content) == body):
            raise ValueError("not canonical JSON")
        repeated = _repeated(content)
    except (ValueError, KeyError, TypeError, InputError) as error:
        raise _Bad(sequence, f"row {sequence}: its body is not a row in canonical JSON") from error
    if content["sequence"] != sequence:
        raise _Bad(sequence, f"row {sequence} was moved: it was written as row {content['sequence']}")
    if content["previous_hash"] != last_hash:
        culprit = max(last, 1)
        raise _Bad(culprit, f"row {culprit} was rewritten: row {sequence} was linked to another row {last}")
    if repeated != record[:-2]:
        names = [n for n, a, b in zip(COLUMNS, repeated, record[:-2], strict=True) if a != b]
        raise _Bad(sequence, f"row {sequence} was edited: column {', '.join(names)} contradicts its body")
    return content


@lru_cache(maxsize=4096)
def _canonical_float(text: str) -> float:
    value = float(text)
    if chain.canonical({"": value}) != f'{{"":{text}}}':
        raise ValueError("not a canonical number")
    return value


def _no_constant(text: str) -> None:
    raise ValueError("not JSON")


class _Totals:
    """Compares the table of running totals with what the chain's charges leave behind."""

    def __init__(self, rows: Iterable[Any]) -> None:
        self._rows: Iterator[Any] = iter(rows)
        self._next = next(self._rows, None)

    def check(self, sequence: int, expected: list[Total]) -> None:
        totals = []
        while self._next is not None and self._next[3] <= sequence:
            totals.append(tuple(self._next))
            self._next = next(self._rows, None)
        # Sorted here, since the database may order text by another collation.
        if totals != expected and sorted(totals) != sorted(expected):
            raise _Bad(sequence, f"row {sequence}: the running totals beside it aren't those of its charges")

    def finish(self, last: int) -> None:
        if self._next is not None:
            raise _Bad(last + 1, f"row {last + 1} missing: a running total of row {self._next[3]} is still there")


class _Registry:
    """The sets of records beside the releases' rows: each has its row's digest, and shares what its row says."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._left = set(connection.execute(sa.select(record_set.c.sequence)).scalars())
        self._sets: list[tuple[str, str, str, dict[int, Kinds]]] = []
        self._sizes: dict[int, tuple[int, ...]] = {}
        self._marks = [np.empty(0, dtype=np.uint64) for _ in KINDS]
        self._unmarked: dict[tuple[str, str], list[str]] = {}

    def check(self, sequence: int, content: dict[str, Any]) -> None:
        if content["kind"] != "release" or content["state"] != "reserved":
            return self._none(sequence)
        kind, release_id, population = content["guarantee_kind"], content["release_id"], content["population"]
        recorded = content["details"].get("records")
        if recorded is None:
            self._unmarked.setdefault((kind, content["data_fingerprint"]), []).append(release_id)
            return self._none(sequence)
        marks = self._connection.execute(
            sa.select(record_set.c.marks).where(record_set.c.sequence == sequence)
        ).scalar()
        if marks is None or hashlib.sha256(marks).hexdigest() != recorded["stored"]:
            raise _Bad(sequence, f"row {sequence}: the set of records beside it is gone, or another")
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
        if sorted([*shared, *self._unmarked.get((kind, content["data_fingerprint"]), ())]) != recorded["overlap"]:
            raise _Bad(sequence, f"row {sequence}: it shares records with other releases than it says")
        self._sets.append((release_id, kind, population, bits))

    def _take(self, sequence: int, marks: bytes) -> dict[int, Kinds]:
        """Returns what a stored set has of every set and of its own; no mark is stored twice."""
        stored = StoredSet.decode(marks)
        bits = stored.bits(self._sizes)
        every = (np.ones(size, dtype=np.bool_) for size in stored.new.sizes)
        if bits is None:
            raise _Bad(sequence, f"row {sequence}: its set of records names another that is not there")
        bits[sequence] = (next(every), next(every))
        self._sizes[sequence] = stored.new.sizes
        for place, name in enumerate(KINDS):
            fresh, known = getattr(stored.new, name), self._marks[place]
            total = sum(int(kinds[place].sum()) for kinds in bits.values())
            merged = np.union1d(known, fresh)
            # guard: verify names a mark that is stored twice
            if len(merged) != len(known) + len(fresh) or total != stored.totals[place]:
                raise _Bad(sequence, f"row {sequence}: its set of records is not as the program stores one")
            self._marks[place] = merged
        return bits

    def _none(self, sequence: int) -> None:
        if sequence in self._left:
            raise _Bad(sequence, f"row {sequence}: a set of records stands beside it, which it does not name")


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

    def check(self, sequence: int, row_hash: str) -> None:
        hashes = self._expected.pop(sequence, None)
        if hashes is None:
            return
        if hashes != {row_hash}:
            first = self._agreed + 1
            since = f"row {sequence}" if first == sequence else f"a row between {first} and {sequence}"
            raise _Bad(sequence, f"row {sequence} isn't the one kept outside: the chain was rewritten from {since} on")
        self._agreed = sequence

    def finish(self, last: int) -> None:
        if self._expected:
            raise _Bad(
                last + 1,
                f"row {last + 1} missing: the ledger ends at row {last}, row {max(self._expected)} was kept outside",
            )


def _protections(connection: Connection) -> tuple[str, ...]:
    """Say which of the protections against change are absent or not what they were."""
    notes = []
    if connection.dialect.name != "sqlite":
        excessive = connection.execute(
            sa.text(
                "SELECT bool_or(has_table_privilege(name, privilege))"
                " FROM unnest(ARRAY['ledger_row', 'spend', 'record_set']) AS name,"
                " unnest(ARRAY['INSERT', 'UPDATE', 'DELETE', 'TRUNCATE']) AS privilege"
            )
        ).scalar()
        if excessive:
            notes.append(
                "this role may change rows by its grants, only the triggers stop it: connect the pipeline as the"
                " role given to `autocoder ledger migrate --app-role`"
            )
    changed = triggers.changed(connection)
    if changed:
        notes.append(f"append-only triggers and functions are missing or were changed: {', '.join(changed)}")
    return tuple(notes)
