"""Stores the sets of records of all releases beside their rows, and compares a set with them."""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from storage.ledger.records import RecordSet, Shared
from storage.ledger.schema import record_set


def stored_sets(connection: Connection) -> Iterator[tuple[int, bytes]]:
    """Yields the encoded sets of records with the sequences of their rows, in their order."""
    query = sa.select(record_set.c.sequence, record_set.c.marks).order_by(record_set.c.sequence)
    with connection.execute(query.execution_options(yield_per=1)) as rows:
        yield from ((sequence, marks) for sequence, marks in rows)


def compare(connection: Connection, records: RecordSet) -> dict[int, Shared | None]:
    """Returns what records share with each stored set, by the sequence of its row; None where that has another key."""
    stored = ((sequence, RecordSet.decode(marks)) for sequence, marks in stored_sets(connection))
    return {sequence: records.shared(of) if of.key_id == records.key_id else None for sequence, of in stored}


def register(connection: Connection, sequence: int, records: RecordSet) -> None:
    """Adds a release's set of records beside its row, which is the newest."""
    marks = records.encode()
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT ledger_register(:marks)"), {"marks": marks})
    else:
        connection.execute(record_set.insert(), {"sequence": sequence, "marks": marks})
