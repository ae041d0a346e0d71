"""The hash chain: how a row is serialised as canonical JSON (RFC 8785), linked to the previous one,
and read back.
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

    from storage.json_values import Json

_T = ledger_row.c


class StoredRow(NamedTuple):
    """A row as it was written. The hash is that of the body."""

    sequence: int
    hash: str
    body: str


class Damage(NamedTuple):
    """A row that is not stored as it was written, for any reason."""

    sequence: int
    problem: str


_JSON = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def canonical(content: Mapping[str, Any]) -> str:
    """The canonical JSON text of plain data. Refuses NaN, infinities and integers beyond 2^53."""
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
    """Whether the output of the json module conforms to RFC 8785. It does, and is twenty times
    faster, except for numbers with an exponent, whole floats, long integers, and the order of
    keys beyond the surrogates.
    """
    return (text.isascii() or max(text) < "\ud800") and not any(
        number.search(text) for number in _NUMBERS
    )


def digest(body: str) -> str:
    """SHA-256 of a row's canonical JSON, in hexadecimal."""
    return hashlib.sha256(body.encode()).hexdigest()


def now() -> str:
    """The current time in UTC, ISO 8601 with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def last(connection: Connection) -> tuple[int, str]:
    """Sequence and hash of the newest row; (0, 64 zeros) for an empty ledger.

    Raises:
        StorageError: the row is damaged.
    """
    for row in _read(connection, _select(connection).order_by(_T.sequence.desc()).limit(1)):
        return row.sequence, _require(row).hash
    return 0, GENESIS


def hash_of(connection: Connection, sequence: int) -> str | None:
    """The hash of a row; None if there is no such row. The hash of the first row identifies a
    ledger.

    Raises:
        StorageError: the row is damaged.
    """
    return next(iter(hashes(connection, sequence, sequence)), None)


def hashes(connection: Connection, first: int, last: int) -> list[str]:
    """The hashes of the rows from `first` to `last`, both included."""
    query = _select(connection).where(_T.sequence.between(first, last)).order_by(_T.sequence)
    return [_require(row).hash for row in _read(connection, query)]


class PlainRow(TypedDict):
    """A row as plain data, without its hash: the content of its body, which is signed."""

    sequence: int
    previous_hash: str
    recorded_at: str
    schema_version: int
    entry: Mapping[str, Json]
    signer: NotRequired[str]
    """The public key: Base64, DER."""
    signature: NotRequired[str]


def append(
    connection: Connection, entry: Mapping[str, Json], *, key: EllipticCurvePrivateKey | None = None
) -> StoredRow:
    """Appends an entry, given as plain data, to the chain. Sets its sequence, its time and, with a
    key, its signature.
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
    """The bytes that a row's signature covers, computed from the row as plain data without its
    hash.
    """
    return canonical({name: value for name, value in plain.items() if name != "signature"}).encode()


def signed_bytes_of(plain: PlainRow, body: str) -> bytes:
    """The bytes that a row's signature covers, computed from its canonical JSON `body`: the body
    without the signature, which is followed only by the signer.
    """
    signer = f',"signer":{_JSON.encode(plain.get("signer"))}}}'
    signature = f',"signature":{_JSON.encode(plain.get("signature"))}'
    if not body.endswith(signature + signer):
        return signed_bytes(plain)
    return (body[: -len(signature + signer)] + signer).encode()


def put(connection: Connection, body: str) -> StoredRow:
    """Adds a row that is already serialised."""
    row = StoredRow(json.loads(body)["sequence"], digest(body), body)
    connection.execute(ledger_row.insert(), row._asdict())
    return row


def stored_rows(connection: Connection, after: int = 0) -> Iterator[StoredRow | Damage]:
    """Yields the rows stored after a sequence number, in the order of the chain."""
    yield from _read(
        connection, _select(connection).where(_T.sequence > after).order_by(_T.sequence)
    )


def whole_rows(connection: Connection, after: int = 0) -> Iterator[StoredRow]:
    """Yields the rows stored after a sequence number.

    Raises:
        StorageError: one of them is damaged.
    """
    return map(_require, stored_rows(connection, after))


# -- The only way in which rows are read from the database -----------------------------------------


def _select(connection: Connection) -> Any:
    """Selects the stored bytes of a row; NULL if a SQLite column is not stored as text."""
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
    """Returns a row only if the digest of the bytes that were read equals the digest stored with
    them.
    """
    if stored_body is None or stored_hash is None:
        return Damage(sequence, "was edited: it is not stored as text")
    row_hash = hashlib.sha256(stored_body).hexdigest()
    # guard: test_a_release_whose_row_cannot_be_read
    if row_hash.encode() != stored_hash:
        return Damage(sequence, "was edited: its content doesn't have its hash")
    if b"\n" in stored_body:  # a journal has one line per row
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
