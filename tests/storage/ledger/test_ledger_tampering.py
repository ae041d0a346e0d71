"""A changed history is found and its first bad row named; the application's role can't change it at
all.
"""

import dataclasses
import hashlib
import json

import pytest
from refusals import of_kind
from sqlalchemy import exc

from storage.errors import StorageError
from storage.ledger import Ledger
from storage.ledger.chain import canonical
from storage.ledger.checkpoints import state_checkpoint
from storage.ledger.entries import Blocked
from storage.ledger.report import export, read_export


@pytest.fixture
def ledger(site, plan):
    """Row 1 the policy; 2 to 4 a release, committed with a surplus; 5 and 6 reserved; 7 an
    blocked plan.
    """
    ledger = site.open()
    first = ledger.reserve(plan("a", cohorts=("2023", "2024"))).release_id
    ledger.mark_drawn(first, draw_digest="d", sensitivity=2.5, epsilon=5.0)
    ledger.commit(first, bundle_digest="b")
    ledger.reserve(plan("b", cohorts=("2024",)))
    ledger.reserve(plan("c", kind="formal"))
    ledger.note(Blocked(plan_digest="f" * 64, audit_row=1, line="e", requester="operator"))
    assert ledger.verify().ok
    assert ledger.head()[0] == 7
    return ledger


def quoted(text):
    return "'" + text.replace("'", "''").replace("%", "%%") + "'"


def bodies(site):
    return {
        seq: json.loads(body) for seq, body in site.rows("SELECT sequence, body FROM ledger_row")
    }


def replace_row(site, sequence, content):
    """Write a row's body and number, with a hash that fits."""
    body = canonical(content)
    values = {
        "sequence": content["sequence"],
        "body": body,
        "hash": hashlib.sha256(body.encode()).hexdigest(),
    }
    sets = ", ".join(f"{k} = {'NULL' if v is None else quoted(str(v))}" for k, v in values.items())
    site.sql(f"UPDATE ledger_row SET {sets} WHERE sequence = {sequence}", owner=True)
    return values["hash"]


def rewrite_from(site, first, change):
    """Change one row and forge everything after it, hashes and running totals included: a chain
    sound in itself.
    """
    rows = bodies(site)
    change(rows[first])
    for sequence in range(first, max(rows) + 1):
        digest = replace_row(site, sequence, rows[sequence])
        if sequence + 1 in rows:
            rows[sequence + 1]["previous_hash"] = digest


def assert_bad(ledger, row, problem, **outside):
    """The first bad row is this one, and is said to be bad for this."""
    report = ledger.verify(**outside)
    assert report.bad[0].sequence == row
    assert problem in report.problem


SWAP = [
    f"UPDATE ledger_row SET sequence = {to} WHERE sequence = {at}"
    for at, to in ((5, 99), (6, 5), (99, 6))
]
BODY = "UPDATE ledger_row SET body = replace(body, '\"drawn\"', '\"burned\"') WHERE sequence = 3"


@pytest.mark.parametrize(
    ("statements", "row", "problem"),
    [
        ([BODY], 3, "edited"),
        (["DELETE FROM ledger_row WHERE sequence = 4"], 4, "missing"),
        (SWAP, 5, "moved"),
    ],
)
def test_a_row_that_was_edited_deleted_or_moved_is_named(site, ledger, statements, row, problem):
    """One character of a body, its hash left alone; a row gone; two that change places."""
    site.sql(*statements, owner=True)
    assert_bad(ledger, row, problem)


def test_an_edited_row_with_a_fitting_hash_is_named(site, ledger):
    """Row 5 rewritten with its own new hash: row 6 still holds the old one."""
    content = bodies(site)[5]
    content["entry"]["plan"]["release_label"] = "another"
    replace_row(site, 5, content)
    report = ledger.verify()
    assert "without the signature" in report.bad[0].problem
    assert "row 5 was rewritten" in report.bad[1].problem


def test_a_truncated_tail_is_found_by_an_exported_head(site, ledger):
    """Rows 6 and 7 cut, running totals too: sound in itself, not against the head that someone
    kept.
    """
    head = state_checkpoint(*ledger.head())
    site.sql("DELETE FROM ledger_row WHERE sequence >= 6", owner=True)
    assert ledger.verify().ok
    assert_bad(ledger, 6, "ends at row 5", checkpoints=[head])


def test_a_rewritten_chain_is_found_by_a_head_and_named_by_an_export(site, ledger, tmp_path):
    """Row 7, which no one signs, forged: a head of row 4 still holds, that of row 7 doesn't; an
    export names row 7.
    """
    early, late = state_checkpoint(4, ledger.rows()[3].hash), state_checkpoint(*ledger.head())
    (tmp_path / "export.json").write_text(export(ledger))
    rewrite_from(site, 7, lambda row: row["entry"].update(requester="someone else"))
    assert ledger.verify().ok
    assert ledger.verify(checkpoints=[early]).ok
    assert_bad(ledger, 7, "between 5 and 7", checkpoints=[early, late])
    assert_bad(ledger, 7, "from row 7 on", earlier=read_export(tmp_path / "export.json"))


def test_every_row_of_a_release_that_was_rewritten_is_named(site, ledger):
    """A chain forged whole from row 3 on, hashes included, without the releasing worker's key; row
    7 is no one's.
    """
    rewrite_from(site, 3, lambda row: row["entry"].update(draw_digest="another"))
    report = ledger.verify()
    assert [(bad.sequence, bad.void) for bad in report.bad] == [(n, True) for n in (3, 4, 5, 6)]
    assert all("signature" in bad.problem for bad in report.bad)


def test_a_damaged_chain_stops_everything_but_verify(site, ledger, plan):
    """Budget, list and reservation refuse it, and say what to run."""
    site.sql(BODY, owner=True)
    again = site.open()
    for question in (again.budget, again.rows, lambda: again.reserve(plan("x"))):
        with pytest.raises(
            StorageError, check=of_kind("broken-ledger", saying=("row 3", "edited"))
        ):
            question()


FORBIDDEN = [
    "UPDATE {} SET sequence = 99",
    "DELETE FROM {}",
    "TRUNCATE {}",
    "DROP TABLE {}",
    "ALTER TABLE {} DISABLE TRIGGER USER",
    "CREATE TRIGGER mine BEFORE INSERT ON {} EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "UPDATE ledger_version SET version_num = '0'",
]


@pytest.mark.postgres
@pytest.mark.parametrize("table", ["ledger_row", "record_set", "measurement"])
def test_no_role_of_the_program_can_change_or_delete(postgres_site, plan, table):
    """By the grants: neither training nor the releasing worker."""
    postgres_site.open().reserve(plan())
    before = postgres_site.rows("SELECT * FROM ledger_row")
    for url in (postgres_site.url, postgres_site.training_url):
        role = dataclasses.replace(postgres_site, url=url)
        for statement in FORBIDDEN:
            with pytest.raises(exc.DBAPIError, match=r"permission denied|must be owner"):
                number = "facts" if table == "measurement" else "sequence"
                role.sql(statement.format(table).replace("sequence", number))
    assert postgres_site.rows("SELECT * FROM ledger_row") == before


@pytest.mark.postgres
def test_an_owner_connection_is_noted(postgres_site, plan):
    """Used by the pipeline, nothing would stop the owner's role; verify says so."""
    assert postgres_site.open().verify().notes == ()
    report = Ledger.open(postgres_site.owner_url).verify()
    assert any("--app-role" in note for note in report.notes)


def test_every_bad_row_is_named_behind_damage_too(site, ledger):
    """A row gone, a later one edited, one moved: each stretch between is judged."""
    edited = BODY.replace("= 3", "= 4").replace("drawn", "committed")
    site.sql("DELETE FROM ledger_row WHERE sequence = 2", edited, owner=True)
    site.sql("UPDATE ledger_row SET body = body || ' ' WHERE sequence = 7", owner=True)
    report = ledger.verify()
    assert [bad.sequence for bad in report.bad] == [2, 3, 4, 7]
    assert [bad.problem.split(": ")[1].split(" ")[0] for bad in report.bad][1] == "release"
    assert (report.rows, report.sequence) == (6, 1)
    with pytest.raises(StorageError, check=of_kind("broken-ledger", saying=("row 2", "missing"))):
        Ledger.open(site.url).state()
