"""The hash chain: how a row becomes canonical JSON (RFC 8785), is linked to the one before, and
read back.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import rfc8785
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from storage.errors import InputError
from storage.ledger.models import GENESIS, NOTES, Row
from storage.ledger.schema import COLUMNS, ledger_row

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

_T = ledger_row.c


class Entry(NamedTuple):
    """A row as the database stores it."""

    sequence: int
    hash: str
    body: str


def canonical(content: dict[str, Any]) -> str:
    """Return the canonical JSON text of plain data; refuse NaN, infinities and integers beyond
    2^53.
    """
    try:
        text = json.dumps(
            content, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False
        )
    except (TypeError, ValueError):
        text = ""
    if text and _is_plain(text):
        return text
    try:
        return rfc8785.dumps(content).decode()
    except rfc8785.CanonicalizationError as error:
        raise InputError(f"a row cannot hold this value: {error}") from error


_NUMBERS = [
    re.compile(text)
    for text in (r"e[-+][0-9]", r"\.0[],}]", r":-?[0-9]{16}", r",-?[0-9]{16}", r"\[-?[0-9]{16}")
]


def _is_plain(text: str) -> bool:
    """Checks that the json module wrote what RFC 8785 says: it does, twenty times faster, except
    for numbers with an exponent, whole floats, long integers, and the order of keys beyond the
    surrogates.
    """
    return (text.isascii() or max(text) < "\ud800") and not any(
        number.search(text) for number in _NUMBERS
    )


def digest(body: str) -> str:
    """Return the SHA-256 of a row's canonical JSON, in hex."""
    return hashlib.sha256(body.encode()).hexdigest()


def now() -> str:
    """Return this moment, UTC, ISO 8601 with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def last(connection: Connection) -> tuple[int, str]:
    """Return sequence and hash of the newest row; (0, 64 zeros) of an empty ledger."""
    row = connection.execute(
        sa.select(_T.sequence, _T.hash).order_by(_T.sequence.desc()).limit(1)
    ).one_or_none()
    return (0, GENESIS) if row is None else (row.sequence, row.hash)


def hash_of(connection: Connection, sequence: int) -> str | None:
    """Return the hash of a row, None where there is none. That of the first row tells a ledger from
    any other.
    """
    return connection.execute(sa.select(_T.hash).where(_T.sequence == sequence)).scalar()


def hashes(connection: Connection, first: int, last: int) -> list[str]:
    query = sa.select(_T.hash).where(_T.sequence.between(first, last)).order_by(_T.sequence)
    return list(connection.scalars(query))


def append(
    connection: Connection, content: dict[str, Any], *, key: EllipticCurvePrivateKey | None = None
) -> Entry:
    """Adds one row at the end of the chain; sequence, hashes, time and, with a key, the signature
    are set here.
    """
    from storage.ledger import heads

    sequence, previous = last(connection)
    fresh = {
        "sequence": sequence + 1,
        "previous_hash": previous,
        "recorded_at": now(),
        "signature": None,
    }
    if key is not None:
        fresh["signer"] = heads.encoded_key(key.public_key())
    plain = Row.model_validate({**content, **fresh}).as_json()
    del plain["hash"]
    if key is not None:
        plain["signature"] = heads.sign_bytes(signed_bytes(plain), key)
    return put(connection, canonical(plain))


def signed_bytes(plain: dict[str, Any]) -> bytes:
    """Returns what a row's signature is over, by the row as plain data without its hash."""
    return canonical({name: value for name, value in plain.items() if name != "signature"}).encode()


def put(connection: Connection, body: str) -> Entry:
    """Adds a row that is written already."""
    plain, row_hash = json.loads(body), digest(body)
    if connection.dialect.name == "postgresql":
        function = "ledger_note" if plain["kind"] in NOTES else "ledger_append"
        connection.execute(sa.text(f"SELECT {function}(:content)"), {"content": body})
    else:
        values = {name: plain[name] for name in COLUMNS}
        connection.execute(ledger_row.insert(), {**values, "hash": row_hash, "body": body})
    return Entry(plain["sequence"], row_hash, body)


def entries(connection: Connection, after: int = 0) -> Iterator[Entry]:
    """Yields the rows as they are stored, in the order of the chain."""
    select = (
        sa.select(_T.sequence, _T.hash, _T.body).where(_T.sequence > after).order_by(_T.sequence)
    )
    with connection.execute(select, execution_options={"yield_per": 1000}) as rows:
        for sequence, row_hash, body in rows:
            yield Entry(sequence, row_hash, body)
