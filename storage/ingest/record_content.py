"""Reads what a coder learns from, by kind: a text, the features of a table's row, the pixels of an image.

Each kind defines which further columns it reads, which records lack it, and what is written for sampled ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.codelist import describe_shape
from storage.errors import InputError
from storage.ingest.cell_digests import cell_digests
from storage.ingest.config import IngestConfig
from storage.tables.arrays import Arrays, inspect_arrays, open_arrays
from storage.tables.reader import Table, open_table
from storage.tables.source import Source, open_source, require_columns

_MOST_VALUES = 100
"""Faulty values of a column from which a message describes their shape."""


@dataclass
class Faults:
    """Counts faulty rows and names the first few, counted from 1 after the header."""

    count: int = 0
    first: list[int] = field(default_factory=list)

    def add(self, rows: NDArray[np.int64]) -> None:
        """Adds rows, counted from 0."""
        self.count += len(rows)
        self.first.extend((rows[: max(0, 10 - len(self.first))] + 1).tolist())

    def __str__(self) -> str:
        more = f" and {self.count - len(self.first)} more" if self.count > len(self.first) else ""
        return f"{'row' if self.count == 1 else 'rows'} {', '.join(map(str, self.first))}{more}"


def trim(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Returns a column's cells without outer blanks."""
    return pc.call_function("utf8_trim_whitespace", [batch.column(name)])


def blank(cells: pa.Array) -> NDArray[np.bool_]:
    """Marks the empty ones of trimmed cells."""
    return np.asarray(pc.call_function("binary_length", [cells])) == 0


class Content:
    """Reads what the coder learns from. Each kind overrides what it has."""

    columns: tuple[str, ...] = ()
    """Columns next to those of code, cohort, unit and id."""
    missing = "no_value"
    """Reason why a record without it is dropped."""
    field: pa.Field

    def lacking(self, batch: pa.RecordBatch, start: int) -> NDArray[np.bool_]:
        """Marks the records of a batch that lack it; `start` is the batch's first row."""
        return np.zeros(batch.num_rows, dtype=np.bool_)

    def check(self) -> None:
        """Refuses faults of all batches; names the column and the first rows."""

    def values(self, batch: pa.RecordBatch, rows: NDArray[np.int64], start: int) -> list[Any]:
        """Returns what is written for rows (counted in the batch): JSON-able."""
        raise NotImplementedError

    def cells(self, batch: pa.RecordBatch, rows: NDArray[np.int64]) -> list[bytes] | None:
        """Returns the digests of each row's text cells; None where there are no texts."""
        return None

    def schema(self) -> dict[str, Any] | None:
        """Describes how values become features; None for text, whose features an encoder makes."""
        return None


class TextContent(Content):
    """Reads narratives, joined from their columns."""

    missing = "no_text"
    field = pa.field("text", pa.string(), nullable=False)

    def __init__(self, config: IngestConfig) -> None:
        self.columns = config.text_columns
        self._narratives = config.narratives

    def lacking(self, batch: pa.RecordBatch, start: int) -> NDArray[np.bool_]:
        """Marks records whose text columns are all blank."""
        return np.logical_and.reduce([blank(trim(batch, name)) for name in self.columns])

    def values(self, batch: pa.RecordBatch, rows: NDArray[np.int64], start: int) -> list[str]:
        """Returns one text per row."""
        return self._narratives.texts(_rows(batch, self.columns, rows))

    def cells(self, batch: pa.RecordBatch, rows: NDArray[np.int64]) -> list[bytes]:
        """Returns the digests of each row's text cells."""
        return [cell_digests(cells) for cells in _rows(batch, self.columns, rows)]


def _rows(batch: pa.RecordBatch, columns: Sequence[str], rows: NDArray[np.int64]) -> Iterator[tuple[str, ...]]:
    return zip(*(batch.column(name).take(pa.array(rows)).to_pylist() for name in columns), strict=True)


@dataclass(frozen=True)
class _Column:
    name: str
    bounds: tuple[float, float] | None = None
    categories: tuple[str, ...] | None = None


def feature_columns(source: Source, config: IngestConfig) -> list[_Column]:
    """Returns the feature columns of a table, in its order; there is one at least."""
    named, features = config.table.columns, config.table
    taken = (*config.columns, *((config.date_column,) if config.date_column else ()))
    names = [name for name in source.columns if (name in named if named else name not in taken)]
    if not names:
        raise InputError(f"{source.label} has no feature columns, only {', '.join(map(repr, taken))}. Add one")
    return [_Column(name, features.numeric.get(name), features.categorical.get(name)) for name in names]


class TableContent(Content):
    """Reads numbers as they are and categories as their place on the list; `other` is the place after the last."""

    field = pa.field("values", pa.list_(pa.float64()), nullable=False)

    def __init__(self, table: Table, config: IngestConfig) -> None:
        self._columns = feature_columns(table.source, config)
        self.columns = tuple(column.name for column in self._columns)
        self._other = config.table.unlisted == "other"
        self._name = table.source.name
        self._faults = {name: Faults() for name in self.columns}
        self._unlisted: dict[str, set[str]] = {name: set() for name in self.columns}

    def lacking(self, batch: pa.RecordBatch, start: int) -> NDArray[np.bool_]:
        """Marks records with a blank feature, unless its list has a blank."""
        lacking = np.zeros(batch.num_rows, dtype=np.bool_)
        for column in self._columns:
            cells = trim(batch, column.name)
            if "" not in (column.categories or ()):
                lacking |= blank(cells)
            bad = np.isnan(self._numbers(column, cells)) & ~blank(cells)
            if bad.any():
                self._faults[column.name].add(start + np.flatnonzero(bad))
                if len(self._unlisted[column.name]) < _MOST_VALUES:
                    self._unlisted[column.name] |= set(cells.filter(pa.array(bad)).to_pylist())
        return lacking

    def check(self) -> None:
        """Refuses cells that are not numbers, or not on the public list."""
        for column in self._columns:
            faults = self._faults[column.name]
            if not faults.count:
                continue
            what, way_out = (
                ("are not numbers", "Correct them, or name the column under data.ingest.table.categorical")
                if column.categories is None
                else ("are not on its list", "Add them to it, or set data.ingest.table.unlisted=other")
            )
            raise InputError(
                f"data: {self._name}, column {column.name!r}: {faults.count} values {what} ({faults}; "
                f"{describe_shape(self._unlisted[column.name])}). {way_out}"
            )

    def values(self, batch: pa.RecordBatch, rows: NDArray[np.int64], start: int) -> list[list[float]]:
        """Returns one list of numbers per row."""
        numbers = [self._numbers(column, trim(batch, column.name).take(pa.array(rows))) for column in self._columns]
        return np.stack(numbers, axis=1).tolist()

    def schema(self) -> dict[str, Any]:
        """Describes kind, bounds and categories of each column."""
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
        """Returns the value of each cell; NaN where it has none."""
        if column.categories is None:
            import pandas as pd

            numbers = pd.to_numeric(cells.to_pandas(), errors="coerce").to_numpy(dtype=np.float64)
            return np.where(np.isfinite(numbers), numbers, np.nan)
        place = {value: at for at, value in enumerate(column.categories)}
        unlisted = len(place) if self._other else math.nan
        return np.array([place.get(cell, unlisted) for cell in cells.to_pylist()], dtype=np.float64)


class ImageContent(Content):
    """Reads pixels as they are, row by row; every image exists, and was checked on reading."""

    field = pa.field("values", pa.list_(pa.float32()), nullable=False)

    def __init__(self, arrays: Arrays, config: IngestConfig) -> None:
        self._pixels = arrays.arrays[config.images.pixels]
        default = 1.0 if self._pixels.dtype.kind == "f" else float(np.iinfo(self._pixels.dtype).max)
        self._largest = config.images.largest or default
        if self._pixels.dtype.kind == "f" and config.images.largest is None and self._pixels.max() > 1:
            raise InputError(
                f"{arrays.source.label}: array {config.images.pixels!r} has floats above 1. Name the value of "
                "the brightest pixel, such as data.ingest.images.largest=255"
            )

    def values(self, batch: pa.RecordBatch, rows: NDArray[np.int64], start: int) -> list[list[float]]:
        """Returns the pixels of each image, flattened."""
        return self._pixels[start + rows].reshape(len(rows), -1).astype(np.float32).tolist()

    def schema(self) -> dict[str, Any]:
        """Describes bounds and shape of the images."""
        shape = self._pixels.shape[1:]
        columns = [
            {"name": f"pixel {at}", "kind": "numeric", "bounds": (0.0, self._largest)} for at in np.ndindex(shape)
        ]
        return {"columns": columns, "shape": list(shape)}


def open_records(path: Path, config: IngestConfig) -> tuple[Table | Arrays, Content]:
    """Returns the records of a file and their content."""
    if config.kind == "images":
        arrays = open_arrays(path, config.columns, config.images.pixels)
        return arrays, ImageContent(arrays, config)
    table = open_table(path, required_columns(config), column_options=column_options(config))
    return table, TextContent(config) if config.kind == "text" else TableContent(table, config)


def inspect_source(path: Path, config: IngestConfig) -> tuple[Source, int | None]:
    """Returns the source and the features per record; None for text, or where they need a full reading."""
    if config.kind == "images":
        source, shape = inspect_arrays(path, required_columns(config), config.images.pixels)
        return source, math.prod(shape[1:])
    source = open_source(path)
    if source.kind == "jsonl":
        return source, None
    require_columns(source, required_columns(config), column_options(config))
    if config.kind == "text":
        return source, None
    other = config.table.unlisted == "other"
    return source, sum(len(c.categories) + other if c.categories else 1 for c in feature_columns(source, config))


def column_options(config: IngestConfig) -> dict[str, str]:
    """Returns the option or parameter that names each column of the configuration."""
    named = {
        config.id_column: "data.ingest.id_column",
        config.unit_column: "data.ingest.unit_column",
        config.dates_from: '--date, "" for none',
        **{
            column: f"data.ingest.fields.{name}.label_column" if name else "--label"
            for name, column in config.label_columns.items()
        },
    }
    if config.kind == "text":
        named |= dict.fromkeys(config.text_columns, "--text")
    return {name: by for name, by in named.items() if name is not None}


def required_columns(config: IngestConfig) -> Sequence[str]:
    """Returns every column that the configuration names."""
    features = {"text": (), "table": config.table.columns, "images": (config.images.pixels,)}[config.kind]
    return tuple(dict.fromkeys([*config.columns, *features]))
