"""Reads the output of ingest: the records of a split as a `datasets.Dataset`, and the label space."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from storage.artifacts import file_digest
from storage.codelist import Code
from storage.errors import StorageError

if TYPE_CHECKING:
    from datasets import Dataset

CODES = "codes.json"
CELLS = "cells.parquet"
"""Digests of the records' text cells; absent where there are none."""


def split_file(folder: Path, split: str) -> Path:
    """Returns the Parquet file of a split."""
    return folder / f"{split}.parquet"


def load_split(folder: Path, split: str) -> Dataset:
    """Returns the records of `train`, `test` or `holdout`, in the order of the source.

    Columns: record_id (int64 or string), text, label (int32, an index into the label space),
    cohort, unit (null without a unit column). Held in memory: no cache is written, here or
    anywhere.
    """
    from datasets import Dataset  # takes a second with pandas

    # A fingerprint given here keeps the library from hashing the table a second time.
    return Dataset(
        load_table(folder, split), fingerprint=file_digest(split_file(folder, split))[:16]
    )


def load_table(folder: Path, split: str) -> pa.Table:
    """Returns the records of a split as Arrow has them, in the columns of `load_split`."""
    path = split_file(folder, split)
    if not path.is_file():
        raise StorageError(
            f"{path} is missing. Run ingest again (`holdout` needs a holdout_share above 0)"
        )
    try:
        table = pq.ParquetFile(path).read()  # `read_table` imports pandas
    except (pa.ArrowException, OSError):
        table = None
    if table is None:
        raise StorageError(f"{path} is damaged. Remove its folder and run ingest again")
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
        raise StorageError(f"{path} is missing. Run ingest again")
    return [Code(**entry) for entry in json.loads(path.read_bytes())]
