"""Would win: more than a cap from a person or an establishment, by releases of cohorts that share
no record.
"""

import random
from pathlib import Path
from typing import Any

import pytest
import tiny_jobs
from ledger_sites import Site, append_past
from refusals import of_kind
from releases import another, make_plan, release_key, shared_with

from storage.errors import InputError, StorageError
from storage.ledger import BudgetRefused, Charge, Ledger, Policy, ReleaseRow
from storage.ledger.fold import Sought
from storage.ledger.policy import ALL_COHORTS
from storage.ledger.records import RecordSet
from storage.ledger.registry import other_population_names
from tasks.releasing.budgets import ExpectedCharge
from tasks.releasing.ledger_access import ledger_url

DECLARES = """
a unit's budget is one over all cohorts
| two years at the cap each, with and without marks; another population's name for other records of
the same unit; 80 requests at random over cohorts, names and units; claims about records, or another
column's units, before and after; a wider cap for one cohort; a cohort with the account's name; rows
past the program as if of records or of no unit
| units spelt otherwise; a unit under another population's name in releases about records, or from
before there were marks of units
"""

KEY = b"k" * 32
FIVE = Policy.parse({"name": "five", "default": {"formal": {"epsilon": 5, "delta": "0.0001"}}})
EMPLOYER = "unit (Employer)"


def records(cohort: str, units: tuple[str, ...] = ("acme",)) -> RecordSet:
    """A hundred records of a cohort, which no other has, of these units."""
    every = (f"narrative {n} of {cohort}".encode() for n in range(100))
    return RecordSet.of(every, key=KEY, **({"units": units} if units else {}))


def asked(
    key: str, epsilon: float, cohorts: tuple[str, ...], unit: str = EMPLOYER, **changes: Any
) -> Any:
    claim = {
        "epsilon": epsilon,
        "privacy_unit": unit,
        "max_records_per_unit": 1 if unit == "record" else 5,
    }
    return make_plan(
        key, kind="formal", claim=claim, cohorts=cohorts, data_fingerprint=f"{key:>064}", **changes
    )


def reserve(ledger: Ledger, key: str, epsilon: float, *cohorts: str, **changes: Any) -> ReleaseRow:
    of_records = changes.get("unit") == "record"
    which = (
        changes.pop("records")
        if "records" in changes
        else records("".join(cohorts), () if of_records else ("acme",))
    )
    return ledger.reserve(asked(key, epsilon, cohorts, **changes), records=which)


def charges(ledger: Ledger, row: ReleaseRow) -> tuple[Charge, ...]:
    return ledger.charges(str(row.release_id))


@pytest.mark.parametrize("units", [None, (), ("acme",)], ids=["no marks", "of records", "of units"])
def test_two_years_at_the_cap_each(site: Site, units: tuple[str, ...] | None) -> None:
    """An employer with records in both would have lost twice the cap."""
    ledger = site.open(FIVE)
    of = {year: None if units is None else records(year, units) for year in ("2015", "2016")}
    first = reserve(ledger, "a", 5, "2015", records=of["2015"])
    with pytest.raises(
        BudgetRefused, check=of_kind("over-cap", saying=("all cohorts", "ε 5 ", "ε 10 "))
    ):
        reserve(ledger, "b", 5, "2016", records=of["2016"])
    assert [charge.after.cohort for charge in charges(ledger, first)] == ["2015", ALL_COHORTS]
    assert ledger.verify().ok


def test_years_of_records_still_compose_in_parallel(site: Site) -> None:
    """A record is in one cohort: nothing is charged beside."""
    ledger = site.open(FIVE)
    for cohort in ("2015", "2016"):
        row = reserve(ledger, cohort, 5, cohort, unit="record")
        assert [(charge.after.cohort, charge.after.epsilon) for charge in charges(ledger, row)] == [
            (cohort, 5)
        ]
    assert ledger.verify().ok


def test_the_least_cap_of_a_cohort_holds_for_units(site: Site) -> None:
    """A unit of the cohort that may lose 2 may have records in any other; a wider cohort widens
    nothing.
    """
    wide = {"epsilon": 9, "delta": "0.001"}
    narrow = {"epsilon": 2, "delta": "0.001"}
    cohorts = {"2015": {"formal": wide}, "2016": {"formal": narrow}}
    caps = {"formal": {"epsilon": 5, "delta": "0.001"}, "cohorts": cohorts}
    ledger = site.open(Policy.parse({"name": "p", "populations": {"injuries": caps}}))
    with pytest.raises(BudgetRefused, check=of_kind("over-cap", saying=("ε 2 ", "ε 3 ", "ε 1 "))):
        reserve(ledger, "a", 3, "2015")
    row = reserve(ledger, "b", 2, "2015")
    assert [charge.epsilon_cap for charge in charges(ledger, row)] == [9, 2]
    with pytest.raises(BudgetRefused, check=of_kind("over-cap", saying="all cohorts")):
        reserve(ledger, "c", 1, "2017")


@pytest.mark.parametrize(
    ("first", "second"), [(EMPLOYER, "record"), ("record", EMPLOYER), (EMPLOYER, "unit (Site)")]
)
def test_claims_about_another_unit(site: Site, first: str, second: str) -> None:
    """What a release about records costs a unit is not bounded, however many years are between."""
    ledger = site.open(FIVE)
    reserve(ledger, "a", 1, "2015", unit=first)
    plan = asked("b", 1, ("2020",), second)
    for refused in (ledger.quote, ledger.reserve):
        with pytest.raises(BudgetRefused, check=of_kind("unit-of-population")):
            refused(plan, records=records("2020", () if second == "record" else ("acme",)))
    reserve(ledger, "c", 1, "2020", unit=second, population="others", records=records("z", ()))


def test_another_populations_name(site: Site) -> None:
    """Other records of the same employer: known by its mark. Of other employers:
    nothing in common.
    """
    ledger = site.open(FIVE)
    first = reserve(ledger, "a", 4, "2015", population="injuries-15")
    with pytest.raises(BudgetRefused, check=of_kind("over-cap", saying=("ε 4 ", "ε 8 ", "ε 3 "))):
        reserve(ledger, "b", 4, "2016", population="injuries-16")
    row = reserve(ledger, "c", 1, "2016", population="injuries-16")
    assert shared_with(row) == [first.release_id]
    plan = asked("x", 1, ("2016",), population="injuries-17")
    overlaps = ledger.overlaps(Sought.of(plan), records=records("2016"))
    assert [(found.row.release_id, found.shares) for found in overlaps] == [
        (first.release_id, "units"),
        (row.release_id, "records"),
    ], "the officer reads of every release that is charged"
    assert other_population_names(plan.population, overlaps) == ("injuries-15", "injuries-16")
    spent = {(c.after.population, c.after.cohort): c.after.epsilon for c in charges(ledger, row)}
    assert spent["injuries-16", ALL_COHORTS] == spent["injuries-15", ALL_COHORTS] == 5
    reserve(
        ledger,
        "d",
        5,
        "2016",
        population="elsewhere",
        records=records("2017", ("other", "employers")),
    )
    assert ledger.verify().ok


def test_a_units_sum_over_any_requests_stays_under_the_cap(sqlite_site: Site) -> None:
    """At random, 80 requests over cohorts, units and names of populations: no unit has more than
    the cap in all.
    """
    ten = Policy.parse({"name": "ten", "default": {"formal": {"epsilon": 10, "delta": "0.01"}}})
    ledger, draw = sqlite_site.open(ten), random.Random(11)
    total: dict[str, float] = {}
    refused = 0
    for n in range(80):
        units = tuple(f"unit {i}" for i in draw.sample(range(40), 2))
        cohorts = tuple(sorted(draw.sample(["2015", "2016", "2017"], draw.randrange(1, 3))))
        epsilon, population = draw.choice([1.0, 2.0, 4.0]), f"p{draw.randrange(12)}"
        try:
            which = records(f"own {n}", units)
            reserve(ledger, f"k{n}", epsilon, *cohorts, population=population, records=which)
        except BudgetRefused:
            refused += 1
            continue
        for unit in units:
            total[unit] = total.get(unit, 0.0) + epsilon
    assert refused > 10
    assert len(total) > 25
    assert max(total.values()) <= 10
    report = ledger.verify()
    assert report.ok, report.problem


def test_a_cohort_with_the_accounts_name(sqlite_site: Site) -> None:
    """Two accounts would be one."""
    with pytest.raises(InputError, check=of_kind("reserved-cohort")):
        reserve(sqlite_site.open(FIVE), "a", 1, ALL_COHORTS, unit="record")


def test_what_is_shown_before_is_what_is_charged(tmp_path: Path) -> None:
    """A dry run of another year, with nothing trained: it has what all years have left, and says
    so.
    """
    data = tiny_jobs.demo(
        tmp_path, records=160, ingest={"unit_column": "Establishment", "max_per_unit": 3}
    )
    parameters = tiny_jobs.retrain(data, tmp_path, epochs=(1, 6), rate=0.05)
    context = tiny_jobs.workspace(tmp_path / "home")
    population, unit = parameters.data.population, "unit (Establishment)"
    before = ExpectedCharge.of(context, parameters, ["2016"], train=80)
    assert [(one.account.cohort, one.account.epsilon) for one in before.accounts] == [
        ("2016", 0),
        (ALL_COHORTS, 0),
    ]
    ledger = Ledger.open(ledger_url(context), key=release_key())
    claim = {"epsilon": 19.0, "privacy_unit": unit, "max_records_per_unit": 3}
    ledger.reserve(make_plan("a", claim=claim, cohorts=("2015",), population=population))
    told = ExpectedCharge.of(context, parameters, ["2016"], train=80)
    assert [(one.account.cohort, one.account.epsilon, one.left) for one in told.accounts] == [
        ("2016", 0, 20),
        (ALL_COHORTS, 19, 1),
    ]
    assert f"{population}/{ALL_COHORTS}: ε 1 of 20 left" in told.budget
    assert not told.exceeds
    assert {line.account.cohort: line.left for line in ledger.budget() if line.used} == {
        "2015": 1,
        ALL_COHORTS: 1,
    }
    about_records = parameters.model_copy(
        update={"data": parameters.data.model_copy(update={"ingest": _of_records()})}
    )
    told = ExpectedCharge.of(context, about_records, ["2016"], train=80)
    assert told.exceeds
    assert (
        f"{population}: earlier releases protect a {unit}, so their costs cannot be added"
        in told.budget
    )


def _of_records() -> Any:
    from storage.ingest import IngestConfig

    return IngestConfig()


ROWS: dict[str, dict[str, Any]] = {
    "as if of records": {"claim": {"privacy_unit": "record"}},
    "of another unit": {"claim": {"privacy_unit": "unit (Site)"}},
    "of a unit without a name": {"claim": {"privacy_unit": ""}},
    "of a cohort twice": {"cohorts": ("2015", "2015")},
    "of a cohort with the account's name": {"cohorts": (ALL_COHORTS,)},
}
VOID: dict[str, dict[str, Any]] = {
    "of no unit": {"claim": {"privacy_unit": None}},
    "of no cohort": {"cohorts": ()},
    "of no cohort, about records": {
        "cohorts": (),
        "claim": {"privacy_unit": "record"},
        "population": "others",
    },
}


@pytest.mark.parametrize("change", ROWS.values(), ids=ROWS)
def test_rows_past_the_program(site: Site, change: dict[str, Any]) -> None:
    """With the releasing worker's own signature: each is named and never drawn, and what is spent
    does not fall.
    """
    ledger = site.open(FIVE)
    row = reserve(ledger, "a", 2, "2015")
    written = append_past(ledger, another(row, **change), key=release_key())
    assert {bad.sequence for bad in ledger.verify().bad} == {written}
    with pytest.raises(StorageError, check=of_kind("unfounded-release")):
        ledger.require_drawable("f" * 16)
    spent = {line.account.cohort: line.account.epsilon for line in ledger.budget() if line.used}
    assert spent[ALL_COHORTS] >= 2


@pytest.mark.parametrize("change", VOID.values(), ids=VOID)
def test_rows_that_are_none(site: Site, change: dict[str, Any]) -> None:
    """With the releasing worker's own signature, and yet no reservation: nothing is reserved while
    such a row is there, and what is spent does not fall.
    """
    ledger = site.open(FIVE)
    row = reserve(ledger, "a", 2, "2015")
    written = append_past(ledger, another(row, **change), key=release_key())
    assert [(bad.sequence, bad.void) for bad in ledger.verify().bad] == [(written, True)]
    with pytest.raises(StorageError, check=of_kind("stopped-ledger", saying=f"row {written}")):
        reserve(ledger, "b", 1, "2016")
    spent = {line.account.cohort: line.account.epsilon for line in ledger.budget() if line.used}
    assert spent[ALL_COHORTS] >= 2
