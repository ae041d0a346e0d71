"""The hash chain: how a row becomes canonical JSON (RFC 8785), is linked to the one before, and read back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import rfc8785
import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy.engine import Connection

from storage.errors import InputError, StorageError
from storage.ledger.models import GENESIS, Row
from storage.ledger.schema import COLUMNS, ledger_row, spend

_T = ledger_row.c


def canonical(content: dict[str, Any]) -> str:
    """Return the canonical JSON text of plain data; refuse NaN, infinities and integers beyond 2^53."""
    try:
        return rfc8785.dumps(content).decode()
    except rfc8785.CanonicalizationError as error:
        raise InputError(f"a row cannot hold this value: {error}") from error


def digest(body: str) -> str:
    """Return the SHA-256 of a row's canonical JSON, in hex."""
    return hashlib.sha256(body.encode()).hexdigest()


def now() -> str:
    """Return this moment, UTC, ISO 8601 with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def last(connection: Connection) -> tuple[int, str]:
    """Return sequence and hash of the newest row; (0, 64 zeros) of an empty ledger."""
    row = connection.execute(sa.select(_T.sequence, _T.hash).order_by(_T.sequence.desc()).limit(1)).one_or_none()
    return (0, GENESIS) if row is None else (row.sequence, row.hash)


def hash_of(connection: Connection, sequence: int) -> str | None:
    """Return the hash of a row, None where there is none. That of the first row tells a ledger from any other."""
    return connection.execute(sa.select(_T.hash).where(_T.sequence == sequence)).scalar()


def append(connection: Connection, content: dict[str, Any]) -> Row:
    """Add one row at the end of the chain and its charges to the running totals.

    `content` holds the fields of `Row` that are known; sequence, hashes and time are set here.
    """
    sequence, previous = last(connection)
    row = Row.model_validate({**content, "sequence": sequence + 1, "previous_hash": previous, "recorded_at": now()})
    plain = row.as_json()
    del plain["hash"]
    body = canonical(plain)
    put(connection, body)
    return row.model_copy(update={"hash": digest(body)})


def put(connection: Connection, body: str) -> None:
    """Add a row that is written already, with its running totals."""
    if connection.dialect.name == "postgresql":
        connection.execute(_APPEND, {"content": body})  # derives columns and totals by itself, and checks them
        return
    plain = json.loads(body)
    values = {name: plain[name] for name in COLUMNS}
    connection.execute(_INSERT_ROW, {**values, "hash": digest(body), "body": body})
    if plain["charges"]:
        connection.execute(_INSERT_SPEND, spend_rows(plain))


def spend_rows(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the running totals that a row's charges leave behind, as the spend table keeps them."""
    return [
        {
            "population": charge["population"] or content["population"],
            "cohort": charge["cohort"],
            "guarantee_kind": content["guarantee_kind"],
            "sequence": content["sequence"],
            "neighbouring_relation": charge["neighbouring_relation"],
            "privacy_unit": charge["privacy_unit"],
            "epsilon": charge["epsilon_after"],
            "delta": charge["delta_after"],
        }
        for charge in content["charges"]
    ]


_APPEND = sa.text("SELECT ledger_append(:content)")
_INSERT_ROW = ledger_row.insert()
_INSERT_SPEND = spend.insert()


def parse(body: str, row_hash: str) -> Row:
    """Return the row that a body holds."""
    try:
        return Row.model_validate({**json.loads(body), "hash": row_hash})
    except (ValidationError, ValueError, TypeError) as error:
        raise StorageError("The ledger contains a row that cannot be parsed. Run `autocoder ledger verify`.") from error


def select_rows(connection: Connection, *where: sa.ColumnElement[bool] | sa.TextClause) -> Sequence[Row]:
    """Return rows in the order of the chain."""
    statement = sa.select(_T.body, _T.hash).where(*where).order_by(_T.sequence)
    return [parse(body, row_hash) for body, row_hash in connection.execute(statement)]


def newest(connection: Connection, *where: sa.ColumnElement[bool] | sa.TextClause) -> Row | None:
    """Return the newest of the rows that fit, None when none does."""
    statement = sa.select(_T.body, _T.hash).where(*where).order_by(_T.sequence.desc()).limit(1)
    row = connection.execute(statement).one_or_none()
    return None if row is None else parse(row.body, row.hash)
