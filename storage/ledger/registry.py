"""Stores the record sets of all releases with their rows, and compares them.

Accounts add releases of one kind, but an officer must also see the others. Related releases are
found through the registry's keyed marks or, if marks cannot be compared, through the fingerprint of
the whole dataset or the cohorts of the same population (`State.overlaps`). The result depends on
single records, so it is never part of a bundle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from hashlib import sha256
from tempfile import SpooledTemporaryFile
from typing import IO, Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.engine import Connection

from storage.errors import StorageError
from storage.ledger.fold import Overlap
from storage.ledger.records import RecordSet, Shared
from storage.ledger.schema import record_set


def stored_sets(
    connection: Connection, named: Mapping[int, str]
) -> Iterator[tuple[int, RecordSet | None]]:
    """Yields the stored record sets with the sequences of their rows, in order; None instead of a
    set that does not match its row.

    Args:
        named: the digest of each set, by the sequence of its row.
    """
    marks = record_set.c.marks
    if connection.dialect.name == "sqlite":
        marks = sa.case((sa.func.typeof(marks) == "blob", marks))
    query = sa.select(record_set.c.sequence, marks).order_by(record_set.c.sequence)
    with connection.execute(query.execution_options(yield_per=1)) as rows:
        for sequence, content in rows:
            yield sequence, _verified(content, named.get(sequence))


def _verified(content: bytes | None, digest: str | None) -> RecordSet | None:
    # guard: test_marks_that_are_not_those_of_the_row
    if content is None or sha256(content).hexdigest() != digest:
        return None
    try:
        return RecordSet.decode(content)
    except StorageError:
        return None


def compare(
    connection: Connection, records: RecordSet, named: Mapping[int, str]
) -> dict[int, Shared | None]:
    """The overlap of records with each stored set, by the sequence of its row; None if that set has
    another key. Sets that are missing or do not match their row are left out.
    """
    return {
        sequence: records.shared(of) if of.key_id == records.key_id else None
        for sequence, of in stored_sets(connection, named)
        if of is not None
    }


_BUCKET = 1 << 26
"""Approximate number of bytes of marks that are compared at a time."""


def sharing_sets(
    sets: Iterable[tuple[int, RecordSet]], *, size: int
) -> dict[int, dict[int, Shared]]:
    """For each set, the other sets that share marks with it, and whether they share contents or
    units: 1 for any number, otherwise 0.

    The sets are read once, one at a time. Their marks are distributed to files by their first bits,
    and the marks of each file are sorted. This needs the memory of the largest set and of one file,
    whatever the number of sets.

    Args:
        sets: record sets with the sequences of their rows.
        size: approximate size of all marks in bytes.
    """
    bits = max(0, math.ceil(math.log2(max(size, 1) / _BUCKET)))
    contents, units = _common_pairs(sets, bits)
    found: dict[int, dict[int, Shared]] = {}
    for first, second in contents | units:
        shared = Shared(int((first, second) in contents), int((first, second) in units))
        found.setdefault(first, {})[second] = shared
        found.setdefault(second, {})[first] = shared
    return found


_PAIR = np.dtype([("mark", "<u8"), ("set", "<i8")])


def _common_pairs(
    sets: Iterable[tuple[int, RecordSet]], bits: int
) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    edges = (np.arange(1, 1 << bits, dtype=np.uint64) << np.uint64(64 - bits)) if bits else []
    with ExitStack() as opened:
        files = [
            [opened.enter_context(SpooledTemporaryFile(_BUCKET)) for _ in range(1 << bits)]
            for _ in ("contents", "units")
        ]
        for sequence, records in sets:
            for buckets, marks in zip(files, (records.contents, records.units), strict=True):
                parts = np.split(marks, np.searchsorted(marks, edges))
                for bucket, part in zip(buckets, parts, strict=True):
                    bucket.write(_with_set(part, sequence).tobytes())
        contents, units = ({pair for file in of for pair in _pairs_in(file)} for of in files)
        return contents, units


def _with_set(marks: NDArray[np.uint64], sequence: int) -> NDArray[Any]:
    pairs = np.empty(len(marks), dtype=_PAIR)
    pairs["mark"], pairs["set"] = marks, sequence
    return pairs


def _pairs_in(file: IO[bytes]) -> Iterator[tuple[int, int]]:
    file.seek(0)
    pairs = np.frombuffer(file.read(), dtype=_PAIR)
    pairs = pairs[np.lexsort((pairs["set"], pairs["mark"]))]
    distance = 1
    while True:  # a mark shared by n sets is in n adjacent positions
        first, second = pairs[:-distance], pairs[distance:]
        same = first["mark"] == second["mark"]
        if not same.any():
            return
        both = np.stack([first["set"][same], second["set"][same]], axis=1)
        yield from ((int(earlier), int(later)) for earlier, later in np.unique(both, axis=0))
        distance += 1


def stored_sequences(connection: Connection) -> list[int]:
    """The sequences of the rows with which a set is stored."""
    return list(connection.scalars(sa.select(record_set.c.sequence)))


def stored_bytes(connection: Connection) -> int:
    """The total size of all sets in bytes."""
    total = sa.func.coalesce(sa.func.sum(sa.func.length(record_set.c.marks)), 0)
    return int(connection.execute(sa.select(total)).scalar() or 0)


def register(connection: Connection, sequence: int, records: RecordSet) -> None:
    """Stores a release's record set with its row, which must be the newest."""
    connection.execute(record_set.insert(), {"sequence": sequence, "marks": records.encode()})


def other_population_names(population: str, overlaps: Sequence[Overlap]) -> tuple[str, ...]:
    """The other population names under which the same records or units were released."""
    names = [
        overlap.release.plan.population for overlap in overlaps if overlap.depends_on_same_data
    ]
    return tuple(name for name in dict.fromkeys(names) if name != population)


def population_name_warning(names: Sequence[str], population: str) -> str:
    """The warning that the same records or units were released as another population."""
    return (
        "the same records or units were released under another population name "
        f"({', '.join(names)}); "
        "here they are called "
        f"{population}. Budgets belong to records, so what was spent there on the same type of "
        "guarantee counts here; "
        "anyone who named them so must say why"
    )
