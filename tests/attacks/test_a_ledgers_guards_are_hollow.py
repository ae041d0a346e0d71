"""Would win: a ledger whose triggers have their names and do nothing, and a cohort that can never be released again."""

from __future__ import annotations

import pytest
from ledger_sites import Site
from releases import make_plan

DECLARES = (
    (
        "`verify` detects hollow guards",
        "triggers and functions that do nothing, never fire, or were added; rules; a writer for its caller",
        "an owner who puts them back before anybody looks",
    ),
    (
        "a row among the running totals closes no cohort",
        "totals of nobody, and too low",
        "",
    ),
)
"""Rows of docs/threat-model.md: promise, attacks tried, what is not promised."""

APPEND = "CREATE TRIGGER ledger_row_append BEFORE INSERT ON ledger_row"
HOLLOW_SQLITE = {
    # named by the issue
    "a body that does nothing": ("DROP TRIGGER ledger_row_no_update",
                                 "CREATE TRIGGER ledger_row_no_update BEFORE UPDATE ON ledger_row BEGIN SELECT 1; END"),
    # its neighbours
    "a condition never met": ("DROP TRIGGER ledger_row_append", f"{APPEND} WHEN 0 BEGIN SELECT RAISE(ABORT, 'x'); END"),
    "on another event": ("DROP TRIGGER spend_no_delete", "CREATE TRIGGER spend_no_delete BEFORE INSERT ON spend"
                         " WHEN 0 BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: DELETE refused'); END"),
    "one more": ("CREATE TRIGGER more AFTER INSERT ON spend BEGIN SELECT 1; END",),
    "gone": ("DROP TRIGGER spend_append",),
}  # fmt: skip
RETURNS = "RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$"
HOLLOW_POSTGRESQL = {
    "a body that does nothing": (f"CREATE OR REPLACE FUNCTION ledger_refuse() {RETURNS}",),
    "an append that takes all": (f"CREATE OR REPLACE FUNCTION ledger_row_append() {RETURNS}",),
    "a condition never met": (
        "DROP TRIGGER ledger_row_append ON ledger_row",
        f"{APPEND} FOR EACH ROW WHEN (false) EXECUTE FUNCTION ledger_row_append()",
    ),
    "for replicas alone": ("ALTER TABLE ledger_row ENABLE REPLICA TRIGGER ledger_row_no_change",),
    "one more": ("CREATE TRIGGER zzz BEFORE INSERT ON spend FOR EACH ROW EXECUTE FUNCTION spend_append()",),
    "a rule": ("CREATE RULE quiet AS ON INSERT TO spend DO INSTEAD NOTHING",),
    "a writer with the caller's path": ("ALTER FUNCTION ledger_append(text) RESET ALL",),
    "a writer for its caller": ("ALTER FUNCTION ledger_append(text) SECURITY INVOKER",),
    "caps without end": (
        "CREATE OR REPLACE FUNCTION ledger_cap(policy jsonb, population text, cohort text, kind text) RETURNS jsonb"
        " LANGUAGE sql IMMUTABLE AS $$ SELECT '{\"epsilon\": 1000000}'::jsonb $$",
    ),
}


@pytest.mark.parametrize("statements", HOLLOW_SQLITE.values(), ids=HOLLOW_SQLITE)
def test_a_hollow_trigger_of_sqlite(sqlite_site: Site, statements: tuple[str, ...]) -> None:
    """Told by its text."""
    ledger = sqlite_site.open()
    ledger.reserve(make_plan())
    assert ledger.verify().notes == ()
    sqlite_site.sql(*statements)
    assert any("were changed" in note for note in ledger.verify().notes)


@pytest.mark.postgres
def test_hollow_triggers_and_functions_of_postgresql(postgres_site: Site) -> None:
    """Each in turn, by the owner; put back, nothing is noted."""
    import sqlalchemy as sa
    from sqlalchemy.pool import NullPool

    from storage.ledger import triggers

    engine = sa.create_engine(postgres_site.owner_url, poolclass=NullPool)
    with engine.connect() as connection:
        assert triggers.changed(connection) == []
        for name, statements in HOLLOW_POSTGRESQL.items():
            with connection.begin_nested() as undo:
                for statement in statements:
                    connection.exec_driver_sql(statement)
                assert triggers.changed(connection), name
                undo.rollback()
        assert triggers.changed(connection) == []
    assert postgres_site.open().verify().notes == ()


def test_a_foreign_total_does_not_close_a_cohort(site: Site) -> None:
    """A row put among the running totals: releases go on from the chain's own sum, and `verify` names the row."""
    ledger = site.open()
    ledger.reserve(make_plan("a"))
    values = "'injuries', '2023', 'asymptotic-local', 3, 'replace-one', 'record', '{}', '0'"
    site.sql("INSERT INTO spend VALUES ('nobody', 'x', 'formal', 2, 'add-remove', 'record', '1', '0')", owner=True)
    assert {line.account.population for line in ledger.budget()} == {"*", "injuries"}
    ledger.reserve(make_plan("b", population="others"))
    site.sql(f"INSERT INTO spend VALUES ({values.format('0.000000000001')})", owner=True)
    charge = ledger.reserve(make_plan("c")).charges[0]
    assert (charge.epsilon_before, charge.epsilon_after) == (4, 8)
    assert ledger.verify().first_bad_row == 2
