"""Finds the distinct texts of a split, so that each is encoded once. Texts are not
kept in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.datasets import load_split

if TYPE_CHECKING:
    import torch
    from datasets import Dataset

_DIGEST = 16
_BLOCK = 4096
"""Number of texts in memory at a time."""


def text_batches(split: Dataset, rows: int) -> Iterator[list[str]]:
    """Yields the texts of a split in order, `rows` at a time."""
    texts = cast("Dataset", split.select_columns("text"))
    for batch in texts.iter(rows):
        yield cast("dict[str, list[str]]", batch)["text"]


@dataclass(frozen=True)
class DistinctTexts:
    """Numbers the distinct texts of a split, the longest first, and texts of equal length in the
    order of the records.

    The texts of a part then have similar lengths, and its batches need little padding.
    """

    split: Dataset
    rows: NDArray[np.int64]
    """Index of the first record with each text, int64 [m]."""
    digests: pa.FixedSizeBinaryArray
    """The digest of each text [m]."""

    @classmethod
    def of(cls, folder: Path, name: str) -> DistinctTexts:
        split = load_split(folder, name)
        digests, lengths = _digests(split)
        encoded = digests.dictionary_encode()
        _, first = np.unique(encoded.indices.to_numpy(), return_index=True)
        order = np.argsort(-lengths[first], kind="stable")
        return cls(split, first[order], encoded.dictionary.take(pa.array(order)))

    def __len__(self) -> int:
        return len(self.rows)

    def texts(self, first: int, end: int) -> list[str]:
        """Reads the texts with numbers from `first` to `end`, exclusive."""
        chosen = self.split.select_columns("text")[self.rows[first:end].tolist()]
        return cast("dict[str, list[str]]", chosen)["text"]

    @cached_property
    def places(self) -> torch.Tensor:
        """The number of each record's text, int64 [n]."""
        return self.places_in(self.split)

    def places_in(self, split: Dataset) -> torch.Tensor:
        """Returns the number of each record's text in another split, int64 [n]. All
        its texts must be among these.
        """
        import torch

        digests, _ = _digests(split)
        places = pc.index_in(  # pyrefly: ignore[missing-attribute]
            digests, value_set=self.digests
        )
        return torch.from_numpy(places.to_numpy(zero_copy_only=False).astype(np.int64))


def _digests(split: Dataset) -> tuple[pa.FixedSizeBinaryArray, NDArray[np.int64]]:
    """Returns the digest of each record's text and its length in characters."""
    digests = bytearray()
    lengths = np.empty(len(split), dtype=np.int64)
    done = 0
    for texts in text_batches(split, _BLOCK):
        for text in texts:
            digests += hashlib.blake2b(text.encode(), digest_size=_DIGEST).digest()
        lengths[done : done + len(texts)] = [len(text) for text in texts]
        done += len(texts)
    buffers = [None, pa.py_buffer(bytes(digests))]
    array = pa.Array.from_buffers(pa.binary(_DIGEST), len(split), buffers)
    return cast("pa.FixedSizeBinaryArray", array), lengths
