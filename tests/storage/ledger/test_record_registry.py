"""Sets of records as the ledger stores them: what they share, and what `verify` makes of one that
was changed.
"""

from __future__ import annotations

import random

import pytest
from ledger_sites import Site
from refusals import of_kind
from releases import make_plan, shared_with

from storage.errors import StorageError
from storage.ledger import Policy
from storage.ledger.records import RecordSet, Shared
from storage.ledger.registry import sharing_sets

KEY = b"k" * 32
CAP = Policy.parse({"name": "wide", "default": {"asymptotic-local": {"epsilon": 1000}}})


def records(first: int, last: int, *, key: bytes = KEY) -> RecordSet:
    """Returns numbered records, and a unit for each ten of them."""
    every = [f"narrative {n}".encode() for n in range(first, last)]
    return RecordSet.of(every, key=key, units={f"unit {n // 10}" for n in range(first, last)})


@pytest.mark.parametrize(("first", "last"), [(0, 20), (10, 30), (19, 21), (20, 30), (0, 0)])
def test_what_two_sets_share_is_what_is_in_both(first: int, last: int) -> None:
    common = range(max(first, 0), min(last, 20))
    assert records(first, last).shared(records(0, 20)) == Shared(
        len(common), len({n // 10 for n in common})
    )


def test_a_set_with_units_is_read_back(site: Site) -> None:
    """Its digest is of all of it, and nothing of a unit's name is in it."""
    marked = records(0, 20)
    plain, again = (
        RecordSet(marked.key_id, marked.contents, marked.units[:0]),
        RecordSet.decode(marked.encode()),
    )
    assert (again.digest, len(again.units), list(again.contents)) == (
        marked.digest,
        2,
        list(marked.contents),
    )
    assert again.shared(marked) == Shared(20, 2)
    assert again.shared(plain) == Shared(20, 0)
    assert b"unit" not in marked.encode()
    claim = {"epsilon": 5.0, "privacy_unit": "unit (Employer)", "max_records_per_unit": 5}
    ledger = site.open(CAP)
    ledger.reserve(make_plan("a", claim=claim, cohorts=("2015",)), records=marked)
    report = ledger.verify()
    assert (report.ok, report.notes) == (True, ()), report.problem


@pytest.mark.parametrize("damage", [b"", b"autocoder records 1\n", b"{}"])
def test_a_damaged_set_is_no_comparison(damage: bytes) -> None:
    for content in (damage, records(0, 10).encode()[:-3]):
        with pytest.raises(StorageError, check=of_kind("damaged-record-set")):
            RecordSet.decode(content)


def test_a_lost_set_counts_as_sharing_everything_and_verify_goes_on(sqlite_site: Site) -> None:
    """Of three releases the first one's set is gone: what comes later is charged to its account; it
    alone is named.
    """
    ledger = sqlite_site.open(CAP)
    first = ledger.reserve(make_plan("a", data_fingerprint="a" * 64), records=records(0, 10))
    ledger.reserve(make_plan("b", data_fingerprint="b" * 64), records=records(5, 15))
    sqlite_site.sql(f"DELETE FROM record_set WHERE sequence = {first.sequence}")
    last = ledger.reserve(
        make_plan("c", population="other", data_fingerprint="c" * 64), records=records(50, 60)
    )
    assert shared_with(last) == [first.release_id]
    report = ledger.verify()
    assert [bad.sequence for bad in report.bad] == [first.sequence]
    assert "the set of records beside it is gone" in report.problem


def test_verify_names_a_row_that_hides_what_it_shares(
    sqlite_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The releasing worker's own row with its own set, which says that it shares nothing: it was
    charged too little.
    """
    ledger = sqlite_site.open(CAP)
    ledger.reserve(make_plan("a", data_fingerprint="a" * 64), records=records(0, 10))
    with monkeypatch.context() as hidden:
        hidden.setattr(RecordSet, "shared", lambda *_: Shared(0, 0))
        row = ledger.reserve(
            make_plan("b", population="other", data_fingerprint="b" * 64), records=records(5, 15)
        )
    report = ledger.verify()
    assert [bad.sequence for bad in report.bad] == [row.sequence]
    assert "shares records with other releases than it says" in report.problem


@pytest.mark.parametrize("size", [0, 1 << 32], ids=["one file", "64 files"])
def test_sets_compared_all_at_once_share_what_they_share_two_by_two(size: int) -> None:
    """Thirty sets of random ranges of records, some alike, some empty: in one file, or in many by
    the first bits of a mark.
    """
    draw = random.Random(3)
    sets = {0: records(0, 0), 1: records(0, 50), 2: records(0, 50)}
    for number in range(3, 30):
        start = draw.randrange(0, 600)
        sets[number] = records(start, start + draw.randrange(0, 40))
    found = sharing_sets(sets.items(), size=size)
    for one, of_one in sets.items():
        for other, of_other in sets.items():
            if one != other:
                shared = found.get(one, {}).get(other, Shared(0, 0))
                assert shared == Shared(*(min(1, count) for count in of_one.shared(of_other)))
