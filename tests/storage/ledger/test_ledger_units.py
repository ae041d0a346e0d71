"""Ledgers from before units had an account: what is charged, refused and verified once they have one."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from ledger_sites import Site, make_plan
from sqlalchemy.engine import make_url

from storage.ledger import BudgetRefused, Ledger, Policy, chain, guards, ledger, reading
from storage.ledger.database import Database, migrate
from storage.ledger.policy import ALL_COHORTS
from storage.ledger.records import RecordSet
from storage.ledger.schema import VERSION_TABLE, ledger_row, record_set

TWENTY = Policy.parse({"name": "twenty", "default": {"asymptotic-local": {"epsilon": 20}}})
UNIT = "unit (Employer)"
Before = Callable[[Callable[[Ledger], None]], Ledger]


def asked(key: str, epsilon: float, *cohorts: str, unit: str = UNIT, **changes: Any) -> Any:
    claim = {"epsilon": epsilon, "sensitivity": epsilon / 2, "privacy_unit": unit, "max_records_per_unit": 5}
    return make_plan(key, claim=claim, cohorts=cohorts, data_fingerprint=f"{key:>064}", **changes)


@pytest.fixture
def before(site: Site, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Before:
    """A migrated ledger with rows that were written before units had an account."""

    def make(fill: Callable[[Ledger], None]) -> Ledger:
        source = Ledger.open(f"sqlite:///{tmp_path / 'old.db'}", policy=TWENTY)
        with monkeypatch.context() as old:
            for module in (reading, ledger):
                old.setattr(module, "accounts_of", lambda population, cohorts, unit: [(population, c) for c in cohorts])
            old.setattr(reading, "require_one_unit", lambda *arguments: None)
            fill(source)
        assert all(charge.cohort != ALL_COHORTS for row in source.rows() for charge in row.charges)
        if not site.is_sqlite:
            drop = ["DROP TABLE record_set", "DROP TABLE spend", "DROP TABLE ledger_row", f"DROP TABLE {VERSION_TABLE}"]
            functions = [f"DROP FUNCTION {name.removeprefix('function ')}" for name in guards.functions()]
            site.sql(*drop, *functions, owner=True)
        owner = Database(site.owner_url, lock_timeout=10)
        role = None if site.is_sqlite else make_url(site.url).username
        assert migrate(owner, revision="0004", app_role=role) == "0004"
        with source.database.read() as reads, owner.write() as writes:
            marks = {sequence: marks for sequence, marks in reads.execute(sa.select(record_set))}
            for sequence, body in reads.execute(sa.select(ledger_row.c.sequence, ledger_row.c.body)).all():
                chain.put(writes, body)
                if sequence in marks:
                    ledger.register(writes, sequence, marks[sequence])
        migrate(owner, app_role=role)
        return site.open()

    return make


def two_years(old: Ledger) -> None:
    old.reserve(asked("a", 5, "2015"))
    old.reserve(asked("b", 6, "2016"))


def check(found: Ledger) -> None:
    report = found.verify()
    assert (report.ok, report.notes) == (True, ()), report.problem


def test_what_was_spent_before_is_taken_over(before: Before) -> None:
    """The first release afterwards is charged with all years' sum; it alone, and it shows before it is charged."""
    ledger = before(two_years)
    check(ledger)
    with pytest.raises(BudgetRefused, match=r"all cohorts .* asked 21 = 21 > 20"):
        ledger.quote(asked("c", 10, "2017"))
    standing = ledger.standing("asymptotic-local", "injuries", ("2017",), UNIT)
    assert [(one.cohort, one.epsilon) for one in standing.own] == [("2017", 0), (ALL_COHORTS, 11)]
    row = ledger.reserve(asked("c", 4, "2017"))
    assert [(c.cohort, c.epsilon, c.epsilon_after) for c in row.charges] == [("2017", 4, 4), (ALL_COHORTS, 15, 15)]
    row = ledger.reserve(asked("d", 5, "2015"))
    assert [(c.cohort, c.epsilon, c.epsilon_after) for c in row.charges] == [("2015", 5, 10), (ALL_COHORTS, 5, 20)]
    with pytest.raises(BudgetRefused, match="all cohorts"):
        ledger.reserve(asked("e", 1, "2018"))
    check(ledger)


def test_a_release_that_was_reserved_before_costs_more_at_its_draw(before: Before) -> None:
    """What it costs more opens the account, with what it and others cost so far; and later ones count on."""
    ledger = before(two_years)
    first = ledger.find("a")
    assert first is not None
    assert first.release_id is not None
    row = ledger.mark_drawn(first.release_id, draw_digest="d", sensitivity=4.0, epsilon=8.0)
    assert [(c.cohort, c.epsilon, c.epsilon_after) for c in row.charges] == [("2015", 3, 8), (ALL_COHORTS, 14, 14)]
    second = ledger.find("b")
    assert second is not None
    assert second.release_id is not None
    with pytest.raises(BudgetRefused, match=r"burned.*all cohorts"):
        ledger.mark_drawn(second.release_id, draw_digest="d", sensitivity=10.0, epsilon=20.0)
    row = ledger.reserve(asked("c", 6, "2017"))
    assert row.charges[-1].epsilon_after == 20
    check(ledger)


def test_records_and_units_side_by_side(before: Before) -> None:
    """What such a population cost a unit is not known: neither is added to, other populations are."""

    def mixed(old: Ledger) -> None:
        old.reserve(asked("a", 5, "2015", unit="record"))
        old.reserve(asked("b", 5, "2016"))

    ledger = before(mixed)
    check(ledger)
    for unit in (UNIT, "record"):
        with pytest.raises(BudgetRefused, match="can't be added"):
            ledger.reserve(asked("c", 1, "2017", unit=unit))
    first = ledger.find("a")
    assert first is not None
    assert first.release_id is not None
    with pytest.raises(BudgetRefused, match="burned"):
        ledger.mark_drawn(first.release_id, draw_digest="d", sensitivity=3.0, epsilon=6.0)
    ledger.reserve(asked("d", 1, "2017", population="others"))
    check(ledger)


def test_what_counted_in_another_population_is_taken_over_as_well(before: Before) -> None:
    """A release of the same data set by another name was charged to this one's cohort; units have lost that, too."""

    def shared(old: Ledger) -> None:
        old.reserve(asked("a", 5, "2015"))
        marks = RecordSet.of([("1", b"narrative")], key=b"k" * 32)
        old.reserve(asked("b", 6, "2015", population="others").model_copy(
            update={"data_fingerprint": f"{'a':>064}"}), records=marks)  # fmt: skip

    ledger = before(shared)
    check(ledger)
    row = ledger.reserve(asked("c", 4, "2016"))
    assert row.charges[-1].epsilon_after == Decimal(15)
    row = ledger.reserve(asked("d", 4, "2016", population="others"))
    assert {(c.population, c.cohort): c.epsilon_after for c in row.charges}[None, ALL_COHORTS] == Decimal(15)
    check(ledger)


def test_a_set_with_units_is_read_back(site: Site) -> None:
    """Its digest is of all of it; one without units has the bytes of before there were any."""
    every = [(str(n), f"narrative {n}".encode()) for n in range(20)]
    key = b"k" * 32
    plain, marked = RecordSet.of(every, key=key), RecordSet.of(every, key=key, units=("acme", "acme", "other"))
    assert plain.encode().startswith(b"autocoder records 1\n")
    again = RecordSet.decode(marked.encode())
    assert (again.digest, len(again.units), list(again.named)) == (marked.digest, 2, list(plain.named))
    assert again.shares_units(marked)
    assert again.overlaps(plain)
    assert not again.shares_units(plain)
    assert b"acme" not in marked.encode()
    ledger = site.open(TWENTY)
    ledger.reserve(asked("a", 5, "2015"), records=marked)
    check(ledger)
