"""Names the ledger's tables and columns for queries; `sql/` creates them, with their indexes and constraints.

Every fact of a row is in `body`; the other columns repeat parts of it for indexes. `record_set` keeps the keyed marks
of each release's records, beside the row of its reservation, which has their digest.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, String, Table, Text

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
