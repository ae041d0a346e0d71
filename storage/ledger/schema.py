"""Names the ledger's tables and columns, and compares the database's triggers and procedures with
`sql/`.

A trigger of the right name that does nothing protects nothing. `sql/DIALECT/` has the tables
(`schema.sql`), what keeps them append-only (`triggers.sql`) and, for PostgreSQL, the procedures by
which the pipeline's role writes (`writer.sql`). Every fact of a row is in `body`; the other columns
repeat parts of it for indexes. `record_set` keeps the keyed marks of each release's records, beside
the row of its reservation, which has their digest.
"""

from __future__ import annotations

import re
from importlib.resources import files

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, String, Table, Text
from sqlalchemy.engine import Connection

REVISION = "0001"
"""Of the tables; a database with another one is refused."""
VERSION_TABLE = "ledger_version"

metadata = MetaData()

# SQLite's INTEGER PRIMARY KEY is its row id; BIGINT would add a second key.
_SEQUENCE = BigInteger().with_variant(Integer, "sqlite")

ledger_row = Table(
    "ledger_row",
    metadata,
    Column("sequence", _SEQUENCE, primary_key=True, autoincrement=False),
    Column("previous_hash", String(64), nullable=False),
    Column("hash", String(64), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("release_id", String(300)),
    Column("body", Text, nullable=False),
)
COLUMNS = tuple(column.name for column in ledger_row.columns if column.name not in ("hash", "body"))
"""Columns that repeat a field of the body under the same name."""

record_set = Table(
    "record_set",
    metadata,
    Column("sequence", _SEQUENCE, primary_key=True, autoincrement=False),
    Column("marks", LargeBinary, nullable=False),
)


def statements(dialect: str, *names: str) -> list[str]:
    """Return the statements of SQL files, which a blank line ends each, without comments before
    them.
    """
    texts = [
        (files("storage.ledger") / "sql" / dialect / f"{name}.sql").read_text("utf-8")
        for name in names
    ]
    parts = [
        re.sub(r"\A(--.*\n?)+", "", part).strip() for text in texts for part in text.split("\n\n")
    ]
    return [part.removesuffix(";") for part in parts if part]


def create(connection: Connection) -> None:
    """Creates tables and triggers; on PostgreSQL also the procedures that write, each with a fixed
    search path.
    """
    server = connection.dialect.name == "postgresql"
    for statement in statements(connection.dialect.name, "schema", "triggers"):
        connection.execute(sa.text(statement.replace(":", "\\:")))
    if server:
        ((schema, path),) = connection.execute(
            sa.text("SELECT quote_ident(current_schema()), current_setting('search_path')")
        )
        set_path = sa.text("SELECT set_config('search_path', :path, true)")
        connection.execute(set_path, {"path": f"{schema}, pg_temp"})
        for statement in statements("postgresql", "writer"):
            connection.execute(sa.text(statement.replace(":", "\\:")))
        connection.execute(set_path, {"path": path})
    connection.execute(sa.text(f"INSERT INTO {VERSION_TABLE} VALUES ('{REVISION}')"))


def changed(connection: Connection) -> list[str]:
    """Return the names of triggers and functions that are gone, differ from the SQL files, or were
    added.
    """
    sqlite = connection.dialect.name == "sqlite"
    expected = _expected_sqlite() if sqlite else _expected_postgresql()
    query = sa.text(_SELECT_SQLITE if sqlite else _SELECT_POSTGRESQL)
    present = {name: _plain(definition) for name, definition in connection.execute(query)}
    # guard: test_a_hollow_trigger_of_sqlite
    return sorted(
        name for name in expected.keys() | present.keys() if expected.get(name) != present.get(name)
    )


def _plain(definition: str) -> str:
    return " ".join(definition.split())


def _expected_sqlite() -> dict[str, str]:
    return {text.split()[2]: _plain(text) for text in statements("sqlite", "triggers")}


def _expected_postgresql() -> dict[str, str]:
    expected: dict[str, str] = {}
    for text in statements("postgresql", "triggers", "writer"):
        function = re.match(r"CREATE FUNCTION (\w+).*?\$\$(.*)\$\$", text, re.DOTALL)
        if function is not None:
            definer = "definer" if "SECURITY DEFINER" in text else "invoker"
            expected[f"function {function[1]}"] = f"{definer} {_plain(function[2])}"
        elif text.startswith("CREATE TRIGGER"):
            expected[f"trigger {text.split()[2]}"] = f"{_plain(text)} O"
    return expected


_SELECT_SQLITE = (
    "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name IN "
    "('ledger_row', 'record_set')"
)
_SELECT_POSTGRESQL = """
SELECT 'trigger ' || tgname, pg_get_triggerdef(oid, true) || ' ' || tgenabled::text FROM pg_trigger
  WHERE NOT tgisinternal AND tgrelid IN ('ledger_row'::regclass, 'record_set'::regclass)
UNION ALL
SELECT 'rule ' || rulename, pg_get_ruledef(oid) FROM pg_rewrite
  WHERE ev_class IN ('ledger_row'::regclass, 'record_set'::regclass)
UNION ALL
SELECT 'row security of ' || relname, 'on' FROM pg_class
  WHERE oid IN ('ledger_row'::regclass, 'record_set'::regclass) AND relrowsecurity
UNION ALL
SELECT 'function ' || proname,
  CASE WHEN prosecdef THEN 'definer ' ELSE 'invoker ' END || prosrc
    || CASE WHEN prosecdef AND coalesce(array_to_string(proconfig, ' '), '') !~ '^search_path=.*, pg_temp$'
         THEN ' (open path)' ELSE '' END
    || CASE WHEN proowner <> (SELECT relowner FROM pg_class WHERE oid = 'ledger_row'::regclass)
         THEN ' (of another role)' ELSE '' END
  FROM pg_proc WHERE pronamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'ledger_row'::regclass)
    AND (proname LIKE 'ledger\\_%' OR proname = 'record_set_append')
"""
