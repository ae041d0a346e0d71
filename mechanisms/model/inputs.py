"""The input of a classifier: token sequences of varying length, or features (of an encoder, a
table, or an image).

Both have the same interface (`len`, `lengths`, `batch`), so that training, risks and evaluation are
implemented once.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from mechanisms.model.transfer import to_device

Batch = Mapping[str, Tensor]
"""Keyword arguments of a classifier's `logits`."""


class Inputs(Protocol):
    """Records in the form that a classifier reads."""

    def __len__(self) -> int: ...

    @property
    def lengths(self) -> Tensor | None:
        """Number of tokens in each record, int64 [n]; None if every record costs the same."""

    def batch(self, index: Tensor, device: torch.device) -> Batch:
        """The records at `index` (int64 [b]) as tensors on `device`."""
        ...


class Mapped:
    """Releases the pages of a memory-mapped file again, so that a pass over it does not fill the
    memory.

    The pages are private and never written to, so the next access reads them from the file again.
    """

    _MOST = 64 << 20

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._read = 0

    def note(self, size: int) -> None:
        """Registers that this many bytes are about to be read."""
        self._read += size
        if self._read > self._MOST:
            self.bytes.madvise(mmap.MADV_DONTNEED)
            self._read = size


@dataclass(frozen=True)
class FeatureInputs:
    """Features of records, such as pooled features of a frozen encoder, float32 [n, width]."""

    features: Tensor
    mapped: Mapped | None = field(default=None, compare=False, repr=False)
    """The mapped file of the features, if they are not in memory."""

    def __len__(self) -> int:
        return self.features.shape[0]

    @property
    def lengths(self) -> None:
        return None

    def batch(self, index: Tensor, device: torch.device) -> Batch:
        self._note(len(index))
        return {"features": to_device(self.features[index], device)}

    def gather(self, index: Tensor, longest: int) -> Batch:
        """The records at `index`, on the device of both. Features have no length."""
        return {"features": self.features[index]}

    def blocks(self, size: int) -> Iterator[Tensor]:
        """Yields the features in order, in blocks of `size` records."""
        for block in self.features.split(size):
            self._note(len(block))
            yield block

    def _note(self, rows: int) -> None:
        if self.mapped is not None:
            self.mapped.note(rows * self.features.shape[1] * self.features.element_size())

    def select(self, index: Tensor) -> FeatureInputs:
        """The records at `index` (int64 [b], or bool [n]), in that order."""
        return FeatureInputs(self.features[index])

    def save(self, path: Path) -> None:
        """Writes one safetensors file, which `load` maps into memory."""
        save_features(path, tuple(self.features.shape), (self.features,))


@dataclass(frozen=True)
class TokenInputs:
    """Concatenated token ids of all records (int32 [tokens]) with offsets (int64 [n + 1]) and the
    padding id.

    A model that also reads words has their columns. A model that trains only its last layers reads
    hidden states of the layer below instead of ids.
    """

    ids: Tensor
    offsets: Tensor
    pad_id: int
    words: Tensor | None = None
    """Unscaled word columns of the lexicon, float32 [n, columns]."""
    states: Tensor | None = None
    """Hidden states, float32 [tokens, width]."""

    @classmethod
    def from_lists(cls, sequences: Sequence[Sequence[int]], *, pad_id: int) -> TokenInputs:
        offsets = torch.zeros(len(sequences) + 1, dtype=torch.int64)
        offsets[1:] = torch.tensor([len(s) for s in sequences], dtype=torch.int64).cumsum(0)
        ids = np.fromiter(chain.from_iterable(sequences), dtype=np.int32, count=int(offsets[-1]))
        return cls(ids=torch.from_numpy(ids), offsets=offsets, pad_id=pad_id)

    def __len__(self) -> int:
        return self.offsets.shape[0] - 1

    @property
    def lengths(self) -> Tensor:
        return self.offsets.diff()

    def batch(self, index: Tensor, device: torch.device) -> Batch:
        """`input_ids` or float32 `states` [b, longest, width], `attention_mask` [b, longest], and
        `words` [b, columns] if present.
        """
        longest = int((self.offsets[index + 1] - self.offsets[index]).max())
        batch = self.gather(index, longest)
        return {name: to_device(values, device) for name, values in batch.items()}

    def gather(self, index: Tensor, longest: int) -> Batch:
        """The records at `index` as in `batch`, on the device of both, padded to `longest` tokens.

        The processor reads no value of the device here, so that it can run ahead.
        """
        start, end = self.offsets[index][:, None], self.offsets[index + 1][:, None]
        place = start + torch.arange(longest, device=index.device)
        there = place < end
        place = torch.where(there, place, 0)
        if self.states is None:
            ids = self.ids[place].to(torch.int64)
            batch = {"input_ids": torch.where(there, ids, self.pad_id)}
        else:
            batch = {"states": torch.where(there[:, :, None], self.states[place], 0.0)}
        batch["attention_mask"] = there.to(torch.int64)
        if self.words is not None:
            batch["words"] = self.words[index]
        return batch

    def select(self, index: Tensor) -> TokenInputs:
        """The records at `index`, in that order."""
        index = index.nonzero()[:, 0] if index.dtype == torch.bool else index
        lengths = self.lengths[index]
        offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        place = (self.offsets[index] - offsets[:-1]).repeat_interleave(lengths) + torch.arange(
            int(offsets[-1])
        )
        words = None if self.words is None else self.words[index]
        states = None if self.states is None else self.states[place]
        return TokenInputs(self.ids[place], offsets, self.pad_id, words, states)

    def save(self, path: Path) -> None:
        tensors = {
            "ids": self.ids,
            "offsets": self.offsets,
            "words": self.words,
            "states": self.states,
        }
        present = {
            name: tensor.contiguous() for name, tensor in tensors.items() if tensor is not None
        }
        save_file(present, path, metadata={"pad_id": str(self.pad_id)})


def load(path: Path) -> FeatureInputs | TokenInputs:
    """Opens a file that `save` wrote. Tensors are memory-mapped."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (safe_open is no mapping)
        if "features" in tensors:
            return mapped(path, "features")
        return TokenInputs(**tensors, pad_id=int((file.metadata() or {})["pad_id"]))


def mapped(path: Path, name: str) -> FeatureInputs:
    """Maps one tensor of a safetensors file into memory, float32 [n, width]."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(size))[name]
    rows, width = entry["shape"]
    if not rows * width:
        return FeatureInputs(torch.empty(rows, width))
    pages = Mapped(path)
    values = torch.frombuffer(
        pages.bytes,
        dtype=torch.float32,
        count=rows * width,
        offset=8 + size + entry["data_offsets"][0],
    )
    return FeatureInputs(values.view(rows, width), pages)


def save_features(path: Path, shape: tuple[int, ...], blocks: Iterable[Tensor]) -> None:
    """Writes blocks of features as one safetensors file with this shape, float32 [n, width]."""
    rows, width = shape
    entry = {"dtype": "F32", "shape": [rows, width], "data_offsets": [0, rows * width * 4]}
    head = json.dumps({"features": entry}).encode()
    head += b" " * (-len(head) % 8)
    written = 0
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for block in blocks:
            file.write(block.to(torch.float32).contiguous().numpy().data)
            written += len(block)
    if written != rows:
        raise ValueError(f"{written} rows of {rows} were written")


def joined(parts: Sequence[FeatureInputs | TokenInputs]) -> FeatureInputs | TokenInputs:
    """Concatenates records of one form."""
    features = [part.features for part in parts if isinstance(part, FeatureInputs)]
    if isinstance(parts[0], FeatureInputs):
        return FeatureInputs(torch.cat(features))
    tokens = [part for part in parts if isinstance(part, TokenInputs)]
    if features or len({part.pad_id for part in tokens}) > 1:
        raise ValueError("only parts of one tokenizer are joined")
    return _joined_tokens(tokens)


def _joined_tokens(tokens: Sequence[TokenInputs]) -> TokenInputs:
    lengths = torch.cat([part.lengths for part in tokens])
    return TokenInputs(
        torch.cat([part.ids for part in tokens]),
        torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]),
        tokens[0].pad_id,
        _joined_where_present([part.words for part in tokens]),
        _joined_where_present([part.states for part in tokens]),
    )


def _joined_where_present(tensors: Sequence[Tensor | None]) -> Tensor | None:
    present = [tensor for tensor in tensors if tensor is not None]
    if not present:
        return None
    if len(present) < len(tensors):
        raise ValueError("only parts of one form are joined")
    return torch.cat(present)


def length_sorted_batches(inputs: Inputs, *, batch_size: int) -> Iterator[Tensor]:
    """Index batches for a forward pass over all records, longest first, to minimise padding.

    The first batch has the largest memory use, so that a run out of memory fails immediately.
    """
    n = len(inputs)
    lengths = inputs.lengths
    order = (
        torch.arange(n) if lengths is None else torch.argsort(lengths, descending=True, stable=True)
    )
    if n:  # an empty tensor would split into one empty batch
        yield from order.split(batch_size)


LENGTHS = (*range(8, 64, 8), *range(64, 128, 16), *range(128, 256, 32), *range(256, 512, 64), 512)
"""Padded lengths of a block: records are padded to the smallest that fits."""


@dataclass(frozen=True)
class Block:
    """Records that pass through an encoder together, with a shape that depends only on each
    record's length.

    Unused rows are filled with dummies of one token. The last bits of a matrix product can depend
    on its shape, so without a fixed shape a record's features would depend on the other records.
    """

    index: Tensor
    """Indices of the records, int64 [b], b <= rows."""
    rows: int
    length: int

    def batch(self, tokens: TokenInputs, device: torch.device) -> Batch:
        """`input_ids` and `attention_mask`, int64 [rows, length], with the records first."""
        batch = tokens.batch(self.index, torch.device("cpu"))
        there = batch["attention_mask"]
        mask = torch.zeros(self.rows, self.length, dtype=torch.int64)
        mask[:, 0] = 1
        mask[: len(there), : there.shape[1]] = there
        ids = torch.full((self.rows, self.length), tokens.pad_id, dtype=torch.int64)
        ids[: len(there), : there.shape[1]] = batch["input_ids"]
        read = {"input_ids": ids, "attention_mask": mask}
        return {name: to_device(values, device) for name, values in read.items()}


def blocks(tokens: TokenInputs, *, budget: int) -> Iterator[Block]:
    """Splits records into blocks of about `budget` tokens, longest records first.

    The first block has the largest memory use, so that a run out of memory fails immediately.
    """
    steps = torch.tensor(LENGTHS)
    lengths = tokens.lengths
    place = torch.searchsorted(steps, lengths).clamp(max=len(LENGTHS) - 1)
    padded = torch.where(lengths <= LENGTHS[-1], steps[place], lengths)
    for length in padded.unique().flip(0).tolist():
        rows = max(1, budget // length)
        for index in (padded == length).nonzero()[:, 0].split(rows):
            yield Block(index, rows, length)
