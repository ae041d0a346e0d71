"""Compares and stores the sets of records of all releases, each mark once.

A release of a rolling window has most of its records in common with the ones before. So a stored set holds only the
marks that no earlier one holds, and for each earlier one a bit for each of its marks: all, none, or these. Nothing is
approximate. A stored set that names a lost one is taken to share records with every other: that can only refuse more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.engine import Connection

from storage.errors import StorageError
from storage.ledger.records import KINDS, RecordSet, Shared, positions
from storage.ledger.schema import record_set

Bits = NDArray[np.bool_]
Kinds = tuple[Bits, Bits]
"""Which of one stored set's new marks are meant: of contents, of units."""


@dataclass(frozen=True)
class StoredSet:
    """Holds a release's records by what earlier stored sets hold, and the marks that are new."""

    totals: tuple[int, ...]
    """Numbers of marks of each kind, new and earlier."""
    new: RecordSet
    packed: dict[int, tuple[bytes | None, ...]]
    """Bits of earlier sets, by the sequence of their rows; None where all are meant."""

    def encode(self) -> bytes:
        """Returns the form that the database stores: a line of JSON, then bits and marks."""
        lengths = {str(at): [-1 if bits is None else len(bits) for bits in kinds] for at, kinds in self.packed.items()}
        head = {"earlier": lengths, "key": self.new.key_id.hex(), "new": self.new.sizes, "totals": self.totals}
        bits = [bits or b"" for kinds in self.packed.values() for bits in kinds]
        marks = [getattr(self.new, name).astype("<u8").tobytes() for name in KINDS]
        return b"".join([json.dumps(head, separators=(",", ":")).encode(), b"\n", *bits, *marks])

    @staticmethod
    def decode(content: bytes) -> StoredSet:
        """Reads what `encode` wrote."""
        try:
            line, rest = content.split(b"\n", 1)
            head: dict[str, Any] = json.loads(line)
            at, packed = 0, {}
            for sequence, lengths in head["earlier"].items():
                kinds: list[bytes | None] = []
                for length in lengths:
                    kinds.append(None if length < 0 else rest[at : at + length])
                    at += max(length, 0)
                packed[int(sequence)] = tuple(kinds)
            marks = np.frombuffer(rest[at:], dtype="<u8").astype(np.uint64)
            if len(marks) != sum(head["new"]):
                raise ValueError("another number of marks")
            new = RecordSet(bytes.fromhex(head["key"]), *np.split(marks, head["new"][:1]))
            return StoredSet(tuple(head["totals"]), new, packed)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise StorageError(
                "the ledger's registry holds a damaged set of records. Run `autocoder ledger verify`."
            ) from error

    def bits(self, sizes: dict[int, tuple[int, ...]]) -> dict[int, Kinds] | None:
        """Returns the bits of earlier sets, of these numbers of new marks by sequence; None where one is lost."""
        unpacked: dict[int, Kinds] = {}
        for at, kinds in self.packed.items():
            if at not in sizes:
                return None
            contents, units = (_unpack(bits, size) for bits, size in zip(kinds, sizes[at], strict=True))
            unpacked[at] = (contents, units)
        return unpacked


class Comparison:
    """Compares one set of records with stored ones in the order of their rows, and encodes it by what they hold."""

    def __init__(self, records: RecordSet) -> None:
        self._records = records
        self._held: dict[int, Kinds] = {}
        self._sizes: dict[int, tuple[int, ...]] = {}
        self._rest = [np.ones(size, dtype=np.bool_) for size in records.sizes]

    def take(self, sequence: int, stored: StoredSet) -> Shared | None:
        """Returns what the set shares with the next stored one; None where that has another key."""
        records = self._records
        if stored.new.key_id != records.key_id:
            return None
        held: list[Bits] = []
        for rest, name in zip(self._rest, KINDS, strict=True):
            present, places = positions(getattr(stored.new, name), getattr(records, name))
            rest[places] = False
            held.append(present)
        self._sizes[sequence] = stored.new.sizes
        self._held[sequence] = (held[0], held[1])
        earlier = stored.bits(self._sizes)
        if earlier is None:
            # guard: a lost set of records counts as sharing all
            return Shared(1, 1)
        counts = [int(bits.sum()) for bits in held]
        for at, kinds in earlier.items():
            for place, bits in enumerate(kinds):
                counts[place] += int((bits & self._held[at][place]).sum())
        return Shared(counts[0], counts[1])

    def encode(self) -> bytes:
        """Returns the set as the database stores it beside those that were compared."""
        records = self._records
        new = (getattr(records, name)[rest] for name, rest in zip(KINDS, self._rest, strict=True))
        packed = {
            at: tuple(
                None if bits.all() and len(bits) else np.packbits(bits).tobytes() * bool(bits.any()) for bits in kinds
            )
            for at, kinds in self._held.items()
            if any(bits.any() for bits in kinds)
        }
        return StoredSet(records.sizes, RecordSet(records.key_id, *new), packed).encode()


def stored_sets(connection: Connection) -> Iterator[tuple[int, StoredSet]]:
    """Yields the sets of records with the sequences of their rows, in their order."""
    query = sa.select(record_set.c.sequence, record_set.c.marks).order_by(record_set.c.sequence)
    with connection.execute(query.execution_options(yield_per=1)) as rows:
        for sequence, marks in rows:
            yield sequence, StoredSet.decode(marks)


def compare(connection: Connection, records: RecordSet) -> tuple[Comparison, dict[int, Shared | None]]:
    """Compares records with every stored set; returns what each shares, by the sequence of its row."""
    comparison = Comparison(records)
    return comparison, {sequence: comparison.take(sequence, stored) for sequence, stored in stored_sets(connection)}


def register(connection: Connection, sequence: int, marks: bytes) -> None:
    """Adds a release's stored set of records beside its row, which is the newest."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT ledger_register(:marks)"), {"marks": marks})
    else:
        connection.execute(record_set.insert(), {"sequence": sequence, "marks": marks})


def _unpack(bits: bytes | None, size: int) -> Bits:
    if bits is None:
        return np.ones(size, dtype=np.bool_)
    if not bits:
        return np.zeros(size, dtype=np.bool_)
    unpacked = np.unpackbits(np.frombuffer(bits, dtype=np.uint8)).astype(np.bool_)
    if not size <= len(unpacked) < size + 8:
        raise StorageError("the ledger's registry holds a damaged set of records. Run `autocoder ledger verify`.")
    return unpacked[:size]
