"""Sets of records with the marks of units."""

from __future__ import annotations

from ledger_sites import Site
from releases import make_plan

from storage.ledger import Policy
from storage.ledger.records import RecordSet

TWENTY = Policy.parse({"name": "twenty", "default": {"asymptotic-local": {"epsilon": 20}}})
UNIT = "unit (Employer)"


def test_a_set_with_units_is_read_back(site: Site) -> None:
    """Its digest is of all of it."""
    every = [f"narrative {n}".encode() for n in range(20)]
    key = b"k" * 32
    plain, marked = RecordSet.of(every, key=key), RecordSet.of(every, key=key, units=("acme", "acme", "other"))
    again = RecordSet.decode(marked.encode())
    assert (again.digest, len(again.units), list(again.contents)) == (marked.digest, 2, list(plain.contents))
    assert again.shared(marked).units
    assert again.shared(plain).records
    assert not again.shared(plain).units
    assert b"acme" not in marked.encode()
    ledger = site.open(TWENTY)
    claim = {"epsilon": 5.0, "privacy_unit": UNIT, "max_records_per_unit": 5}
    ledger.reserve(make_plan("a", claim=claim, cohorts=("2015",)), records=marked)
    report = ledger.verify()
    assert (report.ok, report.notes) == (True, ()), report.problem
