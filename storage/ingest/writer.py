"""Writes the sampled records split by split, and computes their fingerprint."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.datasets import CELLS, split_file
from storage.errors import StorageError
from storage.ingest.cell_digests import SIZE

_GROUP = 8192
"""Records per row group: independent of the reader's blocks, so that the file is, too."""


_JSON = json.JSONEncoder(separators=(",", ":"))


class RecordWriter:
    """Writes one Parquet file per split under a temporary name and renames them when all are whole.

    `fingerprint` is the SHA-256 over one line of JSON per sampled record, in the order of the source:
    [split, record_id, text, code, cohort, unit], ASCII, no blanks, ended by a line feed. It depends
    on the records and their split alone: neither on Parquet nor on the numbering of the codes.
    """

    def __init__(
        self,
        folder: Path,
        splits: tuple[str, ...],
        content: pa.Field,
        *,
        named_ids: bool,
    ) -> None:
        self._schema = pa.schema(
            [
                pa.field("record_id", pa.string() if named_ids else pa.int64(), nullable=False),
                content,
                pa.field("label", pa.int32(), nullable=False),
                pa.field("cohort", pa.string(), nullable=False),
                pa.field("unit", pa.string()),
            ]
        )
        self._paths = {split: split_file(folder, split) for split in splits}
        self._cells, self._cells_file = bytearray(), folder / CELLS
        self._pending: dict[str, list[tuple[Any, ...]]] = {split: [] for split in splits}
        self._writers: dict[str, pq.ParquetWriter] = {}
        self._digest = hashlib.sha256()
        self._stack = ExitStack()
        self.counts = dict.fromkeys(splits, 0)

    def __enter__(self) -> RecordWriter:
        with ExitStack() as stack:
            for split, path in self._paths.items():
                file = stack.enter_context(pa.OSFile(str(_partial(path)), "wb"))
                writer = pq.ParquetWriter(file, self._schema, compression="zstd")
                self._writers[split] = stack.enter_context(writer)
            self._stack = stack.pop_all()
        return self

    def add(
        self,
        split: str,
        *,
        record_id: int | str,
        content: Any,
        label: int,
        code: str,
        cohort: str,
        unit: str | None,
        cells: bytes,
    ) -> None:
        """Writes one record, with its label, its code and the digests of its cells."""
        self._cells += cells
        line = _JSON.encode([split, record_id, content, code, cohort, unit])
        self._digest.update(line.encode("ascii") + b"\n")
        self._pending[split].append((record_id, content, label, cohort, unit))
        self.counts[split] += 1
        if len(self._pending[split]) == _GROUP:
            self._flush(split)

    @property
    def fingerprint(self) -> str:
        """Returns the fingerprint of all records added so far."""
        return self._digest.hexdigest()

    def _flush(self, split: str) -> None:
        columns = list(zip(*self._pending[split], strict=True)) or [()] * len(self._schema)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
        self._writers[split].write_table(pa.Table.from_arrays(arrays, schema=self._schema))
        self._pending[split].clear()

    def _write_cells(self) -> None:
        """Writes each digest once and sorted, which says nothing of its record's place."""
        if self._cells:
            buffers = [None, pa.py_buffer(bytes(self._cells))]
            every = pa.FixedSizeBinaryArray.from_buffers(pa.binary(SIZE), len(self._cells) // SIZE, buffers)
            pq.write_table(pa.table({"cell": every.unique()}).sort_by("cell"), self._cells_file)

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        try:
            if kind is None:
                for split in self._writers:
                    self._flush(split)
                self._write_cells()
        finally:
            self._stack.close()
        if kind is None:
            for path in self._paths.values():
                _partial(path).replace(path)


@contextmanager
def enough_disk(folder: Path) -> Iterator[None]:
    """Turns a full disk into an error that says so."""
    full = False
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        full = True
    if full:
        raise StorageError(f"disk: no space left in {folder} while writing the records. Free space and run again")


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")
