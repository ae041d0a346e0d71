"""Writes and reads the output of ingest: the records of a split, as a `datasets.Dataset` that is
mapped from the disk, and the label space.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from storage.artifacts import file_digest
from storage.codelist import Code
from storage.errors import DamagedData

if TYPE_CHECKING:
    from datasets import Dataset

CODES = "codes.json"
CELLS = "cells.parquet"
"""Digests of the records' text cells; absent where there are none."""


_BATCH = 8192
"""Records of a batch in the file of a split: a fixed number, so that the same records make the same
file, in whatever blocks they were read.
"""


def split_file(folder: Path, split: str) -> Path:
    """Returns the file of a split: a stream of Arrow's record batches, which `datasets` maps."""
    return folder / f"{split}.arrow"


class SplitWriter:
    """Writes the records of a split as they come, and keeps no more than a batch in memory.

    The file is not compressed, so that it can be mapped.
    """

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._file = pa.OSFile(str(path), "wb")
        self._stream = pa.ipc.new_stream(self._file, schema)
        self._waiting = schema.empty_table()
        self._batches = 0

    def write(self, records: pa.Table) -> None:
        self._waiting = pa.concat_tables([self._waiting, records])
        while self._waiting.num_rows >= _BATCH:
            self._write(self._waiting.slice(0, _BATCH))
            self._waiting = self._waiting.slice(_BATCH)

    def _write(self, records: pa.Table) -> None:
        columns = [column.combine_chunks() for column in records.columns]
        self._stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=records.schema))
        self._batches += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None and (self._waiting.num_rows or not self._batches):
                self._write(self._waiting)
            self._stream.close()
        finally:
            self._file.close()


def load_split(folder: Path, split: str) -> Dataset:
    """Returns the records of `train`, `test` or `holdout`, in the order of the source.

    Columns: record_id (int64 or string), text, label (int32, an index into the label space),
    cohort, unit (null without a unit column). A row is read from the disk when it is asked for; no
    cache is written.
    """
    from datasets import Dataset  # takes a second with pandas

    # A fingerprint given here keeps the library from hashing the table a second time.
    return Dataset(
        load_table(folder, split), fingerprint=file_digest(split_file(folder, split))[:16]
    )


def load_table(folder: Path, split: str) -> pa.Table:
    """Returns the records of a split as Arrow has them, in the columns of `load_split`.

    The table is mapped from its file: only what is read of it enters the memory.
    """
    path = split_file(folder, split)
    if not path.is_file():
        raise DamagedData(
            f"{path} is missing. Run ingest again (`holdout` needs a holdout_share above 0)",
            kind="no-table",
        )
    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as stream:
            table = stream.read_all()
        table.validate(full=True)  # the stream has no sums of its own
    except (pa.ArrowException, OSError):
        table = None
    if table is None:
        raise DamagedData(
            f"{path} is damaged. Remove its folder and run ingest again", kind="damaged-table"
        )
    return table


def load_cells(folder: Path) -> list[bytes]:
    """Returns the digests of all text cells, each once."""
    path = folder / CELLS
    return pq.ParquetFile(path).read().column("cell").to_pylist() if path.is_file() else []


def load_labels(folder: Path, split: str) -> NDArray[np.int64]:
    """Returns the labels of a split's records, int64 [n]."""
    return load_table(folder, split).column("label").to_numpy().astype(np.int64)


def load_codes(folder: Path) -> list[Code]:
    """Returns the label space: label i is code i."""
    path = folder / CODES
    if not path.is_file():
        raise DamagedData(f"{path} is missing. Run ingest again", kind="no-codes")
    return [Code(**entry) for entry in json.loads(path.read_bytes())]
