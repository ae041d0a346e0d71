"""Which records a release is made from, so that the budget is theirs and not a name's.

A record is known by keyed marks alone: 64 bits of a keyed BLAKE2b of its content and, where its source names records,
of name and content together. The ledger keeps the marks of every release, sorted; the key stays in the workspace
(`private/registry.key`, or the file that AUTOCODER_REGISTRY_KEY names). Whoever has one of the two can try no guess.

Two releases share records when

* both have names and share a named record, or more than one content in a hundred of the smaller one; or
* one of them has no names, and they share a content.

Releases whose claims protect units (a person, an establishment) share them where a unit's own mark, of its name alone,
is in both.

So names let two persons' equal narratives stand apart, and new names do not make new records. Not found: records whose
text was edited, or composed of other columns; units that are spelt otherwise. False alarm: two sets of n and m
different records share a mark with probability below n m / 2^64, 2e-9 for 200,000 each.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from storage.durable import sync
from storage.errors import StorageError

VARIABLE = "AUTOCODER_REGISTRY_KEY"
_MAGIC = b"autocoder records 1\n"
_MAGIC_UNITS = b"autocoder records 2\n"
_KEY_ID = 16
_SAMPLED = 64


@dataclass(frozen=True)
class RecordSet:
    """Marks of a release's records, sorted and without repetitions: uint64 [contents], uint64 [named records]."""

    key_id: bytes
    """16 bytes that follow from the key: sets of two keys cannot be compared."""
    contents: NDArray[np.uint64]
    named: NDArray[np.uint64]
    units: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    """Of the persons or establishments that the claim protects; none where that is a record."""

    @staticmethod
    def of(records: Iterable[tuple[str | None, bytes]], *, key: bytes, units: Iterable[str] = ()) -> RecordSet:
        """Mark records, each a name (None where the source has none) and its normalised content.

        Args:
            key: 32 bytes.
            units: names of the units that they belong to, where units are what is protected.
        """
        contents: list[bytes] = []
        named: list[bytes] = []
        for name, content in records:
            contents.append(_mark(content, key, b"content"))
            if name is not None:
                named.append(_mark(hashlib.sha256(name.strip().encode()).digest() + content, key, b"record"))
        of_units = [_mark(unit.encode(), key, b"unit") for unit in set(units)]
        return RecordSet(_mark(b"", key, b"key", _KEY_ID), _sorted(contents), _sorted(named), _sorted(of_units))

    @staticmethod
    def decode(content: bytes) -> RecordSet:
        """Read what `encode` wrote.

        Raises:
            StorageError: it is damaged.
        """
        start = len(_MAGIC) + _KEY_ID
        marks = np.frombuffer(content[start:], dtype="<u8") if (len(content) - start) % 8 == 0 else np.empty(0)
        counts = {_MAGIC: 1, _MAGIC_UNITS: 2}.get(content[: len(_MAGIC)], 0)
        if not counts or len(marks) < counts or sum(map(int, marks[:counts])) > len(marks) - counts:
            raise StorageError(
                "the ledger's registry holds a set of records that is none: run `autocoder ledger verify`"
            )
        key_id, lengths = content[len(_MAGIC) : start], np.cumsum(marks[:counts].astype(np.int64))
        return RecordSet(key_id, *np.split(marks[counts:].astype(np.uint64), lengths))

    def encode(self) -> bytes:
        """As the ledger keeps them: 8 bytes a mark. Without units it is the form of before there were any."""
        parts = (self.contents, self.named, self.units) if len(self.units) else (self.contents, self.named)
        lengths = np.array([len(part) for part in parts[:-1]], dtype=np.uint64)
        marks = np.concatenate([lengths, *parts]).astype("<u8").tobytes()
        return (_MAGIC_UNITS if len(self.units) else _MAGIC) + self.key_id + marks

    @property
    def digest(self) -> str:
        """SHA-256 of the encoded set, which the release's row holds."""
        return hashlib.sha256(self.encode()).hexdigest()

    @property
    def sample(self) -> dict[str, Any]:
        """The smallest marks of contents, as plain JSON: small enough for any row.

        Two sets of which a share f is common have none in common here with probability (1 - f)^64: 4 % at a twentieth.
        """
        return {"key": self.key_id.hex(), "marks": [f"{mark:016x}" for mark in self.contents[:_SAMPLED].tolist()]}

    def overlaps(self, other: RecordSet) -> bool:
        """Whether the two share records."""
        shared = _shared(self.contents, other.contents)
        if not (len(self.named) and len(other.named)):
            return shared > 0
        return _shared(self.named, other.named) > 0 or 100 * shared > min(len(self.contents), len(other.contents))

    def shares_units(self, other: RecordSet) -> bool:
        """Whether a unit has records in both."""
        return _shared(self.units, other.units) > 0


def same_records(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None, *, share: float = 0.0) -> bool:
    """Whether two samples have more than this share of their marks in common.

    Those of two keys, which nobody can compare, are taken to. Without one of them nothing is known.
    """
    if not one or not other:
        return False
    common = len(set(one["marks"]) & set(other["marks"]))
    return one["key"] != other["key"] or common > share * min(len(one["marks"]), len(other["marks"]))


SAMPLE = "sample"
"""Name, among a row's details, of the sample of its records."""


def has_registry_key(private: Path) -> bool:
    """Whether the machine or the workspace has one already."""
    return VARIABLE in os.environ or (private / "registry.key").exists()


def registry_key(private: Path) -> bytes:
    """The key of the machine (AUTOCODER_REGISTRY_KEY), or of the workspace, which is made at the first call.

    Raises:
        StorageError: the file is missing, or no key of 32 bytes.
    """
    named = os.environ.get(VARIABLE)
    file = Path(named).expanduser() if named else private / "registry.key"
    if not named and not file.exists():
        _make_key(file)
    try:
        key = file.read_bytes()
    except OSError as error:
        raise StorageError(f"{VARIABLE}: {file}: {error.strerror}") from error
    if len(key) != 32:
        raise StorageError(f"{file}: no key of 32 bytes; restore it, since the ledger's records are marked with it")
    return key


def _make_key(file: Path) -> None:
    """By a link, which fails where another process was first: at one moment, too, a workspace gets one key."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as made:
            made.write(os.urandom(32))
            made.flush()
            os.fsync(made.fileno())
        with suppress(FileExistsError):
            os.link(fresh, file)
    finally:
        fresh.unlink(missing_ok=True)
    sync(file.parent)


def _mark(content: bytes, key: bytes, purpose: bytes, size: int = 8) -> bytes:
    return hashlib.blake2b(content, digest_size=size, key=key, person=purpose).digest()


def _sorted(marks: list[bytes]) -> NDArray[np.uint64]:
    return np.unique(np.frombuffer(b"".join(marks), dtype="<u8").astype(np.uint64))


def _shared(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> int:
    small, large = sorted((one, other), key=len)
    if not len(small):
        return 0
    return int((large[np.searchsorted(large, small).clip(max=len(large) - 1)] == small).sum())
