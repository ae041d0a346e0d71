"""What ingest left, read back: records of a split as a `datasets.Dataset`, and the label space."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datasets import Dataset
from numpy.typing import NDArray

from storage.artifacts import file_digest
from storage.codelist import Code
from storage.errors import StorageError

CODES = "codes.json"
FEATURES = "features.json"
"""How the values of a table or of images become features; absent for text."""


def split_file(folder: Path, split: str) -> Path:
    """The Parquet file of a split."""
    return folder / f"{split}.parquet"


def load_split(folder: Path, split: str) -> Dataset:
    """The records of `train`, `test` or `holdout`, in the order of the source.

    Columns: record_id (int64 or string), text (of a table or of images: values, a list of numbers), label (int32, an
    index into the label space), cohort, unit (null without a unit column). Held in memory: no
    cache is written, here or anywhere.

    Raises:
        StorageError: the file is missing or damaged; names it.
    """
    path = split_file(folder, split)
    if not path.is_file():
        raise StorageError(f"{path} is missing; run ingest again (`holdout` needs a holdout_share above 0)")
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError):
        table = None
    if table is None:
        raise StorageError(f"{path} is damaged; remove its folder and run ingest again")
    # A fingerprint given keeps the library from hashing the table once more with a digest of its own.
    return Dataset(table, fingerprint=file_digest(path)[:16])


def load_values(folder: Path, split: str) -> NDArray[np.float64]:
    """Numbers of a split's records, float64 [n, columns], of a table or of images.

    Raises:
        StorageError: the file is missing or damaged; names it.
    """
    records = load_split(folder, split)
    values = records.data.column("values").combine_chunks()
    return np.array(values.flatten(), dtype=np.float64).reshape(len(records), -1)


def load_codes(folder: Path) -> list[Code]:
    """The label space: label i is code i.

    Raises:
        StorageError: the file is missing; names it.
    """
    path = folder / CODES
    if not path.is_file():
        raise StorageError(f"{path} is missing; run ingest again")
    return [Code(**entry) for entry in json.loads(path.read_bytes())]
