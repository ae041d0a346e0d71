"""Reads a table of any size: validates it once before work starts, then reads it in pieces.

A row is a tuple of values in the order of `Table.columns`: text for CSV, typed values for Parquet
and JSON Lines. No message quotes a cell.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.artifacts import file_digest
from storage.errors import Contradiction, Missing, OutOfRange, Unreadable
from storage.tables import guarded
from storage.tables.csv_layout import open_source
from storage.tables.csv_rows import ScanResult, csv_batches
from storage.tables.encodings import require_one_encoding
from storage.tables.inputs import files_in, title_of
from storage.tables.json_rows import ABSENT, json_rows, scan_json
from storage.tables.options import AS_IT_LOOKS, ReadOptions
from storage.tables.source import SMALL, Kind, Source, require_columns, to_arrow

Row = tuple[Any, ...]
T = TypeVar("T")

_PIECE_CELLS = 1 << 20
_PIECE_CHARACTERS = 1 << 24
_PIECE_ROWS = 2048
_PARQUET_ROWS = 256
_IN_MEMORY = 32 << 20
"""Size in bytes up to which the rows of a CSV are kept in memory."""
_PARQUET_MEMORY, _PARQUET_BYTES = 4 << 30, 256 << 20
"""Memory limit in bytes of the process that checks a Parquet file, and of each batch of rows that
it reads.
"""
_ROWS_A_BYTE, _FEW_ROWS = 8, 1_000_000


class MissingValues:
    """Blanks cells that mark a missing value, and counts them by column and mark."""

    def __init__(self, values: Collection[str], *, codes: Collection[str] = ()) -> None:
        self._values = to_arrow(sorted(set(values) - set(codes)))
        self.counts: dict[str, Counter[str]] = {}

    def blank(self, name: str, column: pa.Array) -> pa.Array:
        trimmed = pc.call_function("utf8_trim_whitespace", [column])
        marked = pc.call_function("is_in", [trimmed], pc.SetLookupOptions(self._values))
        if not pc.call_function("any", [marked]).as_py():
            return column
        values = trimmed.filter(marked).value_counts()
        self.counts.setdefault(name, Counter()).update(
            {entry["values"]: entry["counts"] for entry in values.to_pylist()}
        )
        return pc.call_function("if_else", [marked, "", column])

    @property
    def sentence(self) -> str:
        marks = [
            f"{name!r}: {', '.join(f'{mark} ({count:,})' for mark, count in counts.most_common())}"
            for name, counts in self.counts.items()
        ]
        return f"read as blank, by column: {'; '.join(marks)}" if marks else ""


@dataclass(frozen=True)
class Table:
    """A table with a known number of rows, which is always read completely or raises an error."""

    source: Source
    columns: tuple[str, ...]
    rows: int
    """Counted on opening, for all files together. `read` raises an error if the number differs."""
    sha256: str
    schema: pa.Schema
    """Arrow types of the columns: text for CSV; for JSON the common type of a key's values, or
    text.
    """
    skipped: int = 0
    """Number of bad rows that are skipped, if this was requested."""
    options: ReadOptions = AS_IT_LOOKS
    total: bool = False
    """Whether the last row looks like a total."""
    strays: tuple[int, ...] = ()
    """Rows with an unpaired quote."""
    in_memory: tuple[pa.RecordBatch, ...] | None = field(default=None, repr=False, compare=False)
    """All rows of a small CSV, which is read only once."""
    more: tuple[Table, ...] = ()
    """Further files, which also have the required columns and are read after this one."""
    apart: int = 0
    """For a further file: number of columns that only this file or only the first one has."""

    @property
    def kind(self) -> Kind:
        return self.source.kind

    @property
    def files(self) -> tuple[Table, ...]:
        return (
            replace(self, rows=self.rows - sum(part.rows for part in self.more), more=()),
            *self.more,
        )

    @property
    def reading(self) -> list[str]:
        return [
            f"{Path(title_of(part.source.path)).name}: {part.rows:,} rows, {part.source.reading}"
            + (f", {part.skipped:,} bad rows skipped" if part.skipped else "")
            + (
                f", {len(part.source.repeated)} repeated headers left out"
                if part.source.repeated
                else ""
            )
            + (
                f", with a quote that does not pair in {_rows_named(part.strays)}"
                if part.strays
                else ""
            )
            + (
                f". {part.source.encoded_twice:,} letters look like UTF-8 that was read as cp1252 "
                "and saved again: fetch the file as it was before"
                if part.source.encoded_twice
                else ""
            )
            + (
                f". {part.apart:,} columns are only in it or only in the first file"
                if part.apart
                else ""
            )
            + (". Its last row looks like a total: is it a record?" if part.total else "")
            for part in self.files
        ]

    def require_one_layout(self) -> None:
        """Refuses further files with other columns or column types than the first, if all columns
        are to be written.
        """
        for part in self.more:
            if part.apart or {field.name: field.type for field in part.schema} != {
                field.name: field.type for field in self.schema
            }:
                raise Contradiction(
                    f"{part.source.label} has other columns than the first file, or "
                    "columns of another type. All columns are written, so use "
                    "files of one layout",
                    kind="other-columns",
                )

    def read(self, columns: Sequence[str] | None = None) -> Generator[Row, None, None]:
        required = self.columns if columns is None else tuple(columns)
        for part in self.files:
            if part.kind == "jsonl":
                yield from part._counted(json_rows(part.source, required), lambda row: 1)
                continue
            for batch in part._batches(required):
                yield from _values(part.source, batch)

    def texts(
        self, columns: Sequence[str], marks: MissingValues | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yields the columns in this order for training and coding, with every cell a string and
        absent cells empty.

        Args:
            marks: cells that are read as blank.
        """
        for part in self.files:
            for batch in part._texts(columns):
                arrays = (
                    batch.columns if marks is None else map(marks.blank, columns, batch.columns)
                )
                yield pa.RecordBatch.from_arrays(list(arrays), names=list(columns))

    def _texts(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if self.kind == "csv":
            yield from self._batches(columns)
        elif self.kind == "parquet":
            for batch in self._batches(self.columns):
                # Coding returns every column, so training also reads the others, to refuse what
                # coding would refuse.
                _values(self.source, batch)
                texts = [_parquet_text(self.source, batch, name) for name in columns]
                yield pa.RecordBatch.from_arrays(texts, names=list(columns))
        else:
            for piece in pieces(self.read(columns), columns=len(columns)):
                cells = [
                    to_arrow(list(map(_as_text, column))) for column in zip(*piece, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(cells, names=list(columns))

    def text_rows(
        self, columns: Sequence[str], marks: MissingValues | None = None
    ) -> Generator[tuple[str, ...], None, None]:
        """Yields the cells of `texts` row by row."""
        for batch in self.texts(columns, marks):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def marks(self, codes: Collection[str] = ()) -> MissingValues:
        """The marks of missing values for reading this table, except those that are codes."""
        return MissingValues(self.options.missing, codes=codes)

    def changed(self) -> bool:
        """Whether a file has changed since it was opened."""
        return _together([file_digest(part.source.path) for part in self.files]) != self.sha256

    def _batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if self.in_memory is not None:
            everything = tuple(columns) == self.columns
            return (
                batch if everything else batch.select(list(columns)) for batch in self.in_memory
            )
        read = _parquet_batches if self.kind == "parquet" else csv_batches
        return self._counted(read(self.source, columns), lambda batch: batch.num_rows)

    def _counted(self, parts: Iterator[T], size: Callable[[T], int]) -> Iterator[T]:
        rows = 0
        for part in parts:
            rows += size(part)
            yield part
        # guard: test_rows_that_come_or_go_between_count_and_reading
        if rows != self.rows:
            raise Unreadable(
                f"{self.source.label}: {rows:,} rows were read where {self.rows:,} were counted: "
                "it changed during "
                "reading or is damaged. Run again, or write it again",
                kind="changed-while-read",
            )


def open_table(
    path: Path | Sequence[Path],
    required: Sequence[str],
    *,
    option: str = "data",
    column_options: Mapping[str, str] | None = None,
    read: ReadOptions = AS_IT_LOOKS,
) -> Table:
    """Opens a table of one or more files, or of the files in a folder; determines its encoding, and
    reads it completely to count its rows.

    Args:
        required: columns that must exist.
        option: option that specified the file, for messages.
        column_options: options that specified the columns, for messages.

    Raises:
        InputError: the table or a column is missing, damaged or too large.
    """
    paths = files_in(path, option)
    first, *further = (_open_file(file, required, option, column_options, read) for file in paths)
    for table in further:
        if table.kind != first.kind:
            raise Contradiction(
                f"{table.source.label} has another format than "
                f"{first.source.path.name}. Use files of one format",
                kind="mixed-formats",
            )
    names = set(first.columns)
    further = [replace(table, apart=len(names ^ set(table.columns))) for table in further]
    return replace(
        first,
        source=replace(first.source, beside=len(further)),
        rows=sum(table.rows for table in (first, *further)),
        sha256=_together([table.sha256 for table in (first, *further)]),
        more=tuple(further),
    )


def _together(digests: Sequence[str]) -> str:
    return (
        digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()
    )


def _open_file(
    path: Path,
    required: Sequence[str],
    option: str,
    column_options: Mapping[str, str] | None,
    read: ReadOptions,
) -> Table:
    source, seen, batches_read = open_source(path, option, read, required), ScanResult(), None
    if source.kind == "jsonl":
        sha256 = file_digest(path)
        skipped = [0]
        source, schema, rows = scan_json(source, required, skipped)
        require_columns(source, required, column_options)
        return Table(source, source.columns, rows, sha256, schema, skipped[0], read)
    require_columns(source, required, column_options)
    sha256 = file_digest(path)
    if source.kind == "parquet":
        _check_memory(source, sha256)
        with pq.ParquetFile(path) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
        if len(set(schema.names)) < len(schema.names):
            raise Contradiction(
                f"{source.label} has a column name twice. Rename one", kind="repeated-column"
            )
        if cut := [
            field.name for field in schema if "time64[ns]" in str(field.type)
        ]:  # Python's times have no nanoseconds
            raise OutOfRange(
                f"{source.label}, column {cut[0]!r}: its nanoseconds would be cut. "
                "Write it as text",
                kind="nanoseconds",
                column=cut[0],
            )
    else:
        source = require_one_encoding(source, read)
        schema = pa.schema([pa.field(name, pa.string()) for name in source.columns])
        batches = csv_batches(source, None, seen)
        batches_read = tuple(batches) if source.bytes <= _IN_MEMORY else None
        rows = sum(batch.num_rows for batch in batches_read or batches)
        if not rows:
            raise Missing(
                f"{source.label} has a header and no records. Use a file of records",
                kind="only-a-header",
            )
        source = replace(source, repeated=tuple(seen.headers))
    return Table(
        source,
        source.columns,
        rows,
        sha256,
        schema,
        seen.bad,
        read,
        seen.total,
        tuple(seen.strays),
        batches_read,
    )


def _rows_named(rows: Sequence[int]) -> str:
    more = f" and {len(rows) - 5:,} more" if len(rows) > 5 else ""
    return f"{'row' if len(rows) == 1 else 'rows'} {', '.join(map(str, rows[:5]))}{more}"


def survey(
    path: Path | Sequence[Path],
    *,
    text_columns: Sequence[str],
    option: str = "data",
    column_options: Mapping[str, str] | None = None,
    read: ReadOptions = AS_IT_LOOKS,
) -> Table:
    """Reads a table completely, so that its faults are found before work starts."""
    table = open_table(path, text_columns, option=option, column_options=column_options, read=read)
    if table.kind == "parquet":
        for _ in table.texts(text_columns):
            pass
    return table


def read_small(
    path: Path, required: Sequence[str], *, option: str, read: ReadOptions = AS_IT_LOOKS
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The columns and all rows, as text, of a small table that is not a file of records."""
    if path.is_dir():
        raise Unreadable(f"{option}: {path} is a folder. Specify a file", kind="folder")
    if path.is_file() and path.stat().st_size > SMALL:
        raise OutOfRange(
            f"{option}: {path} has over {SMALL >> 20} MB. Specify a smaller file, "
            "not the data file",
            kind="file-too-big",
            option=option,
        )
    table = open_table(path, required, option=option, read=read)
    return table.columns, list(table.text_rows(table.columns))


def pieces(rows: Iterator[Row], *, columns: int) -> Iterator[list[Row]]:
    """Yields lists of rows, bounded by the number of rows, cells and characters.

    The boundaries depend only on the rows, so that a second reading gives the same lists.
    """
    most = max(1, min(_PIECE_ROWS, _PIECE_CELLS // max(1, columns)))
    piece: list[Row] = []
    characters = 0
    for row in rows:
        piece.append(row)
        characters += sum(len(value) if isinstance(value, str) else _weight(value) for value in row)
        if len(piece) == most or characters >= _PIECE_CHARACTERS:
            yield piece
            piece, characters = [], 0
    if piece:
        yield piece


_OF_NESTED = 16
"""Number of characters for which each character of a nested value's text counts: an empty list
takes 64 bytes, and its text has four characters.
"""


def _weight(value: Any) -> int:
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, Decimal):
        return len(str(value))
    return _OF_NESTED * len(str(value)) if isinstance(value, list | dict) else 0


def _as_text(value: Any) -> str:
    if isinstance(value, list):  # labelling tools write a single label as a list
        return _as_text(value[0]) if value else ""
    if isinstance(value, str):
        return "" if value == ABSENT else value.replace("\0", " ")
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


@lru_cache(maxsize=64)
def _check_memory(source: Source, sha256: str) -> None:
    """Refuses a Parquet file that needs more memory than its reader could allocate."""
    if source.rows > max(_FEW_ROWS, _ROWS_A_BYTE * source.path.stat().st_size):
        raise OutOfRange(
            f"{source.label}: {source.rows:,} rows in such a small file. Use a file of records",
            kind="too-many-rows",
        )
    settings = map(str, (_PARQUET_MEMORY, _PARQUET_ROWS, _PARQUET_BYTES))
    program = [sys.executable, "-I", guarded.__file__, "parquet", *settings]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    with source.path.open("rb") as file:
        done = subprocess.run(
            program, stdin=file, env=environment, capture_output=True, check=False
        )
    if done.returncode:
        raise OutOfRange(
            f"{source.label}: {_PARQUET_ROWS} of its rows take over "
            f"{_PARQUET_BYTES >> 20} MB unpacked, or it is damaged. Shorten its "
            "cells, or use a CSV",
            kind="rows-too-large",
        )


def _parquet_batches(source: Source, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    size = max(1, min(_PARQUET_ROWS, _PIECE_CELLS // max(1, len(columns))))
    try:
        with pq.ParquetFile(source.path) as file:
            for batch in file.iter_batches(
                batch_size=size, columns=list(columns), use_threads=False
            ):
                yield batch.select(list(columns))
    except (pa.ArrowException, OSError):
        pass
    else:
        return
    raise Unreadable(
        f"{source.label}: the Parquet file is damaged. Write it again", kind="damaged-parquet"
    )


def _values(source: Source, batch: pa.RecordBatch) -> Iterator[Row]:
    columns: list[list[Any]] = []
    for column in batch.columns:
        try:
            columns.append(column.to_pylist())
        except (
            ValueError,
            OverflowError,
            KeyError,
        ):  # a day after the year 9999, not UTF-8, an unknown time zone
            break
    if len(columns) < batch.num_columns:
        name = batch.schema.names[len(columns)]
        raise Unreadable(
            f"{source.label}, column {name!r} has dates or texts that cannot be read. Write it "
            "as valid text",
            kind="unreadable-values",
            column=name,
        )
    return zip(*columns, strict=True)


def _parquet_text(source: Source, batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(name)
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    if pa.types.is_floating(column.type):
        column = pc.call_function("if_else", [pc.call_function("is_nan", [column]), None, column])
    readable = not pa.types.is_nested(column.type)
    try:
        column = column.cast(pa.string())
        column.validate(full=True)  # the library accepts bytes that are not UTF-8
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        readable = False
    if not readable:
        raise Unreadable(
            f"{source.label}, column {name!r}: type {column.type} cannot become text. Write it "
            "as text",
            kind="column-type",
            column=name,
        )
    return pc.call_function(
        "replace_substring",
        [column.fill_null("")],
        pc.ReplaceSubstringOptions(pattern="\0", replacement=" "),
    )
