"""Would win: a fresh budget for the same records, by another population, other cohorts, another
workspace.
"""

import os
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ledger_sites import Site
from refusals import of_kind
from releases import make_plan, shared_with

from storage.errors import InputError, StorageError
from storage.ledger import BudgetRefused, Ledger, Policy, ReleaseRow
from storage.ledger.records import RecordSet, registry_key

DECLARES = """
the budget is the records'
| another population, cohorts, fingerprint, order, names, no names, one record of a thousand, a
fiftieth under new names; 60 requests at random under changing names; another key, two made at one
moment, a broken one; sets removed
| edited texts without ids; another ledger
"""

KEY = b"k" * 32
CAP = Policy.parse(
    {
        "name": "ten",
        "default": {
            "asymptotic-local": {"epsilon": 10},
            "formal": {"epsilon": 10, "delta": "0.001"},
        },
    }
)


def records(first: int, last: int, *, key: bytes = KEY) -> RecordSet:
    return RecordSet.of(
        (f"narrative number {n} of many".encode() for n in range(first, last)), key=key
    )


def reserve(ledger: Ledger, key: str, which: RecordSet, **changes: Any) -> ReleaseRow:
    return ledger.reserve(make_plan(key, **changes), records=which)


def spent(ledger: Ledger) -> dict[tuple[str, str], Decimal]:
    return {
        (line.account.population, line.account.cohort): line.account.epsilon.normalize()
        for line in ledger.budget()
        if line.used
    }


NAMES: dict[str, dict[str, Any]] = {
    "another population": {"population": "others"},
    "other cohorts": {"cohorts": ("all",)},
    "finer cohorts": {"cohorts": ("2023-01", "2023-02")},
    "both, and another fingerprint": {
        "population": "p",
        "cohorts": ("x",),
        "data_fingerprint": "0" * 64,
    },
}


@pytest.mark.parametrize("changes", NAMES.values(), ids=NAMES)
def test_the_same_records_under_another_name(site: Site, changes: dict[str, Any]) -> None:
    """Charged to the first account as well, whose cap ends it; the new account has what was spent
    before.
    """
    ledger = site.open(CAP)
    first = reserve(ledger, "a", records(0, 1000))
    second = reserve(ledger, "b", records(0, 1000), **changes)
    assert shared_with(second) == [first.release_id]
    assert spent(ledger)["injuries", "2023"] == 8
    assert {value for name, value in spent(ledger).items() if name != ("injuries", "2023")} == {
        Decimal(8)
    }
    with pytest.raises(BudgetRefused, check=of_kind("over-cap", saying=("ε 10", "ε 12", "ε 2 "))):
        reserve(ledger, "c", records(0, 1000), population="third")
    assert ledger.verify().ok


SETS: dict[str, tuple[RecordSet, RecordSet, bool]] = {
    "one record of a thousand": (records(0, 1000), records(999, 2000), True),
    "in another order": (
        records(0, 10),
        RecordSet.of([f"narrative number {n} of many".encode() for n in (9, 3, 0)], key=KEY),
        True,
    ),
    "a part": (records(0, 100), records(50, 60), True),
    "one content of many others": (
        records(0, 1000),
        RecordSet.of(
            [b"narrative number 5 of many", *(f"other {n}".encode() for n in range(2000))], key=KEY
        ),
        True,
    ),
    "apart": (records(0, 1000), records(1000, 2000), False),
    "none": (records(0, 1000), records(0, 0), False),
}


@pytest.mark.parametrize(("one", "other", "shared"), SETS.values(), ids=SETS)
def test_what_counts_as_the_same_records(one: RecordSet, other: RecordSet, shared: bool) -> None:
    assert one.shared(other).records == other.shared(one).records == shared
    again = RecordSet.decode(one.encode())
    assert again.shared(other).records == shared
    assert again.digest == one.digest


def test_sums_over_any_chain_of_overlaps_stay_under_the_cap(sqlite_site: Site) -> None:
    """At random, 60 requests of windows of 40 records under changing names: no record has more than
    the cap in all.
    """
    ledger, draw = sqlite_site.open(CAP), random.Random(7)
    total: dict[int, float] = {}
    refused = 0
    for n in range(60):
        start, epsilon = draw.randrange(0, 200, 20), draw.choice([1.0, 2.0, 4.0])
        name = {"population": f"p{draw.randrange(4)}", "cohorts": (f"c{draw.randrange(3)}",)}
        plan = make_plan(f"k{n}", claim={"epsilon": epsilon}, data_fingerprint=f"{n:064d}", **name)
        try:
            row = ledger.reserve(plan, records=records(start, start + 40))
        except BudgetRefused:
            refused += 1
            continue
        for record in range(start, start + 40):
            total[record] = total.get(record, 0.0) + epsilon
        if draw.random() < 0.3:  # some cost more at the draw than was planned
            try:
                ledger.mark_drawn(
                    str(row.release_id), draw_digest="d", sensitivity=9.0, epsilon=epsilon + 0.5
                )
            except BudgetRefused:
                refused += 1
                continue
            for record in range(start, start + 40):
                total[record] += 0.5
    assert refused > 10
    assert max(total.values()) <= 10
    assert len(total) > 150
    report = ledger.verify()
    assert report.ok, report.problem


def test_kinds_of_guarantee_are_not_added(site: Site) -> None:
    ledger = site.open(CAP)
    reserve(ledger, "a", records(0, 100))
    row = reserve(ledger, "b", records(0, 100), kind="formal", population="others")
    assert shared_with(row) == []
    assert len(ledger.charges(str(row.release_id))) == 1


def test_a_workspace_with_a_key_of_its_own(site: Site) -> None:
    ledger = site.open(CAP)
    reserve(ledger, "a", records(0, 100))
    with pytest.raises(InputError, check=of_kind("another-registry-key")):
        reserve(ledger, "b", records(0, 100, key=b"x" * 32), population="others")


def test_a_release_from_before_the_registry(site: Site) -> None:
    """Its records are known only by the fingerprint of the data set."""
    ledger = site.open(CAP)
    old = ledger.reserve(make_plan("a"))
    row = reserve(ledger, "b", records(0, 100), population="others")
    assert shared_with(row) == [old.release_id]
    assert spent(ledger)["injuries", "2023"] == 8
    assert ledger.verify().ok


def test_a_set_that_is_taken_out_of_the_registry(site: Site) -> None:
    """Not by the pipeline; by the owner it is reported, and until then it counts as sharing
    everything.
    """
    ledger = site.open(CAP)
    first = reserve(ledger, "a", records(0, 100))
    site.sql("DELETE FROM record_set", owner=True)
    assert ledger.verify().bad[0].sequence == first.sequence
    row = reserve(ledger, "b", records(500, 600), population="others", data_fingerprint="0" * 64)
    assert shared_with(row) == [first.release_id]


def test_nothing_can_be_tried_without_the_key() -> None:
    """Marks of another key have nothing in common with these; no content is in them."""
    one, other = records(0, 500), records(0, 500, key=b"x" * 32)
    assert len(np.intersect1d(one.contents, other.contents)) == 0
    assert b"narrative" not in one.encode()
    assert KEY not in one.encode()


def test_two_keys_made_at_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two first runs: the second makes its key while the first is at it. Both continue with one
    key, and it stays.
    """
    monkeypatch.delenv("AUTOCODER_REGISTRY_KEY")
    real, keys = os.urandom, []

    def urandom(size: int) -> bytes:
        if size == 32 and not keys:
            keys.append(b"")
            keys.append(registry_key(tmp_path))
        return real(size)

    monkeypatch.setattr(os, "urandom", urandom)
    assert registry_key(tmp_path) == keys[1] == registry_key(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["registry.key"]
    assert (tmp_path / "registry.key").stat().st_mode & 0o777 == 0o600


def test_a_key_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Emptied, cut, or a dangling link: no new one steps in."""
    monkeypatch.delenv("AUTOCODER_REGISTRY_KEY")
    key = tmp_path / "registry.key"
    for content in (b"", b"k" * 31):
        key.write_bytes(content)
        with pytest.raises(StorageError, check=of_kind("not-a-registry-key")):
            registry_key(tmp_path)
    key.unlink()
    key.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError):
        registry_key(tmp_path)
    assert not (tmp_path / "elsewhere").exists()
