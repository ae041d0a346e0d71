"""What ingest left, read back: records of a split as a `datasets.Dataset`, and the label space."""

from __future__ import annotations

import json
from collections.abc import Sequence
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
FIELDS = "fields.json"
"""Of several fields, the label space of each, in their order; there is no `CODES` then."""
FEATURES = "features.json"
"""How the values of a table or of images become features; absent for text."""


def split_file(folder: Path, split: str) -> Path:
    """The Parquet file of a split."""
    return folder / f"{split}.parquet"


def label_columns(fields: Sequence[str]) -> list[str]:
    """Columns that hold the labels: `label`, or, of several fields, `label_nature` and so on."""
    return [f"label_{name}" for name in fields] or ["label"]


def load_split(folder: Path, split: str) -> Dataset:
    """The records of `train`, `test` or `holdout`, in the order of the source.

    Columns: record_id (int64 or string), text (of a table or of images: values, a list of numbers), label (int32, an
    index into the label space; of several fields `label_columns`, each an index into its own, -1 where a record lacks
    it), cohort, unit (null without a unit column). Held in memory: no cache is written, here or anywhere.

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


def load_labels(folder: Path, split: str) -> NDArray[np.int64]:
    """Labels of a split's records: int64 [n]; of several fields [n, fields], -1 where a record lacks one.

    Raises:
        StorageError: the file is missing or damaged; names it.
    """
    table, several = load_split(folder, split).data, load_fields(folder)
    columns = [table.column(name).to_numpy().astype(np.int64) for name in label_columns(tuple(several or ()))]
    return columns[0] if several is None else np.stack(columns, axis=1)


def load_fields(folder: Path) -> dict[str, list[Code]] | None:
    """The label space of each field by its name, in their order; None where there is one field."""
    path = folder / FIELDS
    if not path.is_file():
        return None
    spaces = json.loads(path.read_bytes())
    return {name: [Code(**entry) for entry in space] for name, space in spaces.items()}


def load_spaces(folder: Path) -> dict[str, list[Code]]:
    """The label space of each field by its name; of a single field by the name "".

    Raises:
        StorageError: the file is missing; names it.
    """
    return load_fields(folder) or {"": load_codes(folder)}


def load_codes(folder: Path) -> list[Code]:
    """The label space of a single field: label i is code i.

    Raises:
        StorageError: the file is missing, or there are several fields; names it.
    """
    path = folder / CODES
    if (folder / FIELDS).is_file():
        raise StorageError(f"{folder} holds several fields, each with codes of its own; this is for one field")
    if not path.is_file():
        raise StorageError(f"{path} is missing; run ingest again")
    return [Code(**entry) for entry in json.loads(path.read_bytes())]
