"""What tells a record from all others, and the numbers that follow from that alone.

A record with an id is known by it. One without is known by its content: every cell that ingest reads of it, byte for
byte, and, of several with the same content, a number from 0 on. Such records cannot be told apart, so that taking one
away takes the last number away, and leaves every other record what it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Digests = NDArray[np.uint64]
"""128 bits a record, [n, 2]: of a billion, two that differ meet with a probability below 1e-20."""
Purpose = Literal["split", "unit-split", "unit-cap"]


def digests(columns: Sequence[pa.Array]) -> Digests:
    """Digests of the cells of each row, in the order of the columns; a blank cell is not a missing column."""
    found = bytearray()
    for cells in zip(*(column.to_pylist() for column in columns), strict=True):
        digest = hashlib.blake2b(digest_size=16)
        for cell in cells:
            written = cell.encode()
            digest.update(len(written).to_bytes(8, "little") + written)
        found += digest.digest()
    return np.frombuffer(bytes(found), dtype="<u8").reshape(-1, 2)


def numbers(found: Digests) -> NDArray[np.int64]:
    """Of records with the same digest, how many came before each: 0 where there is one alone."""
    order = np.lexsort((found[:, 1], found[:, 0]))
    ordered = found[order]
    starts = np.r_[True, (ordered[1:] != ordered[:-1]).any(axis=1)]
    place = np.arange(len(order))
    before = np.empty(len(order), dtype=np.int64)
    before[order] = place - np.maximum.accumulate(np.where(starts, place, 0))
    return before


def draws(found: Digests, number: NDArray[np.int64] | None = None, *, seed: int, purpose: Purpose) -> Digests:
    """A uniform 64-bit number a record, uint64 [n]: BLAKE2b of its digest and number, keyed by the seed.

    Args:
        found: digests of the records, or of their units.
        number: of each among its like; None for those that are meant to be drawn together.
        seed: the ingest's. The key must not follow from the records, else it would tie each to all others.
    """
    key, person = seed.to_bytes(8, "little"), purpose.encode()
    numbered = found if number is None else np.column_stack([found, number.astype(np.uint64)])
    rows = np.ascontiguousarray(numbered.astype("<u8")).view(f"V{8 * numbered.shape[1]}")[:, 0].tolist()
    drawn = b"".join(hashlib.blake2b(row, key=key, person=person, digest_size=8).digest() for row in rows)
    return np.frombuffer(drawn, dtype="<u8")
