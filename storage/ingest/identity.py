"""Identifies records, and draws the numbers that follow only from an identity.

A record's id identifies it. Without one its content does: every cell that ingest reads of it, byte for byte, and, of
several with the same content, a number from 0 on. Such records are interchangeable: removing one removes the last
number and leaves every other record unchanged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Digests = NDArray[np.uint64]
"""128 bits per record, [n, 2]: two of a billion different ones collide with a probability below 1e-20."""
Purpose = Literal["split", "unit-split", "unit-cap"]


def digests(columns: Sequence[pa.Array]) -> Digests:
    """Returns a digest of each row's cells, in the order of the columns; a blank cell differs from a missing column."""
    rows = bytearray()
    for cells in zip(*(column.to_pylist() for column in columns), strict=True):
        digest = hashlib.blake2b(digest_size=16)
        for cell in cells:
            written = cell.encode()
            digest.update(len(written).to_bytes(8, "little") + written)
        rows += digest.digest()
    return np.frombuffer(bytes(rows), dtype="<u8").reshape(-1, 2)


def numbers(identities: Digests) -> NDArray[np.int64]:
    """Counts, for each record, the earlier ones with the same digest: 0 where there is one alone."""
    order = np.lexsort((identities[:, 1], identities[:, 0]))
    ordered = identities[order]
    starts = np.r_[True, (ordered[1:] != ordered[:-1]).any(axis=1)]
    place = np.arange(len(order))
    before = np.empty(len(order), dtype=np.int64)
    before[order] = place - np.maximum.accumulate(np.where(starts, place, 0))
    return before


def draws(identities: Digests, number: NDArray[np.int64] | None = None, *, seed: int, purpose: Purpose) -> Digests:
    """Draws a uniform 64-bit number per record, uint64 [n]: BLAKE2b of its digest and number, keyed by the seed.

    Args:
        identities: digests of the records, or of their units.
        number: each record's number among equal ones; None for those that are drawn together.
        seed: seed of the ingest. The key must not follow from the records, or it would tie each to all others.
    """
    key, person = seed.to_bytes(8, "little"), purpose.encode()
    numbered = identities if number is None else np.column_stack([identities, number.astype(np.uint64)])
    rows = np.ascontiguousarray(numbered.astype("<u8")).view(f"V{8 * numbered.shape[1]}")[:, 0].tolist()
    drawn = b"".join(hashlib.blake2b(row, key=key, person=person, digest_size=8).digest() for row in rows)
    return np.frombuffer(drawn, dtype="<u8")
