"""Would win: a ledger whose triggers have their names and do nothing, and a cohort that can never
be released again.
"""

import pytest
from ledger_sites import Site
from releases import make_plan

DECLARES = """
`verify` detects hollow guards
| triggers and functions that do nothing, never fire, or were added; rules; a writer for its caller
| an owner who puts them back before anyone looks

a row among the running totals closes no cohort
| totals of nobody, and too low
|
"""

APPEND = "CREATE TRIGGER ledger_row_append BEFORE INSERT ON ledger_row"
HOLLOW_SQLITE = {
    # named by the issue
    "a body that does nothing": (
        "DROP TRIGGER ledger_row_no_update",
        "CREATE TRIGGER ledger_row_no_update BEFORE UPDATE ON ledger_row BEGIN SELECT 1; END",
    ),
    # its neighbours
    "a condition never met": (
        "DROP TRIGGER ledger_row_append",
        f"{APPEND} WHEN 0 BEGIN SELECT RAISE(ABORT, 'x'); END",
    ),
    "on another event": (
        "DROP TRIGGER record_set_no_delete",
        "CREATE TRIGGER record_set_no_delete BEFORE INSERT ON record_set"
        " WHEN 0 BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: DELETE refused'); END",
    ),
    "one more": ("CREATE TRIGGER more AFTER INSERT ON record_set BEGIN SELECT 1; END",),
    "gone": ("DROP TRIGGER record_set_append",),
}
RETURNS = "RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$"
HOLLOW_POSTGRESQL = {
    "a body that does nothing": (f"CREATE OR REPLACE FUNCTION ledger_refuse() {RETURNS}",),
    "an append that takes all": (f"CREATE OR REPLACE FUNCTION ledger_row_append() {RETURNS}",),
    "a condition never met": (
        "DROP TRIGGER ledger_row_append ON ledger_row",
        f"{APPEND} FOR EACH ROW WHEN (false) EXECUTE FUNCTION ledger_row_append()",
    ),
    "for replicas alone": ("ALTER TABLE ledger_row ENABLE REPLICA TRIGGER ledger_row_no_change",),
    "one more": (
        (
            "CREATE TRIGGER zzz BEFORE INSERT ON record_set FOR EACH ROW EXECUTE FUNCTION "
            "record_set_append()"
        ),
    ),
    "a rule": ("CREATE RULE quiet AS ON INSERT TO record_set DO INSTEAD NOTHING",),
    "a writer with the caller's path": ("ALTER FUNCTION ledger_append(text) RESET ALL",),
    "a writer for its caller": ("ALTER FUNCTION ledger_append(text) SECURITY INVOKER",),
    "notes of any kind": (
        "CREATE OR REPLACE FUNCTION ledger_note(content text) RETURNS void LANGUAGE plpgsql "
        "SECURITY DEFINER"
        " SET search_path FROM CURRENT AS $$ BEGIN PERFORM ledger_append(content); END $$",
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

    from storage.ledger import schema

    engine = sa.create_engine(postgres_site.owner_url, poolclass=NullPool)
    with engine.connect() as connection:
        assert schema.changed(connection) == []
        for name, statements in HOLLOW_POSTGRESQL.items():
            with connection.begin_nested() as undo:
                for statement in statements:
                    connection.exec_driver_sql(statement)
                assert schema.changed(connection), name
                undo.rollback()
        assert schema.changed(connection) == []
    assert postgres_site.open().verify().notes == ()
