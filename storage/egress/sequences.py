"""The scan for training narratives: runs of letters that only private texts have, known by keyed fingerprints alone.

Texts are compared as their letters and digits alone, in UTF-8: neither spaces nor case, accents or punctuation decide,
and a script without spaces is read like any other (a Chinese character is three bytes). Winnowing (Schleimer, Wilkerson
and Aiken, *Winnowing: local algorithms for document fingerprinting*, SIGMOD 2003) keeps some of the windows of a text,
so that two texts which share a run of `window + spread - 1` bytes share a kept window. Two lengths are kept:

* `RARE`: windows that fewer than five units have. Five is the usual smallest cell of disclosure control.
* `LONG`: windows however many have them: a narrative repeated in six records is still a narrative.

A narrative too short for either is kept whole, if it is rare. What stands in public texts tells nothing and is left
out. Of each window 64 bits of a keyed BLAKE2b are stored: no text, and without the key nobody can try guesses on it.
"""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage.durable import write_atomically
from storage.errors import StorageError


class Winnow(NamedTuple):
    """Windows of so many bytes, of which every so many neighbours keep one."""

    window: int
    spread: int


RARE, LONG = Winnow(24, 5), Winnow(60, 21)
SHORTEST, SHORT = 12, RARE.window + RARE.spread - 2
"""Bytes of letters: narratives of so many, from the first to the last, are kept whole."""
RARE_BELOW = 5
"""Units: a window in so many of them or more identifies none."""

_MAGIC = b"autocoder sequences 2\n"
_NONE = np.empty(0, dtype=np.uint64)
_BASE = 0x9E3779B1


@dataclass(frozen=True)
class SequenceFilter:
    """Fingerprints of private windows, sorted: uint64 [m]."""

    key: bytes
    marks: NDArray[np.uint64]

    @classmethod
    def of(
        cls,
        narratives: Iterable[str],
        *,
        key: bytes,
        units: Iterable[object] | None = None,
        public: Iterable[str] = (),
    ) -> SequenceFilter:
        """Fingerprint the private windows of narratives, without those of public texts.

        Args:
            narratives: the private texts.
            key: 32 bytes.
            units: of each narrative; without units (or with None) equal texts are one unit's.
            public: texts whose windows tell nothing, nor do those of their sequence.

        Memory: some 3 bytes a letter of the narratives, fourfold while sorting.
        """
        texts = [letters(text) for text in narratives]
        of_unit: dict[object, set[bytes]] = defaultdict(set)
        for text, unit in zip(texts, units if units is not None else [None] * len(texts), strict=True):
            of_unit[text if unit is None else (unit,)].add(text)
        rare = [_union([_rare(text, key) for text in group]) for group in of_unit.values()]
        every, counts = np.unique(np.concatenate([*rare, _NONE]), return_counts=True)
        long = [_windows(text, key, LONG) for text in set(texts)]
        private = np.unique(np.concatenate([every[counts < RARE_BELOW], *long]))
        known = letters(" ".join(public))
        short = {text for text in texts if SHORTEST <= len(text) <= SHORT}
        told = {text for text in short if text in known}  # else another that begins like it finds it
        private = private[~np.isin(private, np.concatenate([_every_window(known, key), _marks(told, key)]))]
        short -= told
        short = {text for text in short if np.isin(_marks([text], key), private).all()}
        starts = {text[:SHORTEST] for text in short} | ({b""} if short else set())  # the empty one: there are some
        return cls(key, np.unique(np.concatenate([private, _marks(starts, key, b"start")])))

    def count(self, text: str, *, short: bool = True) -> int:
        """How many windows of a text are those of a narrative.

        Args:
            short: count narratives too that are too short for a window. In a vocabulary they are words, such as the
                job title `photographer`.
        """
        read = letters(text)
        found = sum(int(self._known(_windows(read, self.key, kind)).sum()) for kind in (RARE, LONG))
        if not short or not self._known(_marks([b""], self.key, b"start"))[0]:
            return found
        starts = _marks((read[at : at + SHORTEST] for at in range(len(read) - SHORTEST + 1)), self.key, b"start")
        for at in np.flatnonzero(self._known(starts)):
            sizes = range(SHORTEST, min(SHORT, len(read) - at) + 1)
            found += int(self._known(_marks((read[at : at + size] for size in sizes), self.key)).sum())
        return found

    def _known(self, marks: NDArray[np.uint64]) -> NDArray[np.bool_]:
        if not len(self.marks):
            return np.zeros(len(marks), dtype=bool)
        return self.marks[np.searchsorted(self.marks, marks).clip(max=len(self.marks) - 1)] == marks

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


def letters(text: str) -> bytes:
    """A text as it is compared: letters and digits in compatibility form, case folded, without accents, in UTF-8."""
    return re.sub(r"[\W_]+", "", unicodedata.normalize("NFKD", text).casefold()).encode()


def _union(marks: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    return marks[0] if len(marks) == 1 else np.unique(np.concatenate(marks))


def _rare(text: bytes, key: bytes) -> NDArray[np.uint64]:
    if SHORTEST <= len(text) <= SHORT:
        return _marks([text], key)
    return _windows(text, key, RARE)


def _windows(text: bytes, key: bytes, kind: Winnow) -> NDArray[np.uint64]:
    size = kind.window
    if len(text) < size + kind.spread - 1:
        return _NONE
    order = _order(_table(key)[np.frombuffer(text, dtype=np.uint8)], size)
    lowest = np.lib.stride_tricks.sliding_window_view(order, kind.spread).argmin(axis=1) + np.arange(
        len(order) - kind.spread + 1
    )
    kept = lowest[np.diff(lowest, prepend=-1) != 0].tolist()
    return _marks({text[at : at + size] for at in kept}, key)


def _order(values: NDArray[np.uint32], size: int) -> NDArray[np.uint32]:
    """A polynomial hash of every window of so many values, from those of half the size."""
    if size == 1:
        return values
    half = _order(values, size // 2)
    whole = half[: -(size // 2)] * np.uint32(pow(_BASE, size // 2, 1 << 32)) + half[size // 2 :]
    return whole if size % 2 == 0 else whole[:-1] * np.uint32(_BASE) + values[size - 1 :]


def _every_window(text: bytes, key: bytes) -> NDArray[np.uint64]:
    sizes = (RARE.window, LONG.window)
    return _marks((text[at : at + size] for size in sizes for at in range(len(text) - size + 1)), key)


@cache
def _table(key: bytes) -> NDArray[np.uint32]:
    """What decides which windows are kept, by byte; keyed, so that nobody can write a text around it."""
    return np.frombuffer(hashlib.shake_256(b"order" + key).digest(4 * 256), dtype="<u4").astype(np.uint32)


def _marks(windows: Iterable[bytes], key: bytes, purpose: bytes = b"") -> NDArray[np.uint64]:
    marks = (hashlib.blake2b(window, digest_size=8, key=key, person=purpose).digest() for window in windows)
    return np.frombuffer(b"".join(marks), dtype="<u8").astype(np.uint64)
