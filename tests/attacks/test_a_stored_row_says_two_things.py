"""Would win: a spent budget that is free again, since one reader of a row sees what another does
not.
"""

from pathlib import Path
from typing import Any

import pytest
from ledger_sites import Site
from releases import make_plan, release_key, shared_with

from storage.errors import StorageError
from storage.ledger import BudgetRefused, Ledger, Policy, ReleaseRow
from storage.ledger.journal import journals_of
from storage.ledger.records import RecordSet
from storage.paths import Workspace

DECLARES = """
what the ledger stores counts once, or stops everything
| bodies as BLOB, NULL, numbers, other text, no UTF-8, of all releases or one; hashes that are no
text, or another's; marks of records that are another set's, a set's of none, a number, or of
another row
| the end of a ledger cut off, without its journal or a head kept elsewhere
"""

CAP = Policy.parse({"name": "ten", "default": {"asymptotic-local": {"epsilon": 10}}})


@pytest.fixture
def house(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "house").create()


def opened(house: Workspace) -> Ledger:
    """As every command opens it: with the workspace's journal and the releasing worker's key."""
    return Ledger.open(house.ledger_url, policy=CAP, journals=journals_of(house), key=release_key())


def site_of(house: Workspace) -> Site:
    return Site(house.ledger_url, house.ledger_url, house.ledger_url)


def stored(house: Workspace) -> list[tuple[Any, ...]]:
    return site_of(house).rows("SELECT typeof(body), hex(body), typeof(hash), hash FROM ledger_row")


def released(house: Workspace, key: str, **changes: Any) -> ReleaseRow:
    ledger = opened(house)
    release_id = str(ledger.reserve(make_plan(key, **changes)).release_id)
    ledger.mark_drawn(release_id, draw_digest="d" * 64)
    return ledger.commit(release_id, bundle_digest="b" * 64)


KIND = "json_extract(body, '$.entry.kind')"
RELEASES = f"UPDATE ledger_row SET body = {{}} WHERE {KIND} IN ('reserved', 'drawn', 'committed')"
STORED = {
    "every release as bytes": RELEASES.format("CAST(body AS BLOB)"),
    "every release a number": RELEASES.format("7"),
    "every release empty": RELEASES.format("''"),
    "every release no UTF-8": RELEASES.format("CAST(x'ff' || body AS TEXT)"),
    "every release a zero longer": RELEASES.format("body || x'00'"),
    "the reservation alone": (
        f"UPDATE ledger_row SET body = CAST(body AS BLOB) WHERE {KIND} = 'reserved'"
    ),
    "the newest row": (
        "UPDATE ledger_row SET body = CAST(body AS BLOB) "
        "WHERE sequence = (SELECT max(sequence) FROM ledger_row)"
    ),
    "hashes as bytes": "UPDATE ledger_row SET hash = CAST(hash AS BLOB)",
    "hashes of another row": (
        "UPDATE ledger_row SET hash = (SELECT substr(hash, 2) || 'x' FROM ledger_row AS other "
        "WHERE other.sequence = ledger_row.sequence)"
    ),
}


@pytest.mark.parametrize("statement", STORED.values(), ids=STORED)
def test_a_release_whose_row_cannot_be_read(house: Workspace, statement: str) -> None:
    """On the default ledger, with two releases of 4 under a cap of 10: by one statement of anyone
    who writes the file. The unchanged program spends nothing more, and `verify` names a row.
    """
    for key in "ab":
        released(house, key)
    with pytest.raises(BudgetRefused):
        released(house, "c")
    before = stored(house)
    site_of(house).sql(statement)
    assert stored(house) != before
    for key in "cde":
        with pytest.raises(StorageError):
            released(house, key)
    for question in (Ledger.budget, Ledger.head, Ledger.rows):
        with pytest.raises(StorageError):
            question(opened(house))
    report = Ledger.open(house.ledger_url).verify()
    assert not report.ok


KEY = b"k" * 32


def marks(first: int, last: int) -> RecordSet:
    return RecordSet.of((f"narrative number {n}".encode() for n in range(first, last)), key=KEY)


def _stored(records: RecordSet) -> str:
    return f"x'{records.encode().hex()}'"


SETS = {
    "another set": _stored(marks(500, 600)),
    "a set of none": _stored(marks(0, 0)),
    "a number": "7",
    "no set": "x'00'",
}


@pytest.mark.parametrize("content", SETS.values(), ids=SETS)
def test_marks_that_are_not_those_of_the_row(house: Workspace, content: str) -> None:
    """The same records, once under each of two names, after one statement: both are charged."""
    ledger = opened(house)
    first = ledger.reserve(make_plan("a"), records=marks(0, 100))
    site_of(house).sql(f"UPDATE record_set SET marks = {content}")
    other = {"population": "others", "cohorts": ("x",), "data_fingerprint": "0" * 64}
    second = opened(house).reserve(make_plan("b", **other), records=marks(0, 100))
    assert shared_with(second) == [first.release_id]
    with pytest.raises(BudgetRefused):
        opened(house).reserve(make_plan("c", population="third"), records=marks(0, 100))
    assert [bad.sequence for bad in ledger.verify().bad] == [first.sequence]
