"""The scan for training narratives: rare word sequences, known by keyed fingerprints only.

Of every narrative, each run of six words that fewer than five narratives share is kept as 64 bits of a keyed BLAKE2b.
The check then stores no text, and without the key nobody can try guesses on it. Five is the usual smallest cell of
disclosure control: what five records share identifies none of them. Runs that stand in public texts (generated
narratives, titles of the code list, the card's own words) tell nothing and are left out.
"""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from storage.durable import write_atomically
from storage.errors import StorageError

WORDS, SHORTEST = 6, 4
"""Words of a sequence; a narrative of fewer words, but not of under four, is one sequence itself."""
RARE_BELOW = 5
"""Narratives: a sequence in so many of them or more identifies none."""

_WORD = re.compile(r"[^\W_]+")
_MAGIC = b"autocoder sequences 1\n"


@dataclass(frozen=True)
class SequenceFilter:
    """Fingerprints of rare sequences, sorted: uint64 [m]."""

    key: bytes
    marks: NDArray[np.uint64]

    @classmethod
    def of(cls, narratives: Iterable[str], *, key: bytes, public: Iterable[str] = ()) -> SequenceFilter:
        """Fingerprint the rare sequences of narratives, without those of public texts.

        Memory: 8 bytes a word of the narratives, some fourfold while sorting.
        """
        seen = [np.unique(_marks(text, key, whole=True)) for text in narratives]
        every, counts = np.unique(np.concatenate([*seen, _NONE]), return_counts=True)
        rare = every[counts < RARE_BELOW]
        known = np.concatenate([*(_marks(text, key, whole=False) for text in public), _NONE])
        return cls(key, rare[~np.isin(rare, known)])

    def count(self, text: str) -> int:
        """How many sequences of a text are those of a narrative."""
        return int(np.isin(_marks(text, self.key, whole=False), self.marks).sum())

    def save(self, path: Path) -> None:
        """Write the fingerprints; the key has its own file."""
        write_atomically(path, _MAGIC + self.marks.astype("<u8").tobytes())

    @classmethod
    def load(cls, path: Path, *, key: bytes) -> SequenceFilter:
        """Read what `save` wrote.

        Raises:
            StorageError: the file is damaged.
        """
        content = path.read_bytes()
        body = content.removeprefix(_MAGIC)
        if len(body) == len(content) or len(body) % 8:
            raise StorageError(f"{path} is no filter of word sequences; remove it, and it is made anew")
        return cls(key, np.frombuffer(body, dtype="<u8").astype(np.uint64))


def load_key(path: Path) -> bytes:
    """The workspace's key, made at the first call: 32 bytes from the system, readable by the owner alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{os.getpid()}.new")
    if not path.exists():
        try:
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(os.urandom(32))
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):  # another process was first: its key is the key
                os.link(aside, path)
        finally:
            aside.unlink(missing_ok=True)
    key = path.read_bytes()
    if len(key) != 32:
        raise StorageError(f"{path} is no key of 32 bytes; remove it and private/egress/, and both are made anew")
    return key


def words(text: str) -> list[str]:
    """Words as they are compared: compatibility form, case folded, digits kept, all else a gap."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


_NONE = np.empty(0, dtype=np.uint64)


def _marks(text: str, key: bytes, *, whole: bool) -> NDArray[np.uint64]:
    found = words(text)
    if whole:
        runs: Iterator[list[str]] = _runs(found, WORDS) if len(found) >= WORDS else _short(found)
    else:
        runs = (run for size in range(SHORTEST, WORDS + 1) for run in _runs(found, size))
    marks = (hashlib.blake2b(" ".join(run).encode(), digest_size=8, key=key).digest() for run in runs)
    return np.frombuffer(b"".join(marks), dtype="<u8").astype(np.uint64)


def _runs(found: list[str], size: int) -> Iterator[list[str]]:
    return (found[at : at + size] for at in range(len(found) - size + 1))


def _short(found: list[str]) -> Iterator[list[str]]:
    if len(found) >= SHORTEST:
        yield found
