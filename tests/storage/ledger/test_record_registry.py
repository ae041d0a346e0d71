"""Stored sets of records: the comparison through them is that of the whole sets, and each mark is stored once."""

from __future__ import annotations

import hashlib
import random

import pytest
from ledger_sites import Site
from releases import make_plan

from storage.errors import StorageError
from storage.ledger import Policy
from storage.ledger.records import RecordSet, Shared
from storage.ledger.registry import Comparison, StoredSet

KEY = b"k" * 32
CAP = Policy.parse({"name": "wide", "default": {"asymptotic-local": {"epsilon": 1000}}})


def records(first: int, last: int, *, key: bytes = KEY) -> RecordSet:
    """Returns numbered records, and a unit for each ten of them."""
    every = [f"narrative {n}".encode() for n in range(first, last)]
    return RecordSet.of(every, key=key, units={f"unit {n // 10}" for n in range(first, last)})


def test_a_comparison_through_stored_sets_is_that_of_the_whole_sets() -> None:
    """Forty sets at random: overlapping, equal, disjoint, empty."""
    draw = random.Random(11)
    stored: list[bytes] = []
    sets: list[RecordSet] = []
    for _ in range(40):
        first = draw.randrange(0, 400, 7)
        one = records(first, first + draw.choice([0, 1, 50, 120]))
        comparison = Comparison(one)
        for at, content in enumerate(stored):
            shared = comparison.take(at, StoredSet.decode(content))
            assert shared == one.shared(sets[at])
        sets.append(one)
        stored.append(comparison.encode())
    marks = [mark for content in stored for mark in StoredSet.decode(content).new.contents.tolist()]
    assert len(marks) == len(set(marks)) == len({mark for one in sets for mark in one.contents.tolist()})


def test_a_set_with_units_is_read_back(site: Site) -> None:
    """Its digest is of all of it, and nothing of a unit's name is in it."""
    marked = records(0, 20)
    plain, again = RecordSet(marked.key_id, marked.contents, marked.units[:0]), RecordSet.decode(marked.encode())
    assert (again.digest, len(again.units), list(again.contents)) == (marked.digest, 2, list(marked.contents))
    assert again.shared(marked) == Shared(20, 2)
    assert again.shared(plain) == Shared(20, 0)
    assert b"unit" not in marked.encode()
    claim = {"epsilon": 5.0, "privacy_unit": "unit (Employer)", "max_records_per_unit": 5}
    ledger = site.open(CAP)
    ledger.reserve(make_plan("a", claim=claim, cohorts=("2015",)), records=marked)
    report = ledger.verify()
    assert (report.ok, report.notes) == (True, ()), report.problem


def test_a_window_stores_a_quarters_marks() -> None:
    """Of eight quarters the newest is stored, eight bytes a record; the others take a few bytes each."""
    stored: list[bytes] = []
    for quarter in range(12):
        comparison = Comparison(records(1000 * max(0, quarter - 7), 1000 * (quarter + 1)))
        for at, content in enumerate(stored):
            comparison.take(at, StoredSet.decode(content))
        stored.append(comparison.encode())
    assert {len(content) // 100 for content in stored} <= {88, 89, 90, 91, 92}
    assert len(records(4000, 12000).encode()) > 64_000


def test_a_set_that_builds_on_a_lost_one_shares_everything() -> None:
    """It can only be charged more."""
    first, second = records(0, 10), Comparison(records(0, 20))
    second.take(1, StoredSet.decode(Comparison(first).encode()))
    apart = Comparison(records(500, 510))
    shared = apart.take(2, StoredSet.decode(second.encode()))
    assert shared is not None
    assert shared.records
    assert shared.units


def test_another_key_and_a_damaged_set_are_no_comparison() -> None:
    """None for the one, an error that names the remedy for the other."""
    content = Comparison(records(0, 10)).encode()
    assert Comparison(records(0, 10, key=b"x" * 32)).take(1, StoredSet.decode(content)) is None
    for damaged in (b"", content[:-3], b"{}\n", b'["a"]\n' + content):
        with pytest.raises(StorageError, match="ledger verify"):
            StoredSet.decode(damaged)


def test_verify_names_a_set_that_stores_a_mark_again(sqlite_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its digest fits, and what it shares would be hidden from later releases."""
    ledger = sqlite_site.open(CAP)
    ledger.reserve(make_plan("a", data_fingerprint="a" * 64), records=records(0, 10))
    hiding_all = Comparison(records(5, 15)).encode()
    monkeypatch.setattr(Comparison, "take", lambda *_: Shared(0, 0))
    row = ledger.reserve(make_plan("b", population="other", data_fingerprint="b" * 64), records=records(5, 15))
    assert row.details["records"]["stored"] == hashlib.sha256(hiding_all).hexdigest()
    report = ledger.verify()
    assert report.first_bad_row == row.sequence
    assert "set of records is not as the program stores one" in report.problem
