"""Stores the sets of records of all releases beside their rows, and compares them.

The accounts add up what is of one kind; an officer has to know of the others all the same. Found by
the registry's keyed marks; where marks cannot be compared, by the fingerprint of the whole data
set, or by the cohorts of the same population (`State.overlaps`). It depends on single records, so
none of it leaves in a bundle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from storage.errors import StorageError
from storage.ledger.fold import Overlap
from storage.ledger.models import ReleasePlan
from storage.ledger.records import RecordSet, Shared
from storage.ledger.schema import record_set


def stored_sets(
    connection: Connection, named: Mapping[int, str]
) -> Iterator[tuple[int, RecordSet | None]]:
    """Yields the stored sets of records with the sequences of their rows, in their order; None in
    the place of one that is not what its row names.

    Args:
        named: the digest of each set, by the sequence of the row that names it.
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
    """Returns what records share with each stored set, by the sequence of its row; None where that
    has another key. A set that is lost, or not what its row names, is left out.
    """
    return {
        sequence: records.shared(of) if of.key_id == records.key_id else None
        for sequence, of in stored_sets(connection, named)
        if of is not None
    }


def register(connection: Connection, sequence: int, records: RecordSet) -> None:
    """Adds a release's set of records beside its row, which is the newest."""
    connection.execute(record_set.insert(), {"sequence": sequence, "marks": records.encode()})


def other_population_names(plan: ReleasePlan, overlaps: Sequence[Overlap]) -> tuple[str, ...]:
    """Returns populations of another name that the same records or units were released under."""
    names = [str(other.row.population) for other in overlaps if other.depends_on_same_data]
    return tuple(name for name in dict.fromkeys(names) if name != plan.population)


def population_name_warning(names: Sequence[str], population: str) -> str:
    """Returns the warning that the same records or units were released as another population."""
    return (
        f"the same records or units were released under another population name ({', '.join(names)}); "
        "here they are called "
        f"{population}. Budgets belong to records, so what was spent there on the same type of "
        "guarantee counts here; "
        "anyone who named them so must say why"
    )
