"""Marks the records of a release, so that budgets belong to records and not to names.

Records are represented only by keyed marks: 64 bits of a keyed BLAKE2b of each of their contents
(an id, a text cell). The ledger stores the marks of every release (`registry.py`), and the key
remains in the workspace (`private/registry.key`, or the file in AUTOCODER_REGISTRY_KEY). With only
one of the two, guesses cannot be tested.

Two releases share records if any content is in both. Releases with claims about units (a person, an
establishment) share units if the mark of a unit's name is in both. Not detected: records with
edited text, and units with a different spelling. False alarms: two sets of n and m different
contents share a mark with probability below n m / 2^64, or 2e-9 for 200,000 each.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage.durable import read_regular, sync
from storage.errors import DamagedData
from storage.ledger.models import Sample

VARIABLE = "AUTOCODER_REGISTRY_KEY"
_MAGIC = b"autocoder records 1\n"
_KEY_ID = 16
_SAMPLED = 64


@dataclass(frozen=True)
class RecordSet:
    """Marks of a release's records, sorted and without duplicates."""

    key_id: bytes
    """16 bytes derived from the key. Sets with different keys cannot be compared."""
    contents: NDArray[np.uint64]
    units: NDArray[np.uint64]
    """Marks of the persons or establishments that the claim protects; empty if it protects
    records.
    """

    @staticmethod
    def of(contents: Iterable[bytes], *, key: bytes, units: Iterable[str] = ()) -> RecordSet:
        """Marks normalised contents of records, and their units if units are protected."""
        of_contents = [_mark(content, key, b"content") for content in contents]
        of_units = [_mark(unit.encode(), key, b"unit") for unit in set(units)]
        return RecordSet(_mark(b"", key, b"key", _KEY_ID), _sorted(of_contents), _sorted(of_units))

    @staticmethod
    def decode(content: bytes) -> RecordSet:
        start = len(_MAGIC) + _KEY_ID
        marks = (
            np.frombuffer(content[start:], dtype="<u8")
            if (len(content) - start) % 8 == 0
            else np.empty(0)
        )
        if content[: len(_MAGIC)] != _MAGIC or not len(marks) or int(marks[0]) > len(marks) - 1:
            raise DamagedData(
                "a set of records is damaged. Restore ledger and workspace, or plan again.",
                kind="damaged-record-set",
            )
        contents, units = np.split(marks[1:].astype(np.uint64), [int(marks[0])])
        return RecordSet(content[len(_MAGIC) : start], contents, units)

    def encode(self) -> bytes:
        length = np.array([len(self.contents)], dtype=np.uint64)
        return (
            _MAGIC
            + self.key_id
            + np.concatenate([length, self.contents, self.units]).astype("<u8").tobytes()
        )

    @property
    def digest(self) -> str:
        """SHA-256 of the encoded set, as stored in the release's row."""
        return hashlib.sha256(self.encode()).hexdigest()

    @property
    def sample(self) -> Sample:
        """The smallest marks of contents, few enough for any row.

        If two sets share a fraction f of their contents, their samples have none in common with
        probability (1 - f)^64: 4 % for a twentieth.
        """
        marks = (f"{mark:016x}" for mark in self.contents[:_SAMPLED].tolist())
        return Sample(key=self.key_id.hex(), marks=tuple(marks))

    def shared(self, other: RecordSet) -> Shared:
        """The number of marks in both sets."""
        return Shared(_common(self.contents, other.contents), _common(self.units, other.units))


class Shared(NamedTuple):
    """The number of marks of each kind that are in both of two sets."""

    contents: int
    units: int

    @property
    def records(self) -> bool:
        # guard: test_what_counts_as_the_same_records
        return self.contents > 0


def same_records(mine: Sample | None, other: Sample | None, *, share: float = 0.0) -> bool:
    """Whether the samples show that more than this share of either set is in the other.

    Only marks up to the smaller of the samples' ends are compared, because both samples are
    complete up to there. If a set grows, its sample contains fewer of the earlier contents, but
    these still count as fully contained. Samples with different keys cannot be compared and are
    assumed to be the same. If a sample is missing, the answer is False.
    """
    if mine is None or other is None:
        return False
    ends = [max(of.marks) for of in (mine, other) if len(of.marks) >= _SAMPLED]
    # guard: test_records_that_are_the_same_under_another_fingerprint
    first, second = (
        {mark for mark in of.marks if not ends or mark <= min(ends)} for of in (mine, other)
    )
    return mine.key != other.key or len(first & second) > share * min(len(first), len(second))


def has_registry_key(private: Path) -> bool:
    """Whether the machine or the workspace already has a registry key."""
    return VARIABLE in os.environ or (private / "registry.key").exists()


def registry_key(private: Path) -> bytes:
    """The key of the machine (AUTOCODER_REGISTRY_KEY), or of the workspace, which the first call
    creates.
    """
    variable = os.environ.get(VARIABLE)
    file = Path(variable).expanduser() if variable else private / "registry.key"
    if not variable and not file.exists():
        _make_key(file)
    key = read_regular(file, 1 << 10, option=f"{VARIABLE}:")
    if len(key) != 32:
        raise DamagedData(
            f"{file}: not a key of 32 bytes. Restore it: the ledger's records are marked with it",
            kind="not-a-registry-key",
        )
    return key


def _make_key(file: Path) -> None:
    """Creates the key as a hard link, which fails if another process was first, so that a workspace
    never gets two keys.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    try:
        with os.fdopen(
            os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb"
        ) as key_file:
            key_file.write(os.urandom(32))
            key_file.flush()
            os.fsync(key_file.fileno())
        with suppress(FileExistsError):
            # guard: test_two_keys_made_at_one_moment
            os.link(fresh, file)
    finally:
        fresh.unlink(missing_ok=True)
    sync(file.parent)


def _mark(content: bytes, key: bytes, purpose: bytes, size: int = 8) -> bytes:
    return hashlib.blake2b(content, digest_size=size, key=key, person=purpose).digest()


def _sorted(marks: list[bytes]) -> NDArray[np.uint64]:
    return np.unique(np.frombuffer(b"".join(marks), dtype="<u8").astype(np.uint64))


def _common(marks: NDArray[np.uint64], among: NDArray[np.uint64]) -> int:
    if not len(marks) or not len(among):
        return 0
    return int((among[np.searchsorted(among, marks).clip(max=len(among) - 1)] == marks).sum())
