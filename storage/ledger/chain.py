"""The hash chain: how a row becomes canonical JSON (RFC 8785), is linked to the one before, and
read back.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, NotRequired, TypedDict

import rfc8785
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from storage.errors import DamagedData, OutOfRange
from storage.ledger.models import GENESIS, SCHEMA_VERSION
from storage.ledger.schema import ledger_row

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

_T = ledger_row.c


class StoredRow(NamedTuple):
    """A row as it was written: the hash is that of the body."""

    sequence: int
    hash: str
    body: str


class Damage(NamedTuple):
    """A row that is not stored as it was written, whatever happened to it."""

    sequence: int
    problem: str


_JSON = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def canonical(content: Mapping[str, Any]) -> str:
    """Return the canonical JSON text of plain data; refuse NaN, infinities and integers beyond
    2^53.
    """
    try:
        text = _JSON.encode(content)
    except (TypeError, ValueError):
        text = ""
    if text and _is_plain(text):
        return text
    try:
        return rfc8785.dumps(content).decode()
    except rfc8785.CanonicalizationError as error:
        raise OutOfRange(f"a row cannot hold this value: {error}", kind="not-canonical") from error


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
    """Return sequence and hash of the newest row; (0, 64 zeros) of an empty ledger.

    Raises:
        StorageError: the row is damaged.
    """
    for row in _read(connection, _select(connection).order_by(_T.sequence.desc()).limit(1)):
        return row.sequence, _require(row).hash
    return 0, GENESIS


def hash_of(connection: Connection, sequence: int) -> str | None:
    """Return the hash of a row, None where there is none. That of the first row tells a ledger from
    any other.

    Raises:
        StorageError: the row is damaged.
    """
    return next(iter(hashes(connection, sequence, sequence)), None)


def hashes(connection: Connection, first: int, last: int) -> list[str]:
    """Return the hashes of the rows from `first` to `last`, both included."""
    query = _select(connection).where(_T.sequence.between(first, last)).order_by(_T.sequence)
    return [_require(row).hash for row in _read(connection, query)]


class PlainRow(TypedDict):
    """A row as plain data, without its hash: what its body has and what its signature is over."""

    sequence: int
    previous_hash: str
    recorded_at: str
    schema_version: int
    entry: dict[str, Any]
    signer: NotRequired[str]
    """The public key: Base64, DER."""
    signature: NotRequired[str]


def append(
    connection: Connection, entry: dict[str, Any], *, key: EllipticCurvePrivateKey | None = None
) -> StoredRow:
    """Adds an entry, as plain data, at the end of the chain; its place, its time and, with a key,
    the signature are set here.
    """
    from storage.ledger import keys

    sequence, previous = last(connection)
    plain: PlainRow = {
        "sequence": sequence + 1,
        "previous_hash": previous,
        "recorded_at": now(),
        "schema_version": SCHEMA_VERSION,
        "entry": entry,
    }
    if key is not None:
        plain["signer"] = keys.encoded_key(key.public_key())
        plain["signature"] = keys.sign_bytes(signed_bytes(plain), key)
    return put(connection, canonical(plain))


def signed_bytes(plain: PlainRow) -> bytes:
    """Returns what a row's signature is over, by the row as plain data without its hash."""
    return canonical({name: value for name, value in plain.items() if name != "signature"}).encode()


def signed_bytes_of(plain: PlainRow, body: str) -> bytes:
    """Returns the same of a row whose canonical JSON is `body`: that without its signature, which
    comes last but for the signer.
    """
    signer = f',"signer":{_JSON.encode(plain.get("signer"))}}}'
    signature = f',"signature":{_JSON.encode(plain.get("signature"))}'
    if not body.endswith(signature + signer):
        return signed_bytes(plain)
    return (body[: -len(signature + signer)] + signer).encode()


def put(connection: Connection, body: str) -> StoredRow:
    """Adds a row that is written already."""
    row = StoredRow(json.loads(body)["sequence"], digest(body), body)
    connection.execute(ledger_row.insert(), row._asdict())
    return row


def stored_rows(connection: Connection, after: int = 0) -> Iterator[StoredRow | Damage]:
    """Yields the rows that are stored behind one, in the order of the chain."""
    yield from _read(
        connection, _select(connection).where(_T.sequence > after).order_by(_T.sequence)
    )


def whole_rows(connection: Connection, after: int = 0) -> Iterator[StoredRow]:
    """Yields the same rows.

    Raises:
        StorageError: one of them is damaged.
    """
    return map(_require, stored_rows(connection, after))


# -- the one way in which a row is read from the database
# ------------------------------------------------------------------------------------------------


def _select(connection: Connection) -> Any:
    """Selects the bytes of a row as they are stored; NULL where a column of SQLite has no text."""
    return sa.select(_T.sequence, *(_stored_bytes(connection, of) for of in (_T.hash, _T.body)))


def _stored_bytes(connection: Connection, column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    if connection.dialect.name == "postgresql":
        return sa.func.convert_to(column, "UTF8", type_=sa.LargeBinary)
    return sa.case((sa.func.typeof(column) == "text", sa.cast(column, sa.LargeBinary)))


def _read(connection: Connection, query: sa.Select[Any]) -> Iterator[StoredRow | Damage]:
    found: Any = connection.execute(query, execution_options={"yield_per": 1000})
    with found as rows:
        for sequence, stored_hash, stored_body in rows:
            yield _stored(sequence, stored_hash, stored_body)


def _stored(
    sequence: int, stored_hash: bytes | None, stored_body: bytes | None
) -> StoredRow | Damage:
    """Returns a row only if the digest of the bytes that were read is the one
    stored beside them.
    """
    if stored_body is None or stored_hash is None:
        return Damage(sequence, "was edited: it is not stored as text")
    row_hash = hashlib.sha256(stored_body).hexdigest()
    # guard: test_a_release_whose_row_cannot_be_read
    if row_hash.encode() != stored_hash:
        return Damage(sequence, "was edited: its content doesn't have its hash")
    if b"\n" in stored_body:  # a journal has a line for each row
        return Damage(sequence, "was edited: it is not one line")
    try:
        return StoredRow(sequence, row_hash, stored_body.decode())
    except UnicodeDecodeError:
        return Damage(sequence, "was edited: it is not stored as UTF-8")


def _require(row: StoredRow | Damage) -> StoredRow:
    if isinstance(row, Damage):
        raise DamagedData(
            f"ledger: row {row.sequence} {row.problem}. Nothing is released or recorded. Run "
            "`autocoder ledger verify`",
            kind="broken-row",
            row=row.sequence,
        )
    return row
