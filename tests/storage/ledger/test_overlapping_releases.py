"""Other releases of the same records are found whatever they are called, and whatever is claimed of
them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from releases import make_plan, release_key

from mechanisms.privacy.events import DpSgdEvent, NoiseSegment
from storage.ledger import Ledger, ReleasePlan
from storage.ledger.fold import Sought
from storage.ledger.records import RecordSet
from storage.ledger.registry import other_population_names

KEY = b"k" * 32
DESCENT = DpSgdEvent(
    sampling_prob=1.0, segments=(NoiseSegment(steps=10, noise_multiplier=5.0, l2_clip_norm=1.0),)
)
FORMAL: dict[str, Any] = {"event": DESCENT, "kind": "formal"}


def plan(key: str, **changes: Any) -> ReleasePlan:
    """A release of SWAG-PPM, except for these changes."""
    stated: dict[str, Any] = {"cohorts": ("2015",), "data_fingerprint": key} | changes
    return make_plan(key, **stated)


def records(first: int, last: int) -> RecordSet:
    """Marks of numbered records."""
    return RecordSet.of([f"narrative {n}".encode() for n in range(first, last)], key=KEY)


def test_the_same_records_under_another_name_and_kind(tmp_path: Path) -> None:
    """By one shared record, though population, cohorts, fingerprint and kind differ; disjoint ones
    are no siblings.
    """
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", key=release_key())
    first = ledger.reserve(plan("a"), records=records(0, 50))
    ledger.reserve(plan("b", population="harvest", cohorts=("1999",)), records=records(100, 150))
    other = plan("c", population="accidents", cohorts=("2020",), **FORMAL)
    (found,) = ledger.overlaps(Sought.of(other), records=records(49, 80))
    assert (found.row.release_id, found.row.plan.population, found.shares) == (
        first.release_id,
        "injuries",
        "records",
    )
    assert (found.row.guarantee_kind, found.row.plan.event.mechanism, found.row.epsilon) == (
        "asymptotic-local",
        "swag-ppm",
        4,
    )
    assert other_population_names(other.population, [found]) == ("injuries",)
    assert ledger.overlaps(Sought.of(other), records=records(60, 80)) == ()
    ledger.burn(str(first.release_id), reason="test")
    (burned,) = ledger.overlaps(Sought.of(other), records=records(49, 80))
    assert burned.row.state == "burned"


def test_formal_and_local_releases_of_the_same_cohorts(tmp_path: Path) -> None:
    """Reported by population and period, without a shared mark; a plan is not counted beside its
    own release; what was reserved later is left out of a statement.
    """
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", key=release_key())
    local, formal = plan("a", cohorts=("2015", "2016")), plan("b", **FORMAL)
    one = ledger.reserve(local, records=records(0, 9))
    assert ledger.overlaps(Sought.of(local), records=records(0, 9)) == ()
    two = ledger.reserve(formal, records=records(20, 29))
    assert [(s.row.release_id, s.shares) for s in ledger.overlaps(Sought.of(local))] == [
        (two.release_id, "cohorts")
    ]
    assert [s.row.release_id for s in ledger.overlaps(Sought.of(formal))] == [one.release_id]
    assert other_population_names(formal.population, ledger.overlaps(Sought.of(formal))) == ()
    assert ledger.overlaps(Sought.of(plan("x", cohorts=("2031",)))) == ()


def test_marks_of_another_key_do_not_stop_a_page(tmp_path: Path) -> None:
    """They cannot be compared; the fingerprint of the same file still tells."""
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'ledger.db'}", key=release_key())
    ledger.reserve(plan("a", data_fingerprint="same file"), records=records(0, 50))
    foreign = RecordSet.of([b"narrative 1"], key=b"z" * 32)
    assert ledger.overlaps(Sought.of(plan("c", population="other")), records=foreign) == ()
    (found,) = ledger.overlaps(
        Sought.of(plan("c", population="other", data_fingerprint="same file")), records=foreign
    )
    assert found.shares == "records"
