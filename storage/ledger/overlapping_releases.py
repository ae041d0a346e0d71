"""Lists other releases of the same records, under whatever name and with whatever guarantee. Reads only.

The accounts add up what is of one kind; an officer has to know of the others all the same. Found by the registry's
keyed marks; where marks cannot be compared, by the fingerprint of the whole data set, or by the cohorts of the same
population. It depends on single records, so none of it leaves in a bundle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from storage.ledger.models import ReleasePlan, Row
from storage.ledger.reader import LedgerReader
from storage.ledger.records import RecordSet
from storage.ledger.registry import compare


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


def overlapping_releases(
    ledger: LedgerReader, plan: ReleasePlan, *, records: RecordSet | None = None
) -> tuple[OverlappingRelease, ...]:
    """Returns releases other than a plan's own that share records with it, or are of the same cohorts, oldest first.

    Args:
        records: what the plan is made from; without it only fingerprints and names tell.
    """
    with ledger.database.read() as connection:
        shared = {} if records is None else compare(connection, records)
    overlapping: list[OverlappingRelease] = []
    for release in ledger.state().releases.values():
        row = release.reserved
        if row.idempotency_key == plan.idempotency_key:
            continue
        common = shared.get(row.sequence)
        # one whose marks are gone from the registry is taken to share them, as in the accounts
        lost = records is not None and "records" in row.details and row.sequence not in shared
        how = _how(row, plan, shares_marks=lost or (common is not None and common.records))
        if how:
            content = row.as_json()
            overlapping.append(
                OverlappingRelease(
                    release_id=str(row.release_id),
                    population=str(row.population),
                    cohorts=row.cohorts,
                    mechanism=str(row.mechanism),
                    guarantee_kind=row.guarantee_kind,
                    epsilon=content["epsilon"],
                    delta=content["delta"],
                    state=release.row.state,
                    shares=how,
                )
            )
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
        f"{population}. Budgets belong to records, so what was spent there on the same type of guarantee counts here; "
        "anyone who named them so must say why"
    )


def _how(row: Row, plan: ReleasePlan, *, shares_marks: bool) -> str:
    if shares_marks or row.data_fingerprint == plan.data_fingerprint:
        return "records"
    return "cohorts" if row.population == plan.population and set(row.cohorts) & set(plan.cohorts) else ""
