"""What a coder reads of a record, by kind: a text, the features of a table's row, the pixels of an image.

Each kind says which further columns it reads, which records lack it, and what is written for those that are sampled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from storage.codelist import shape
from storage.errors import InputError
from storage.ingest.cells import Faults, blank, trimmed
from storage.ingest.config import IngestConfig
from storage.tables.arrays import Arrays, look_at_arrays, open_arrays
from storage.tables.reading import Table, open_table
from storage.tables.source import Source, open_source, require_columns

_MOST_VALUES = 100
"""Values at fault of a column, from which their shape is told."""


class Content(Protocol):
    """What is learned from."""

    columns: tuple[str, ...]
    """Read beside those that say code, cohort, unit and id."""
    missing: str
    """Why a record without it is dropped."""
    field: pa.Field

    def lacking(self, batch: pa.RecordBatch, start: int) -> NDArray[np.bool_]:
        """Which records of a batch lack it; `start` is the row that the batch begins with."""
        ...

    def check(self) -> None:
        """Refuse what was met in all batches.

        Raises:
            InputError: names the column and the first rows.
        """
        ...

    def values(self, batch: pa.RecordBatch, rows: NDArray[np.int64], start: int) -> list[Any]:
        """What is written for rows (counted in the batch): JSON-able."""
        ...

    def schema(self) -> dict[str, Any] | None:
        """How values become features; None for text."""
        ...


class TextContent:
    """Narratives, joined of their columns."""

    missing = "no_text"
    field = pa.field("text", pa.string(), nullable=False)

    def __init__(self, config: IngestConfig) -> None:
        self.columns = config.text_columns
        self._narratives = config.narratives

    def lacking(self, batch: pa.RecordBatch, start: int) -> NDArray[np.bool_]:
        """All text columns are blank."""
        return np.logical_and.reduce([blank(trimmed(batch, name)) for name in self.columns])

    def check(self) -> None:
        """Any text will do."""

    def values(self, batch: pa.RecordBatch, rows: NDArray[np.int64], start: int) -> list[str]:
        """One text a row."""
        cells = [batch.column(name).take(pa.array(rows)).to_pylist() for name in self.columns]
        return self._narratives.texts(zip(*cells, strict=True))

    def schema(self) -> None:
        """None: an encoder makes the features."""


@dataclass(frozen=True)
class _Column:
    name: str
    bounds: tuple[float, float] | None = None
    categories: tuple[str, ...] | None = None


def feature_columns(source: Source, config: IngestConfig) -> list[_Column]:
    """The feature columns of a table, in its order.

    Raises:
        InputError: there are none.
    """
    named, features = config.table.named, config.table
    taken = (*config.columns, *((config.date_column,) if config.date_column else ()))
    names = [name for name in source.columns if (name in named if named else name not in taken)]
    if not names:
        raise InputError(f"{source.label} has no columns beside {', '.join(map(repr, taken))}")
    return [_Column(name, features.numeric.get(name), features.categorical.get(name)) for name in names]


class TableContent:
    """Numbers as they stand, and categories as their place on the list; `other` is the place after the last."""

    missing = "no_value"
    field = pa.field("values", pa.list_(pa.float64()), nullable=False)

    def __init__(self, table: Table, config: IngestConfig) -> None:
        self._columns = feature_columns(table.source, config)
        self.columns = tuple(column.name for column in self._columns)
        self._other = config.table.unlisted == "other"
        self._name = table.source.name
        self._faults = {name: Faults() for name in self.columns}
        self._unlisted: dict[str, set[str]] = {name: set() for name in self.columns}

    def lacking(self, batch: pa.RecordBatch, start: int) -> NDArray[np.bool_]:
        """A feature is blank, and no blank is on its list."""
        lacking = np.zeros(batch.num_rows, dtype=np.bool_)
        for column in self._columns:
            cells = trimmed(batch, column.name)
            if "" not in (column.categories or ()):
                lacking |= blank(cells)
            bad = np.isnan(self._numbers(column, cells)) & ~blank(cells)
            if bad.any():
                self._faults[column.name].add(start + np.flatnonzero(bad))
                if len(self._unlisted[column.name]) < _MOST_VALUES:
                    self._unlisted[column.name] |= set(cells.filter(pa.array(bad)).to_pylist())
        return lacking

    def check(self) -> None:
        """Refuse cells that are no numbers, or not on the public list."""
        for column in self._columns:
            faults = self._faults[column.name]
            if not faults.count:
                continue
            what, way_out = (
                ("do not read as numbers", "correct them, or name the column under data.ingest.table.categorical")
                if column.categories is None
                else ("are not on its list", "add them to it, or set data.ingest.table.unlisted=other")
            )
            raise InputError(
                f"data: {self._name}, column {column.name!r}: {faults.count} values {what} ({faults}; "
                f"{shape(self._unlisted[column.name])}); {way_out}"
            )

    def values(self, batch: pa.RecordBatch, rows: NDArray[np.int64], start: int) -> list[list[float]]:
        """One list of numbers a row."""
        numbers = [self._numbers(column, trimmed(batch, column.name).take(pa.array(rows))) for column in self._columns]
        return np.stack(numbers, axis=1).tolist()

    def schema(self) -> dict[str, Any]:
        """Kind, bounds and categories of each column."""
        other = ("other",) if self._other else ()
        return {
            "columns": [
                {"name": c.name, "kind": "numeric", "bounds": c.bounds}
                if c.categories is None
                else {"name": c.name, "kind": "categorical", "categories": (*c.categories, *other)}
                for c in self._columns
            ],
            "shape": None,
        }

    def _numbers(self, column: _Column, cells: pa.Array) -> NDArray[np.float64]:
        """The value of each cell; NaN where it has none."""
        if column.categories is None:
            numbers = pd.to_numeric(cells.to_pandas(), errors="coerce").to_numpy(dtype=np.float64)
            return np.where(np.isfinite(numbers), numbers, np.nan)
        place = {value: at for at, value in enumerate(column.categories)}
        unlisted = len(place) if self._other else math.nan
        return np.array([place.get(cell, unlisted) for cell in cells.to_pylist()], dtype=np.float64)


class ImageContent:
    """Pixels as they stand, row by row."""

    missing = "no_value"
    columns: tuple[str, ...] = ()
    field = pa.field("values", pa.list_(pa.float32()), nullable=False)

    def __init__(self, arrays: Arrays, config: IngestConfig) -> None:
        self._pixels = arrays.arrays[config.images.pixels]
        default = 1.0 if self._pixels.dtype.kind == "f" else float(np.iinfo(self._pixels.dtype).max)
        self._largest = config.images.largest or default
        if self._pixels.dtype.kind == "f" and config.images.largest is None and self._pixels.max() > 1:
            raise InputError(
                f"{arrays.source.label}: array {config.images.pixels!r} holds floats above 1; name the value that "
                "stands for the brightest, such as data.ingest.images.largest=255"
            )

    def lacking(self, batch: pa.RecordBatch, start: int) -> NDArray[np.bool_]:
        """Every image is there."""
        return np.zeros(batch.num_rows, dtype=np.bool_)

    def check(self) -> None:
        """The arrays were checked as they were read."""

    def values(self, batch: pa.RecordBatch, rows: NDArray[np.int64], start: int) -> list[list[float]]:
        """The pixels of each image, flattened."""
        return self._pixels[start + rows].reshape(len(rows), -1).astype(np.float32).tolist()

    def schema(self) -> dict[str, Any]:
        """Bounds and shape of the images."""
        shape = self._pixels.shape[1:]
        columns = [
            {"name": f"pixel {at}", "kind": "numeric", "bounds": (0.0, self._largest)} for at in np.ndindex(shape)
        ]
        return {"columns": columns, "shape": list(shape)}


def opened(path: Path, config: IngestConfig) -> tuple[Table | Arrays, Content]:
    """The records of a file, and what is learned from them.

    Raises:
        InputError: the file or the columns named for it are at fault.
    """
    if config.kind == "images":
        arrays = open_arrays(path, config.columns, config.images.pixels)
        return arrays, ImageContent(arrays, config)
    table = open_table(path, wanted(config), said_by=named_by(config))
    return table, TextContent(config) if config.kind == "text" else TableContent(table, config)


def looked_at(path: Path, config: IngestConfig) -> tuple[Source, int | None]:
    """The same at a glance: the source, and features a record; None of text, and where only reading it all tells.

    Raises:
        InputError: the file or the columns named for it are at fault.
    """
    if config.kind == "images":
        source, shape = look_at_arrays(path, wanted(config), config.images.pixels)
        return source, math.prod(shape[1:])
    source = open_source(path)
    if source.kind == "jsonl":
        return source, None
    require_columns(source, wanted(config), named_by(config))
    if config.kind == "text":
        return source, None
    other = config.table.unlisted == "other"
    return source, sum(len(c.categories) + other if c.categories else 1 for c in feature_columns(source, config))


def named_by(config: IngestConfig) -> dict[str, str]:
    """What names each column of the configuration: its option, or its parameter."""
    named = {
        config.id_column: "data.ingest.id_column",
        config.unit_column: "data.ingest.unit_column",
        config.dates_from: '--date, "" for none',
        **{
            column: f"data.ingest.fields.{name}.label_column" if name else "--label"
            for name, column in config.label_columns.items()
        },
    } | ({name: "--text" for name in config.text_columns} if config.kind == "text" else {})
    return {name: by for name, by in named.items() if name is not None}


def wanted(config: IngestConfig) -> Sequence[str]:
    """Every column that the configuration names."""
    features = {"text": (), "table": config.table.named, "images": (config.images.pixels,)}[config.kind]
    return tuple(dict.fromkeys([*config.columns, *features]))
