"""Names the ledger's tables and columns for queries; `sql/` creates them, with their indexes and constraints.

Every fact of a row is in `body`; the other columns repeat parts of it for indexes and for SQL.

`spend` carries the running totals of each account, one row a charge, so that a reservation reads one row a
cohort however long the ledger is. It can be rebuilt from the chain, and `verify` compares the two.

`record_set` keeps the keyed marks of each release's records, beside the row of its reservation, which has their digest.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, Numeric, String, Table, Text, text
from sqlalchemy.types import TypeEngine

from storage.ledger.amounts import DELTA_SCALE, EPSILON_SCALE

REVISION = "0001"
"""The newest migration; a database at another one is migrated or refused."""
VERSION_TABLE = "ledger_version"

metadata = MetaData()

# SQLite's INTEGER PRIMARY KEY is its row id; BIGINT would add a second key.
_SEQUENCE = BigInteger().with_variant(Integer, "sqlite")


def exact(scale: int) -> TypeEngine[Any]:
    """Return a column type that keeps decimals exactly: NUMERIC, and fixed-point text where that is a float."""
    return Numeric(scale + 10, scale, asdecimal=True).with_variant(String(40), "sqlite")


ledger_row = Table(
    "ledger_row",
    metadata,
    Column("sequence", _SEQUENCE, primary_key=True, autoincrement=False),
    Column("previous_hash", String(64), nullable=False),
    Column("hash", String(64), nullable=False),
    Column("schema_version", Integer, nullable=False),
    Column("recorded_at", String(40), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("state", String(20), nullable=False),
    Column("release_id", String(300)),
    Column("idempotency_key", String(300)),
    Column("population", String(300)),
    Column("mechanism", String(100)),
    Column("guarantee_kind", String(20), nullable=False),
    Column("epsilon", exact(EPSILON_SCALE)),
    Column("delta", exact(DELTA_SCALE)),
    Column("sensitivity", exact(EPSILON_SCALE)),
    Column("body", Text, nullable=False),
)
COLUMNS = tuple(column.name for column in ledger_row.columns if column.name not in ("hash", "body"))
"""Columns that repeat a field of the body under the same name."""
# In the words of the index on policies. One on all kinds would tempt SQLite's planner to read every release.
POLICY_ROW = text("kind = 'budget-change'")

spend = Table(
    "spend",
    metadata,
    Column("population", String(300), primary_key=True),
    Column("cohort", String(300), primary_key=True),
    Column("guarantee_kind", String(20), primary_key=True),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("neighbouring_relation", String(20), nullable=False),
    Column("privacy_unit", String(300), nullable=False),
    Column("epsilon", exact(EPSILON_SCALE), nullable=False),
    Column("delta", exact(DELTA_SCALE), nullable=False),
)

record_set = Table(
    "record_set",
    metadata,
    Column("sequence", _SEQUENCE, primary_key=True, autoincrement=False),
    Column("marks", LargeBinary, nullable=False),
)
