"""A table of any size, looked through once before work starts, then read in pieces.

A row is a tuple of values in the order of `Table.columns`: text from a CSV, what they are from Parquet and JSON Lines.
No message quotes a cell.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.artifacts import file_digest
from storage.errors import InputError
from storage.tables.source import Kind, Source, count_records, open_source, require_columns, scan

Row = tuple[Any, ...]
LinesSeen = Callable[[int, Row], None]
"""Is shown each row that spans several lines of a CSV: its number, counted from 1, and all its cells."""

ABSENT: Final = "\x00absent\x00"
"""Stands for a key that a JSON object lacks; no cell equals it, since the reader refuses or replaces NUL."""

_SMALL = 64 << 20
_MOST_COLUMNS = 100_000
_PIECE_CELLS = 1 << 20
_PIECE_CHARACTERS = 1 << 24
_PIECE_ROWS = 2048
_PARQUET_ROWS = 256
_NANOSECONDS: Final = pa.time64("ns")
"""Python's times end at the microsecond."""


@dataclass(frozen=True)
class Table:
    """A table whose columns and rows are known: it reads from the first row to the last, or raises."""

    source: Source
    columns: tuple[str, ...]
    rows: int
    """Counted by another way than `read` takes; a reading that ends at another number is refused."""
    sha256: str
    schema: pa.Schema
    """Arrow types of the columns: text for a CSV; for JSON what every value of a key is, else text."""

    @property
    def kind(self) -> Kind:
        """The format."""
        return self.source.kind

    def read(
        self, columns: Sequence[str] | None = None, *, on_lines: LinesSeen | None = None
    ) -> Generator[Row, None, None]:
        """All rows, or of all rows these columns.

        Raises:
            InputError: a row does not read, named by its number from 1; the rows are not as many as were counted.
        """
        wanted = self.columns if columns is None else tuple(columns)
        if self.source.kind == "parquet":
            batches = _parquet_batches(self.source, wanted)
            rows = (row for batch in batches for row in _values(self.source, batch))
        elif self.source.kind == "jsonl":
            records = _json_records(self.source)
            rows = (tuple(record.get(name, ABSENT) for name in wanted) for _, record in records)
        else:
            places = None if columns is None else [self.columns.index(name) for name in wanted]
            rows = _csv_rows(self.source, places, on_lines)
        return self._counted(rows)

    def texts(self, columns: Sequence[str], *, on_lines: LinesSeen | None = None) -> Iterator[pa.RecordBatch]:
        """The columns in this order, every cell a string and absent ones empty: what training and coding both read.

        Raises:
            InputError: as `read`; or a column of values that are no text.
        """
        if self.source.kind == "parquet":
            rows = 0
            for batch in _parquet_batches(self.source, self.columns):
                rows += batch.num_rows
                texts = [_parquet_text(self.source, batch, name) for name in columns]
                # Not wanted, and yet read: what coding refuses, which hands every column back, training does not take.
                others = [name for name in self.columns if name not in columns]
                _values(self.source, batch.select([name for name in others if not _any_bytes_do(batch, name)]))
                yield pa.RecordBatch.from_arrays(texts, names=list(columns))
            self._reconcile(rows)
            return
        for piece in pieces(self.read(columns, on_lines=on_lines), columns=len(columns)):
            cells = zip(*piece, strict=True)
            if self.kind == "jsonl":
                cells = (map(_as_text, column) for column in cells)
            texts = [pa.array(column, pa.string()) for column in cells]
            yield pa.RecordBatch.from_arrays(texts, names=list(columns))

    def text_rows(self, columns: Sequence[str]) -> Generator[tuple[str, ...], None, None]:
        """`texts`, row by row."""
        for batch in self.texts(columns):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def _counted(self, rows: Iterator[Row]) -> Generator[Row, None, None]:
        number = 0
        for number, row in enumerate(rows, start=1):  # noqa: B007  (its last value is the count)
            yield row
        self._reconcile(number)

    def _reconcile(self, rows: int) -> None:
        if rows != self.rows:
            raise InputError(
                f"{self.source.label}: {rows:,} rows were read where {self.rows:,} were counted; it changed while "
                "it was read, or is damaged: run again, or write it anew"
            )


def open_table(
    path: Path, wanted: Sequence[str], *, option: str = "data", said_by: Mapping[str, str] | None = None
) -> Table:
    """Look at a table, settle its encoding and count its rows; JSON Lines are read to their end.

    Args:
        wanted: columns that must be there.
        option: by which the file was named, for messages.
        said_by: by which each column was, where that is known.

    Raises:
        InputError: no such file or column, or bytes that are no text.
    """
    csv.field_size_limit(sys.maxsize)  # a narrative may have any length; Python's default refuses 131,073 characters
    source = open_source(path, option)
    sha256 = file_digest(path)
    if source.kind == "jsonl":
        source, schema, rows = _look_through_json(source, wanted)
    elif source.kind == "parquet":
        with pq.ParquetFile(path) as file:
            schema, rows = _readable(source, file.schema_arrow), file.metadata.num_rows
        if len(set(schema.names)) < len(schema.names):
            raise InputError(f"{source.label} has a column name twice; rename one")
    else:
        source = scan(source)
        schema, rows = pa.schema([pa.field(name, pa.string()) for name in source.columns]), count_records(source)
    require_columns(source, wanted, said_by)
    return Table(source, source.columns, rows, sha256, schema)


def survey(
    path: Path, *, text_columns: Sequence[str], option: str = "data", said_by: Mapping[str, str] | None = None
) -> Table:
    """Read a table to its end, keeping nothing but what `Table` says: what is wrong with it shows before work starts.

    Args:
        said_by: what names each column, such as an option, for the message.

    Raises:
        InputError: no such file or column, or a row that does not read; names the row, counted from 1.
    """
    table = open_table(path, text_columns, option=option, said_by=said_by)
    for _ in table.texts(text_columns) if text_columns and table.kind == "parquet" else ():
        pass
    for _ in table.read():
        pass
    return table


def read_small(path: Path, wanted: Sequence[str], *, option: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The columns and all rows, as text, of a table that is no file of records.

    Raises:
        InputError: as `survey`; or the file is large.
    """
    if path.is_file() and path.stat().st_size > _SMALL:
        raise InputError(f"{option}: {path} has over {_SMALL >> 20} MB; is it the data file?")
    table = open_table(path, wanted, option=option)
    return table.columns, list(table.text_rows(table.columns))


def pieces(rows: Iterator[Row], *, columns: int) -> Iterator[list[Row]]:
    """Rows in lists of bounded size: by their number, their cells and their characters of text.

    The cuts depend on the rows alone, so that a second reading gives the same pieces.
    """
    most = max(1, min(_PIECE_ROWS, _PIECE_CELLS // max(1, columns)))
    piece: list[Row] = []
    characters = 0
    for row in rows:
        piece.append(row)
        characters += sum(len(value) for value in row if isinstance(value, str))
        if len(piece) == most or characters >= _PIECE_CHARACTERS:
            yield piece
            piece, characters = [], 0
    if piece:
        yield piece


def _as_text(value: Any) -> str:
    """A cell as text: absent values are blank, NUL characters become blanks."""
    if isinstance(value, str):
        return "" if value == ABSENT else value.replace("\0", " ")
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _csv_rows(source: Source, places: Sequence[int] | None, on_lines: LinesSeen | None) -> Iterator[Row]:
    fault, number, line = "", 0, 0
    with source.text() as text:
        reader = csv.reader(text, delimiter=source.delimiter, strict=True)
        try:
            for _ in islice((row for row in reader if row), 1):
                pass  # the header
            for row in reader:
                before, line = line, reader.line_num
                if not row:
                    continue
                number += 1
                if len(row) != len(source.columns):
                    fault = f"{len(row)} fields where the header has {len(source.columns)}"
                    break
                if on_lines is not None and line - before > 1:
                    on_lines(number, tuple(row))
                yield tuple(row) if places is None else tuple([row[place] for place in places])
        except (csv.Error, UnicodeDecodeError):
            number, fault = number + 1, "it does not read as CSV"
    if fault:
        raise InputError(
            f"{source.label}, row {number}: {fault} (rows are counted from 1 after the header); is a quote or a "
            "delimiter wrong there?"
        )


def _parquet_batches(source: Source, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    size = max(1, min(_PARQUET_ROWS, _PIECE_CELLS // max(1, len(columns))))
    try:
        with pq.ParquetFile(source.path) as file:
            for batch in file.iter_batches(batch_size=size, columns=list(columns), use_threads=False):
                yield batch.select(list(columns))
    except (pa.ArrowException, OSError):
        pass
    else:
        return
    raise InputError(f"{source.label}: the Parquet file is damaged; write it anew")


def _readable(source: Source, schema: pa.Schema) -> pa.Schema:
    """The types that Python has values for: times of day to the nanosecond become text, which loses nothing.

    Raises:
        InputError: a column holds such times inside lists or records.
    """
    fields = []
    for field in schema:
        if field.type == _NANOSECONDS:
            field = pa.field(field.name, pa.string())
        elif _holds(field.type, _NANOSECONDS):
            raise InputError(
                f"{source.label}, column {field.name!r}: times to the nanosecond inside of {field.type} would be cut; "
                "write them as text"
            )
        fields.append(field)
    return pa.schema(fields)


def _holds(kind: pa.DataType, wanted: pa.DataType) -> bool:
    inner = [kind.field(at).type for at in range(kind.num_fields)]
    if isinstance(kind, pa.DictionaryType):
        inner = [kind.value_type]
    return any(entry == wanted or _holds(entry, wanted) for entry in inner)


def _values(source: Source, batch: pa.RecordBatch) -> Iterator[Row]:
    columns: list[list[Any]] = []
    for name in batch.schema.names:
        column = batch.column(name)
        try:
            columns.append((column.cast(pa.string()) if column.type == _NANOSECONDS else column).to_pylist())
        except (ValueError, OverflowError, KeyError):  # a day after the year 9999, no UTF-8, an unknown time zone
            break
    if len(columns) < batch.num_columns:
        name = batch.schema.names[len(columns)]
        raise InputError(f"{source.label}, column {name!r} holds dates or texts that cannot be read")
    return zip(*columns, strict=True)


def _any_bytes_do(batch: pa.RecordBatch, name: str) -> bool:
    """Whether whatever was decoded is a value: of numbers, as against texts, dates and what holds them."""
    kind = batch.schema.field(name).type
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def _parquet_text(source: Source, batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(name)
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    if pa.types.is_floating(column.type):
        column = pc.call_function("if_else", [pc.call_function("is_nan", [column]), None, column])
    readable = not pa.types.is_nested(column.type)
    try:
        column = column.cast(pa.string())
        column.validate(full=True)  # the library takes over bytes that are no UTF-8
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        readable = False
    if not readable:
        raise InputError(f"{source.label}, column {name!r}: type {column.type} does not read as text")
    return pc.call_function(
        "replace_substring", [column.fill_null("")], pc.ReplaceSubstringOptions(pattern="\0", replacement=" ")
    )


def _json_records(source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
    with source.open() as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            record: Any = None
            fault = "it is no JSON object"
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                record = json.loads(text, object_pairs_hook=_object, parse_constant=_no_number, parse_float=_number)
            except UnicodeDecodeError:
                fault = "it is no UTF-8"
            except (ValueError, RecursionError):
                fault = "it does not read as JSON, or has a key twice"
            if b"\\ud" in line.lower() and not _encodes(record):  # only an escape can make half a character
                record, fault = None, "it holds half of a surrogate pair"
            if not isinstance(record, dict):
                raise InputError(f"{source.label}, line {number}: {fault}; JSON Lines has one object a line")
            yield number, record


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, which would lose all but the last value of a key that comes twice."""
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError
    return record


def _number(text: str) -> float | Decimal:
    """A number as a float where that is the same number, else with all its digits."""
    value = float(text)
    return value if math.isfinite(value) and Decimal(repr(value)) == Decimal(text) else Decimal(text)


def _no_number(name: str) -> Any:
    """NaN and Infinity, which are no JSON (RFC 8259, section 6)."""
    raise ValueError


def _encodes(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return False
    return True


def _look_through_json(source: Source, wanted: Sequence[str]) -> tuple[Source, pa.Schema, int]:
    """The columns and their types, and the lines that hold a record."""
    kinds: dict[str, set[type]] = {}
    for number, record in _json_records(source):
        for name, value in record.items():
            kinds.setdefault(name, set()).add(type(value))
        for name in wanted:
            if isinstance(record.get(name), list | dict):
                raise InputError(f"{source.label}, line {number}, key {name!r}: no text")
        if len(kinds) > _MOST_COLUMNS:
            raise InputError(
                f"{source.label}, line {number}: over {_MOST_COLUMNS:,} different keys so far; is it a table?"
            )
    if not kinds:
        raise InputError(f"{source.label} has no records")
    schema = pa.schema([pa.field(name, _arrow_type(types)) for name, types in kinds.items()])
    return replace(source, columns=tuple(kinds)), schema, count_records(source)


def _arrow_type(kinds: set[type]) -> pa.DataType:
    """The type that holds every value of a key; text where there is none."""
    kinds = kinds - {type(None)}
    if kinds == {bool}:
        return pa.bool_()
    if kinds and kinds <= {float}:
        return pa.float64()
    return pa.string()  # integers too: JSON's have no bound
