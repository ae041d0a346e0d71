"""Other releases of the same records, whatever they are called and whatever kind of guarantee they have. Reads only.

The accounts add up what is of one kind; a reader of one release has to know of the others all the same. Found by the
registry's keyed marks; where marks cannot be compared, by the fingerprint of the whole data set, or by the cohorts of
the same population.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import sqlalchemy as sa

from storage.ledger import chain
from storage.ledger.models import ReleasePlan, Row
from storage.ledger.reading import Reading
from storage.ledger.records import RecordSet
from storage.ledger.schema import ledger_row, record_set

_T = ledger_row.c


@dataclass(frozen=True)
class Sibling:
    """One other release, by its newest row."""

    release_id: str
    population: str
    cohorts: tuple[str, ...]
    mechanism: str
    guarantee_kind: str
    epsilon: str | None
    """Exact, as text."""
    delta: str | None
    state: str
    shares: str
    """`records`: some of the same records; `cohorts`: the same population and period, by name."""

    def told(self) -> dict[str, Any]:
        """As plain data, without what a later row changes."""
        return {name: value for name, value in asdict(self).items() if name != "state"} | {
            "cohorts": list(self.cohorts)
        }


def siblings(
    ledger: Reading, plan: ReleasePlan, *, records: RecordSet | None = None, before: int | None = None
) -> tuple[Sibling, ...]:
    """Releases other than a plan's own that share records with it, or are of the same cohorts, oldest first.

    Args:
        records: what the plan is made from; without it only fingerprints and names tell.
        before: only those that were reserved before this row.
    """
    condition = (_T.kind == "release") & (_T.state == "reserved") & (_T.idempotency_key != plan.idempotency_key)
    if before is not None:
        condition &= _T.sequence < before
    marked = sa.select(_T.sequence, record_set.c.marks).join_from(
        record_set, ledger_row, record_set.c.sequence == _T.sequence
    )
    with ledger.database.read() as connection:
        reserved = chain.select_rows(connection, condition)
        sharing: set[int] = set()
        if records is not None:
            kept = set(connection.scalars(sa.select(record_set.c.sequence)))
            # one whose marks are gone from the registry is taken to share them, as in the accounts
            sharing = {row.sequence for row in reserved if "records" in row.details and row.sequence not in kept}
            with connection.execute(marked.where(condition).execution_options(yield_per=1)) as rows:
                sharing |= {sequence for sequence, marks in rows if _shares(records, RecordSet.decode(marks))}
        found: list[Sibling] = []
        for row in reserved:
            how = _how(row, plan, shares_marks=row.sequence in sharing)
            newest = how and chain.newest(connection, _T.release_id == row.release_id, _T.kind == "release")
            if newest:
                found.append(_sibling(newest, planned=row, shares=how))
    return tuple(found)


def others_names(plan: ReleasePlan, found: Sequence[Sibling]) -> tuple[str, ...]:
    """Populations of another name that the same records were released under."""
    return tuple(
        dict.fromkeys(s.population for s in found if s.shares == "records" and s.population != plan.population)
    )


def other_names(names: Sequence[str], population: str) -> str:
    """What is said where the same records were released as another population."""
    return (
        f"the same records were released under another population name ({', '.join(names)}); here they are called "
        f"{population}. Budgets belong to records, so what was spent there on the same kind of guarantee counts here; "
        "whoever named them so must say why"
    )


def _shares(records: RecordSet, other: RecordSet) -> bool:
    return records.key_id == other.key_id and records.overlaps(other)


def _how(row: Row, plan: ReleasePlan, *, shares_marks: bool) -> str:
    if shares_marks or row.data_fingerprint == plan.data_fingerprint:
        return "records"
    return "cohorts" if row.population == plan.population and set(row.cohorts) & set(plan.cohorts) else ""


def _sibling(row: Row, *, planned: Row, shares: str) -> Sibling:
    told = planned.as_json()
    return Sibling(
        release_id=str(row.release_id),
        population=str(row.population),
        cohorts=row.cohorts,
        mechanism=str(row.mechanism),
        guarantee_kind=row.guarantee_kind,
        epsilon=told["epsilon"],
        delta=told["delta"],
        state=row.state,
        shares=shares,
    )
