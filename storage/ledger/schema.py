"""The ledger's tables and columns, which `sql/DIALECT/schema.sql` creates.

`body` contains all facts of a row of the chain, and its SHA-256 is stored with it. `record_set`
contains the keyed marks of each release's records, for the row of its reservation, which contains
their digest. `measurement` is not part of the chain: training, maintenance and metrics add to it,
and it is read defensively (`measurements.py`).
"""

from __future__ import annotations

import re
from importlib.resources import files

import sqlalchemy as sa
from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, String, Table, Text
from sqlalchemy.engine import Connection

REVISION = "0003"
"""Revision of the tables. A database with another revision is refused."""
VERSION_TABLE = "ledger_version"

metadata = MetaData()

# SQLite's INTEGER PRIMARY KEY is its row id. BIGINT would add a second key.
_SEQUENCE = BigInteger().with_variant(Integer, "sqlite")

ledger_row = Table(
    "ledger_row",
    metadata,
    Column("sequence", _SEQUENCE, primary_key=True, autoincrement=False),
    Column("hash", String(64), nullable=False),
    Column("body", Text, nullable=False),
)

record_set = Table(
    "record_set",
    metadata,
    Column("sequence", _SEQUENCE, primary_key=True, autoincrement=False),
    Column("marks", LargeBinary, nullable=False),
)

measurement = Table(
    "measurement",
    metadata,
    Column("number", _SEQUENCE, primary_key=True, autoincrement=True),
    Column("recorded_at", String(40), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("idempotency_key", String(300)),
    Column("facts", String(65_536), nullable=False),
)


def statements(dialect: str) -> list[str]:
    """The statements in a dialect's file, which are separated by blank lines, without preceding
    comments.
    """
    text = (files("storage.ledger") / "sql" / dialect / "schema.sql").read_text("utf-8")
    parts = [re.sub(r"\A(--.*\n?)+", "", part).strip() for part in text.split("\n\n")]
    return [part.removesuffix(";") for part in parts if part]


def create(connection: Connection) -> None:
    """Creates the tables and, on PostgreSQL, the lock of the chain with a fixed search path."""
    texts = statements(connection.dialect.name)
    if connection.dialect.name == "postgresql":
        ((schema, before),) = connection.execute(
            sa.text("SELECT quote_ident(current_schema()), current_setting('search_path')")
        ).all()
        _set_path(connection, f"{schema}, pg_temp")
        _execute(connection, texts)
        _set_path(connection, before)
    else:
        _execute(connection, texts)
    connection.execute(sa.text(f"INSERT INTO {VERSION_TABLE} VALUES ('{REVISION}')"))


def _execute(connection: Connection, texts: list[str]) -> None:
    for text in texts:
        connection.execute(sa.text(text.replace(":", "\\:")))


def _set_path(connection: Connection, path: str) -> None:
    connection.execute(sa.text("SELECT set_config('search_path', :path, true)"), {"path": path})
