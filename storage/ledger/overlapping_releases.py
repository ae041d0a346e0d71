"""Lists other releases of the same records, under whatever name and with whatever guarantee. Reads only.

The accounts add up what is of one kind; a reader of one release has to know of the others all the same. Found by the
registry's keyed marks; where marks cannot be compared, by the fingerprint of the whole data set, or by the cohorts of
the same population.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from storage.ledger import chain
from storage.ledger.models import ReleasePlan, Row
from storage.ledger.reader import LedgerReader
from storage.ledger.records import RecordSet
from storage.ledger.registry import compare
from storage.ledger.schema import ledger_row

_T = ledger_row.c


@dataclass(frozen=True)
class OverlappingRelease:
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

    def public_entry(self) -> dict[str, Any]:
        """Returns plain data, without what a later row changes."""
        return {name: value for name, value in asdict(self).items() if name != "state"} | {
            "cohorts": list(self.cohorts)
        }


def overlapping_releases(
    ledger: LedgerReader, plan: ReleasePlan, *, records: RecordSet | None = None, before: int | None = None
) -> tuple[OverlappingRelease, ...]:
    """Returns releases other than a plan's own that share records with it, or are of the same cohorts, oldest first.

    Args:
        records: what the plan is made from; without it only fingerprints and names tell.
        before: only those that were reserved before this row.
    """
    condition = (_T.kind == "release") & (_T.state == "reserved") & (_T.idempotency_key != plan.idempotency_key)
    if before is not None:
        condition &= _T.sequence < before
    with ledger.database.read() as connection:
        reserved = chain.select_rows(connection, condition)
        sharing: set[int] = set()
        if records is not None:
            shared = compare(connection, records)[1]
            # one whose marks are gone from the registry is taken to share them, as in the accounts
            sharing = {row.sequence for row in reserved if "records" in row.details and row.sequence not in shared}
            sharing |= {sequence for sequence, common in shared.items() if common is not None and common.records}
        overlapping: list[OverlappingRelease] = []
        for row in reserved:
            how = _how(row, plan, shares_marks=row.sequence in sharing)
            newest = how and chain.newest(connection, _T.release_id == row.release_id, _T.kind == "release")
            if newest:
                overlapping.append(_entry(newest, planned=row, shares=how))
    return tuple(overlapping)


def other_population_names(plan: ReleasePlan, overlapping: Sequence[OverlappingRelease]) -> tuple[str, ...]:
    """Returns populations of another name that the same records were released under."""
    return tuple(
        dict.fromkeys(s.population for s in overlapping if s.shares == "records" and s.population != plan.population)
    )


def population_name_warning(names: Sequence[str], population: str) -> str:
    """Returns the warning that the same records were released as another population."""
    return (
        f"the same records were released under another population name ({', '.join(names)}); here they are called "
        f"{population}. Budgets belong to records, so what was spent there on the same kind of guarantee counts here; "
        "whoever named them so must say why"
    )


def _how(row: Row, plan: ReleasePlan, *, shares_marks: bool) -> str:
    if shares_marks or row.data_fingerprint == plan.data_fingerprint:
        return "records"
    return "cohorts" if row.population == plan.population and set(row.cohorts) & set(plan.cohorts) else ""


def _entry(row: Row, *, planned: Row, shares: str) -> OverlappingRelease:
    content = planned.as_json()
    return OverlappingRelease(
        release_id=str(row.release_id),
        population=str(row.population),
        cohorts=row.cohorts,
        mechanism=str(row.mechanism),
        guarantee_kind=row.guarantee_kind,
        epsilon=content["epsilon"],
        delta=content["delta"],
        state=row.state,
        shares=shares,
    )
