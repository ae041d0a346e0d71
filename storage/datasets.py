"""Writes and reads the output of ingest: the records of a split as a memory-mapped
`datasets.Dataset`, and the label space.
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
"""Digests of the records' text cells; absent if there are none."""


_BATCH = 8192
"""Number of records per batch in a split's file. It is fixed, so that the same records give the
same file, whatever blocks they were read in.
"""


def split_file(folder: Path, split: str) -> Path:
    """The file of a split: a stream of Arrow record batches, which `datasets` maps."""
    return folder / f"{split}.arrow"


class SplitWriter:
    """Writes the records of a split as they arrive, with at most one batch in memory.

    The file is not compressed, so that it can be memory-mapped.
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
    """The records of `train`, `test` or `holdout`, in the order of the source.

    Columns: record_id (int64 or string), text, label (int32, an index into the label space),
    cohort, unit (null without a unit column). Rows are read from disk on access, and no cache is
    written.
    """
    from datasets import Dataset  # takes a second with pandas

    # Passing a fingerprint prevents the library from hashing the table again.
    return Dataset(
        load_table(folder, split), fingerprint=file_digest(split_file(folder, split))[:16]
    )


def load_table(folder: Path, split: str) -> pa.Table:
    """The records of a split as an Arrow table, with the columns of `load_split`.

    The table is memory-mapped, so only the parts that are used enter memory.
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
        table.validate(full=True)  # the stream has no checksums of its own
    except (pa.ArrowException, OSError):
        table = None
    if table is None:
        raise DamagedData(
            f"{path} is damaged. Remove its folder and run ingest again", kind="damaged-table"
        )
    return table


def load_cells(folder: Path) -> list[bytes]:
    """The distinct digests of all text cells."""
    path = folder / CELLS
    return pq.ParquetFile(path).read().column("cell").to_pylist() if path.is_file() else []


def load_labels(folder: Path, split: str) -> NDArray[np.int64]:
    """The labels of a split's records, int64 [n]."""
    return load_table(folder, split).column("label").to_numpy().astype(np.int64)


def load_codes(folder: Path) -> list[Code]:
    """The label space: label i is code i."""
    path = folder / CODES
    if not path.is_file():
        raise DamagedData(f"{path} is missing. Run ingest again", kind="no-codes")
    return [Code(**entry) for entry in json.loads(path.read_bytes())]
