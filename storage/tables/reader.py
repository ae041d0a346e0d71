"""Reads a table of any size: checks it once before work starts, then reads it in pieces.

A row is a tuple of values in the order of `Table.columns`: text from a CSV, what they are from Parquet and JSON Lines.
No message quotes a cell.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.artifacts import file_digest
from storage.errors import InputError
from storage.tables import memory_check
from storage.tables.memory_check import Lines, TooLong
from storage.tables.source import (
    LONGEST_LINE,
    MOST_COLUMNS,
    Kind,
    Source,
    bounded_lines,
    count_records,
    open_source,
    require_columns,
    scan,
)

Row = tuple[Any, ...]
ABSENT: Final = "\x00absent\x00"
"""Marks a key that a JSON object lacks; no cell equals it, since the reader refuses or replaces NUL."""

_SMALL = 64 << 20
_PIECE_CELLS = 1 << 20
_PIECE_CHARACTERS = 1 << 24
_PIECE_ROWS = 2048
_PARQUET_ROWS = 256
_PARQUET_MEMORY, _PARQUET_BYTES = 4 << 30, 256 << 20
"""Bytes of the process that checks a Parquet file, and of the rows that it reads at a time."""
_TEXT_MEMORY, _OWN_BOUND = 1 << 30, 1 << 20
"""Bytes of the process that checks a CSV or JSON Lines; a file unpacked to fewer than the second is its own bound."""
_TOO_LONG = 2
_ROWS_A_BYTE, _FEW_ROWS = 8, 1_000_000
_NANOSECONDS: Final = pa.time64("ns")
"""Python's times end at the microsecond."""


@dataclass(frozen=True)
class Table:
    """Reads a table of counted rows from the first to the last, or raises."""

    source: Source
    columns: tuple[str, ...]
    rows: int
    """Counted independently of `read`, which refuses to end at another number."""
    sha256: str
    schema: pa.Schema
    """Arrow types of the columns: text for a CSV; for JSON the type of all values of a key, or text."""

    @property
    def kind(self) -> Kind:
        """Returns the format."""
        return self.source.kind

    def read(self, columns: Sequence[str] | None = None) -> Generator[Row, None, None]:
        """Yields all rows, or these columns of all rows; refuses a malformed row, and another number than counted."""
        required = self.columns if columns is None else tuple(columns)
        if self.source.kind == "parquet":
            batches = _parquet_batches(self.source, required)
            rows = (row for batch in batches for row in _values(self.source, batch))
        elif self.source.kind == "jsonl":
            records = _json_records(self.source)
            rows = (tuple(record.get(name, ABSENT) for name in required) for _, record in records)
        else:
            places = None if columns is None else [self.columns.index(name) for name in required]
            rows = _csv_rows(self.source, places)
        return self._counted(rows)

    def texts(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yields the columns in this order, every cell a string and absent ones empty, for training and coding."""
        if self.source.kind == "parquet":
            rows = 0
            for batch in _parquet_batches(self.source, self.columns):
                rows += batch.num_rows
                texts = [_parquet_text(self.source, batch, name) for name in columns]
                # Coding returns every column, so training also reads the others and refuses what coding would refuse.
                others = [name for name in self.columns if name not in columns]
                _values(self.source, batch.select([name for name in others if not _accepts_any_bytes(batch, name)]))
                yield pa.RecordBatch.from_arrays(texts, names=list(columns))
            self._reconcile(rows)
            return
        for piece in pieces(self.read(columns), columns=len(columns)):
            cells = zip(*piece, strict=True)
            if self.kind == "jsonl":
                cells = (map(_as_text, column) for column in cells)
            texts = [pa.array(column, pa.string()) for column in cells]
            yield pa.RecordBatch.from_arrays(texts, names=list(columns))

    def text_rows(self, columns: Sequence[str]) -> Generator[tuple[str, ...], None, None]:
        """Yields what `texts` does, row by row."""
        for batch in self.texts(columns):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def _counted(self, rows: Iterator[Row]) -> Generator[Row, None, None]:
        number = 0
        for number, row in enumerate(rows, start=1):  # noqa: B007  (its last value is the count)
            yield row
        self._reconcile(number)

    def _reconcile(self, rows: int) -> None:
        # guard: rows are counted twice
        if rows != self.rows:
            raise InputError(
                f"{self.source.label}: {rows:,} rows were read where {self.rows:,} were counted: it changed during "
                "reading or is damaged. Run again, or write it again"
            )


def open_table(
    path: Path, required: Sequence[str], *, option: str = "data", column_options: Mapping[str, str] | None = None
) -> Table:
    """Opens a table, determines its encoding and counts its rows; reads JSON Lines to their end.

    The columns `required` must exist. Messages name the options by which file and columns were given.
    """
    csv.field_size_limit(LONGEST_LINE)  # Python's default refuses 131,073 characters
    source = open_source(path, option)
    sha256 = file_digest(path)
    if source.kind == "jsonl":
        _check_memory(source, sha256)
        source, schema, rows = _scan_json(source, required)
    elif source.kind == "parquet":
        _check_memory(source, sha256)
        with pq.ParquetFile(path) as file:
            schema, rows = _readable(source, file.schema_arrow), file.metadata.num_rows
        if len(set(schema.names)) < len(schema.names):
            raise InputError(f"{source.label} has a column name twice. Rename one")
    else:
        source = scan(source)
        _check_memory(source, sha256)
        schema, rows = pa.schema([pa.field(name, pa.string()) for name in source.columns]), count_records(source)
    require_columns(source, required, column_options)
    return Table(source, source.columns, rows, sha256, schema)


def survey(
    path: Path, *, text_columns: Sequence[str], option: str = "data", column_options: Mapping[str, str] | None = None
) -> Table:
    """Reads a table to its end, so that its faults show before work starts."""
    table = open_table(path, text_columns, option=option, column_options=column_options)
    for _ in table.texts(text_columns) if text_columns and table.kind == "parquet" else ():
        pass
    for _ in table.read():
        pass
    return table


def read_small(path: Path, required: Sequence[str], *, option: str) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Returns the columns and all rows, as text, of a small table that is not a file of records."""
    if path.is_file() and path.stat().st_size > _SMALL:
        raise InputError(f"{option}: {path} has over {_SMALL >> 20} MB. Give a smaller file, not the data file")
    table = open_table(path, required, option=option)
    return table.columns, list(table.text_rows(table.columns))


def pieces(rows: Iterator[Row], *, columns: int) -> Iterator[list[Row]]:
    """Yields rows in lists of bounded size: by their number, their cells and their characters of text.

    The cuts depend on the rows alone, so that a second reading gives the same pieces.
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
"""Characters that one of a nested value's text counts for: an empty list takes 64 bytes, and its text has four."""


def _weight(value: Any) -> int:
    """Returns the characters that a value counts for; numbers are bounded by their cells."""
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, Decimal):
        return len(str(value))
    return _OF_NESTED * len(str(value)) if isinstance(value, list | dict) else 0


def _as_text(value: Any) -> str:
    """Returns a cell as text: absent values are blank, NUL characters become blanks."""
    if isinstance(value, str):
        return "" if value == ABSENT else value.replace("\0", " ")
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _csv_rows(source: Source, places: Sequence[int] | None) -> Iterator[Row]:
    fault, number, line = "", 0, 0
    with source.text() as text:
        lines = Lines(text, LONGEST_LINE)
        reader = csv.reader(lines, delimiter=source.delimiter, strict=True)
        try:
            for _ in islice((row for row in reader if row), 1):
                pass  # the header
            lines.end_record()
            for row in reader:
                lines.end_record()
                before, line = line, reader.line_num
                if not row:
                    continue
                number += 1
                if len(row) != len(source.columns):
                    fault = f"{len(row)} fields where the header has {len(source.columns)}"
                    break
                # guard: an open quote is told by its lines
                if line - before > 1 and (swallowed := _records_inside(row, source.delimiter)):
                    fault = f"a cell has line breaks, and {swallowed} of its lines read as records. Close an open quote"
                    break
                yield tuple(row) if places is None else tuple([row[place] for place in places])
        except (csv.Error, UnicodeDecodeError):
            number, fault = number + 1, f"it is not valid CSV, or has a cell of over {LONGEST_LINE:,} characters"
        except TooLong:
            number, fault = number + 1, f"over {LONGEST_LINE:,} characters"
    if fault:
        raise InputError(
            f"{source.label}, row {number}: {fault} (rows are counted from 1 after the header). "
            "Correct the quotes and delimiters there"
        )


_MANY_LINES = 5


def _records_inside(row: Sequence[str], delimiter: str) -> int:
    """Counts the records that a cell swallowed: a quote left open that met another makes one valid cell of rows.

    Its lines then have just the delimiters that complete the row before it, of whole records, and of the row's rest.
    Texts of several lines may have them by chance, so that another cell of each has to look alike where lines are few.
    """
    for at, cell in enumerate(row):
        lines = [line for line in re.split(r"\r\n|\n|\r", cell) if line]
        behind = len(row) - 1 - at
        expected = [behind, *[len(row) - 1] * (len(lines) - 2), at]
        if len(row) < 2 or len(lines) < 2 or [line.count(delimiter) for line in lines] != expected:
            continue
        first, *inner, last = (line.split(delimiter) for line in lines)
        records = [[*row[:at], *first], *inner, [*last, *row[at + 1 :]]]
        looks = [{_look(record[n]) for record in records} for n in range(len(row)) if n != at]
        alike = [look.pop() for look in looks if len(look) == 1]
        # Two records are told by a cell with digits, as a number, a date or a code; more by any that is not blank.
        if len(lines) >= _MANY_LINES or any(words == 1 and (digits or inner) for words, digits in alike):
            return len(lines)
    return 0


def _look(cell: str) -> tuple[int, bool]:
    return len(cell.split()), any(character.isdigit() for character in cell)


@lru_cache(maxsize=64)
def _check_memory(source: Source, sha256: str) -> None:
    """Refuses a table that takes more memory than its reader could hold: a program of limited memory reads it first."""
    options: tuple[str, ...] = ()
    if source.kind == "parquet":
        rows = pq.read_metadata(source.path).num_rows
        if rows > max(_FEW_ROWS, _ROWS_A_BYTE * source.path.stat().st_size):
            raise InputError(f"{source.label}: {rows:,} rows in so small a file. Give a file of records")
        settings = [_PARQUET_MEMORY, _PARQUET_ROWS, _PARQUET_BYTES]
        fault = f"{_PARQUET_ROWS} of its rows take over {_PARQUET_BYTES >> 20} MB unpacked, or it is damaged"
    else:
        if source.bytes < _OWN_BOUND:
            return
        encoding = "utf-8-sig" if source.encoding == "utf-8" else source.encoding
        member = [] if source.member is None else [source.member]
        settings = [_TEXT_MEMORY, LONGEST_LINE, encoding, source.delimiter, *member]
        fault = f"a record takes over {_TEXT_MEMORY >> 20} MB of memory"
        options = ("-S",)  # the standard library is all that it needs
    program = [sys.executable, "-I", *options, str(Path(memory_check.__file__)), source.kind, *map(str, settings)]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    with source.path.open("rb") as file:
        done = subprocess.run(program, stdin=file, env=environment, capture_output=True, check=False)
    if done.returncode == _TOO_LONG:
        line = f"{source.label}, line {int(done.stdout)}"
        raise InputError(
            f"{line}: over {LONGEST_LINE:,} characters in one line or record. Shorten it, or close a quote"
        )
    if done.returncode:
        raise InputError(f"{source.label}: {fault}. Shorten its cells, or give a CSV")


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
    raise InputError(f"{source.label}: the Parquet file is damaged. Write it again")


def _readable(source: Source, schema: pa.Schema) -> pa.Schema:
    """Returns types that Python has values for: times of day to the nanosecond become text, which loses nothing."""
    fields = []
    for field in schema:
        if field.type == _NANOSECONDS:
            field = pa.field(field.name, pa.string())
        elif _contains_type(field.type, _NANOSECONDS):
            raise InputError(
                f"{source.label}, column {field.name!r}: times to the nanosecond inside of {field.type} would be cut. "
                "Write them as text"
            )
        fields.append(field)
    return pa.schema(fields)


def _contains_type(kind: pa.DataType, searched: pa.DataType) -> bool:
    inner = [kind.field(at).type for at in range(kind.num_fields)]
    if isinstance(kind, pa.DictionaryType):
        inner = [kind.value_type]
    return any(entry == searched or _contains_type(entry, searched) for entry in inner)


def _values(source: Source, batch: pa.RecordBatch) -> Iterator[Row]:
    columns: list[list[Any]] = []
    for name in batch.schema.names:
        column = batch.column(name)
        try:
            columns.append((column.cast(pa.string()) if column.type == _NANOSECONDS else column).to_pylist())
        except (ValueError, OverflowError, KeyError):  # a day after the year 9999, not UTF-8, an unknown time zone
            break
    if len(columns) < batch.num_columns:
        name = batch.schema.names[len(columns)]
        raise InputError(
            f"{source.label}, column {name!r} has dates or texts that cannot be read. Write it as valid text"
        )
    return zip(*columns, strict=True)


def _accepts_any_bytes(batch: pa.RecordBatch, name: str) -> bool:
    """Checks whether any bytes of a column are valid values: true for numbers, not for texts, dates and nested ones."""
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
        column.validate(full=True)  # the library accepts bytes that are not UTF-8
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        readable = False
    if not readable:
        raise InputError(f"{source.label}, column {name!r}: type {column.type} cannot become text. Write it as text")
    return pc.call_function(
        "replace_substring", [column.fill_null("")], pc.ReplaceSubstringOptions(pattern="\0", replacement=" ")
    )


def _json_records(source: Source) -> Iterator[tuple[int, dict[str, Any]]]:
    with source.open() as file:
        for number, line in enumerate(bounded_lines(file, source.label), start=1):
            if not line.strip():
                continue
            record: Any = None
            fault = "it is not a JSON object"
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                record = json.loads(text, object_pairs_hook=_object, parse_constant=_no_number, parse_float=_number)
            except UnicodeDecodeError:
                fault = "it is not UTF-8"
            except (ValueError, RecursionError):
                fault = "it is not valid JSON, or has a key twice"
            if b"\\ud" in line.lower() and not _encodes(record):  # only an escape can make half a character
                record, fault = None, "it has half of a surrogate pair"
            if not isinstance(record, dict):
                raise InputError(f"{source.label}, line {number}: {fault}. Write one object per line")
            yield number, record


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Builds a JSON object; refuses a repeated key, of which a mapping would have the last value only."""
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError
    return record


def _number(text: str) -> float | Decimal:
    """Returns a float where it is the same number, otherwise a decimal with all its digits."""
    value = float(text)
    return value if math.isfinite(value) and Decimal(repr(value)) == Decimal(text) else Decimal(text)


def _no_number(name: str) -> Any:
    """Refuses NaN and Infinity, which JSON lacks (RFC 8259, section 6)."""
    raise ValueError


def _encodes(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return False
    return True


def _scan_json(source: Source, required: Sequence[str]) -> tuple[Source, pa.Schema, int]:
    """Returns the source with its columns, their types, and the number of records."""
    kinds: dict[str, set[type]] = {}
    characters = 0
    for number, record in _json_records(source):
        for name, value in record.items():
            if name not in kinds:
                kinds[name], characters = set(), characters + len(name)
            kinds[name].add(type(value))
        for name in required:
            if isinstance(record.get(name), list | dict):
                raise InputError(f"{source.label}, line {number}, key {name!r}: a list or an object. Give text")
        if len(kinds) > MOST_COLUMNS or characters > LONGEST_LINE:
            raise InputError(
                f"{source.label}, line {number}: over {MOST_COLUMNS:,} different keys, or long ones. Give a table"
            )
    if not kinds:
        raise InputError(f"{source.label} has no records. Give a file of records")
    schema = pa.schema([pa.field(name, _arrow_type(types)) for name, types in kinds.items()])
    return replace(source, columns=tuple(kinds)), schema, count_records(source)


def _arrow_type(kinds: set[type]) -> pa.DataType:
    """Returns the type of every value of a key; text where there is none."""
    kinds = kinds - {type(None)}
    if kinds == {bool}:
        return pa.bool_()
    if kinds and kinds <= {float}:
        return pa.float64()
    return pa.string()  # integers too: JSON's have no bound
