"""Stores the sets of records of all releases beside their rows, and finds other releases of the
same records.

The accounts add up what is of one kind; an officer has to know of the others all the same. Found by
the registry's keyed marks; where marks cannot be compared, by the fingerprint of the whole data
set, or by the cohorts of the same population. It depends on single records, so none of it leaves in
a bundle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from storage.ledger.models import ReleasePlan, Row
from storage.ledger.records import RecordSet, Shared
from storage.ledger.schema import record_set

if TYPE_CHECKING:
    from storage.ledger.reader import LedgerReader


def stored_sets(connection: Connection) -> Iterator[tuple[int, bytes]]:
    """Yields the encoded sets of records with the sequences of their rows, in their order."""
    query = sa.select(record_set.c.sequence, record_set.c.marks).order_by(record_set.c.sequence)
    with connection.execute(query.execution_options(yield_per=1)) as rows:
        yield from ((sequence, marks) for sequence, marks in rows)


def compare(connection: Connection, records: RecordSet) -> dict[int, Shared | None]:
    """Returns what records share with each stored set, by the sequence of its row; None where that
    has another key.
    """
    stored = ((sequence, RecordSet.decode(marks)) for sequence, marks in stored_sets(connection))
    return {
        sequence: records.shared(of) if of.key_id == records.key_id else None
        for sequence, of in stored
    }


def register(connection: Connection, sequence: int, records: RecordSet) -> None:
    """Adds a release's set of records beside its row, which is the newest."""
    marks = records.encode()
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT ledger_register(:marks)"), {"marks": marks})
    else:
        connection.execute(record_set.insert(), {"sequence": sequence, "marks": marks})


class Overlap(NamedTuple):
    """Another release, by its newest row; it shares records, or only population and period by name."""

    row: Row
    shares: Literal["records", "cohorts"]


def overlapping_releases(
    ledger: LedgerReader, plan: ReleasePlan, *, records: RecordSet | None = None
) -> tuple[Overlap, ...]:
    """Returns releases other than a plan's own that share records with it, or are of the same
    cohorts, oldest first.

    Args:
        records: what the plan is made from; without it only fingerprints and names tell.
    """
    with ledger.database.read() as connection:
        shared = {} if records is None else compare(connection, records)
    overlaps = []
    for release in ledger.state().releases.values():
        row = release.reserved
        common = shared.get(row.sequence)
        # one whose marks are gone from the registry is taken to share them, as in the accounts
        lost = records is not None and "records" in row.details and row.sequence not in shared
        if row.idempotency_key == plan.idempotency_key:
            continue
        if lost or (common and common.records) or row.data_fingerprint == plan.data_fingerprint:
            overlaps.append(Overlap(release.row, "records"))
        elif row.population == plan.population and set(row.cohorts) & set(plan.cohorts):
            overlaps.append(Overlap(release.row, "cohorts"))
    return tuple(overlaps)


def other_population_names(plan: ReleasePlan, overlaps: Sequence[Overlap]) -> tuple[str, ...]:
    """Returns populations of another name that the same records were released under."""
    names = [str(other.row.population) for other in overlaps if other.shares == "records"]
    return tuple(name for name in dict.fromkeys(names) if name != plan.population)


def population_name_warning(names: Sequence[str], population: str) -> str:
    """Returns the warning that the same records were released as another population."""
    return (
        f"the same records were released under another population name ({', '.join(names)}); "
        "here they are called "
        f"{population}. Budgets belong to records, so what was spent there on the same type of "
        "guarantee counts here; "
        "anyone who named them so must say why"
    )
