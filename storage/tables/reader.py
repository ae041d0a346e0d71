"""Reads a table of any size: checks it once before work starts, then reads it in pieces.

A row is a tuple of values in the order of `Table.columns`: text from a CSV, what they are from Parquet and JSON Lines.
No message quotes a cell.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage.artifacts import file_digest
from storage.errors import InputError
from storage.tables import guarded
from storage.tables.options import AS_IT_LOOKS, ReadOptions
from storage.tables.source import (
    LONGEST_JSON,
    LONGEST_LINE,
    MOST_COLUMNS,
    Kind,
    Lines,
    Source,
    TooLong,
    bounded_lines,
    open_source,
    read_safely,
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
_JSON_CHUNK = 1 << 20
_PARQUET_MEMORY, _PARQUET_BYTES = 4 << 30, 256 << 20
"""Bytes of the process that checks a Parquet file, and of the rows that it reads at a time."""
_ROWS_A_BYTE, _FEW_ROWS = 8, 1_000_000
_NANOSECONDS: Final = pa.time64("ns")
"""Python's times end at the microsecond."""


class Marks:
    """Blanks the cells that say that there is no value, and counts them by column and mark."""

    def __init__(self, values: Collection[str], *, codes: Collection[str] = ()) -> None:
        self._values = pa.array(sorted(set(values) - set(codes)), pa.string())
        self.counts: dict[str, Counter[str]] = {}

    def blank(self, name: str, column: pa.Array) -> pa.Array:
        """Returns a column of texts without marks."""
        trimmed = pc.call_function("utf8_trim_whitespace", [column])
        marked = pc.call_function("is_in", [trimmed], pc.SetLookupOptions(self._values))
        if not pc.call_function("any", [marked]).as_py():
            return column
        values = trimmed.filter(marked).value_counts()
        self.counts.setdefault(name, Counter()).update({one["values"]: one["counts"] for one in values.to_pylist()})
        return pc.call_function("if_else", [marked, "", column])

    @property
    def sentence(self) -> str:
        """Says which marks were read as blank; empty where none was."""
        marks = [
            f"{name!r}: {', '.join(f'{mark} ({count:,})' for mark, count in counts.most_common())}"
            for name, counts in self.counts.items()
        ]
        return f"read as blank, by column: {'; '.join(marks)}" if marks else ""


@dataclass(frozen=True)
class Table:
    """Reads a table of counted rows from the first to the last, or raises."""

    source: Source
    columns: tuple[str, ...]
    rows: int
    """Counted on opening; `read` refuses to end at another number. Of several files together."""
    sha256: str
    schema: pa.Schema
    """Arrow types of the columns: text for a CSV; for JSON the type of all values of a key, or text."""
    skipped: int = 0
    """Bad rows that are skipped, where that was asked for."""
    options: ReadOptions = AS_IT_LOOKS
    """What was said of how to read it."""
    more: tuple[Table, ...] = ()
    """Further files with the same columns, read after this one."""

    @property
    def kind(self) -> Kind:
        """Returns the format."""
        return self.source.kind

    @property
    def files(self) -> tuple[Table, ...]:
        """Returns the table of each file."""
        return (replace(self, rows=self.rows - sum(part.rows for part in self.more), more=()), *self.more)

    @property
    def reading(self) -> list[str]:
        """Says how each file is read: name, rows, format, and rows that are skipped."""
        return [
            f"{part.source.path.name}: {part.rows:,} rows, {part.source.reading}"
            + (f", {part.skipped:,} bad rows skipped" if part.skipped else "")
            for part in self.files
        ]

    def read(self, columns: Sequence[str] | None = None) -> Generator[Row, None, None]:
        """Yields all rows, or these columns of all rows; refuses a malformed row, and another number than counted."""
        required = self.columns if columns is None else tuple(columns)
        for part in self.files:
            if part.kind == "parquet":
                batches = _parquet_batches(part.source, required)
                rows = (row for batch in batches for row in _values(part.source, batch))
            elif part.kind == "jsonl":
                records = _json_records(part.source, [0])
                rows = (tuple(record.get(name, ABSENT) for name in required) for _, record in records)
            else:
                everything = required == part.source.columns
                places = None if everything else [part.source.columns.index(name) for name in required]
                rows = _csv_rows(part.source, places, [0])
            yield from part._counted(rows)

    def texts(self, columns: Sequence[str], marks: Marks | None = None) -> Iterator[pa.RecordBatch]:
        """Yields the columns in this order, every cell a string and absent ones empty, for training and coding.

        Args:
            marks: read as blank.
        """
        for batch in self._texts(columns):
            arrays = batch.columns if marks is None else map(marks.blank, columns, batch.columns)
            yield pa.RecordBatch.from_arrays(list(arrays), names=list(columns))

    def _texts(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for part in self.files:
            yield from part._parquet_texts(columns) if part.kind == "parquet" else part._row_texts(columns)

    def _row_texts(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        for piece in pieces(self.read(columns), columns=len(columns)):
            cells = zip(*piece, strict=True)
            if self.kind == "jsonl":
                cells = (map(_as_text, column) for column in cells)
            yield pa.RecordBatch.from_arrays([pa.array(column, pa.string()) for column in cells], names=list(columns))

    def _parquet_texts(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        rows = 0
        for batch in _parquet_batches(self.source, self.columns):
            rows += batch.num_rows
            texts = [_parquet_text(self.source, batch, name) for name in columns]
            # Coding returns every column, so training also reads the others and refuses what coding would refuse.
            others = [name for name in self.columns if name not in columns]
            _values(self.source, batch.select([name for name in others if not _accepts_any_bytes(batch, name)]))
            yield pa.RecordBatch.from_arrays(texts, names=list(columns))
        self._reconcile(rows)

    def text_rows(self, columns: Sequence[str], marks: Marks | None = None) -> Generator[tuple[str, ...], None, None]:
        """Yields what `texts` does, row by row."""
        for batch in self.texts(columns, marks):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def marks(self, codes: Collection[str] = ()) -> Marks:
        """Returns the marks of missing values to read it with, but for those that are codes."""
        return Marks(self.options.missing, codes=codes)

    def changed(self) -> bool:
        """Checks whether a file has other bytes than when it was opened."""
        digests = [file_digest(part.source.path) for part in self.files]
        return (_together(digests) if self.more else digests[0]) != self.sha256

    def _counted(self, rows: Iterator[Row]) -> Generator[Row, None, None]:
        number = 0
        for number, row in enumerate(rows, start=1):  # noqa: B007  (its last value is the count)
            yield row
        self._reconcile(number)

    def _reconcile(self, rows: int) -> None:
        # guard: test_rows_that_come_or_go_between_count_and_reading
        if rows != self.rows:
            raise InputError(
                f"{self.source.label}: {rows:,} rows were read where {self.rows:,} were counted: it changed during "
                "reading or is damaged. Run again, or write it again"
            )


def open_table(
    path: Path | Sequence[Path],
    required: Sequence[str],
    *,
    option: str = "data",
    column_options: Mapping[str, str] | None = None,
    read: ReadOptions = AS_IT_LOOKS,
) -> Table:
    """Opens a table of one or more files, determines its encoding and reads it to its end, which counts its rows.

    The columns `required` must exist. Messages name the options by which file and columns were given.
    """
    paths = [path] if isinstance(path, Path) else list(path)
    if len({file.resolve() for file in paths}) < len(paths):
        raise InputError(f"{option}: a file is named twice. Name each once")
    tables = [_open_file(file, required, option, column_options, read) for file in paths]
    first = tables[0]
    for table in tables[1:]:
        if (
            sorted(table.columns) != sorted(first.columns)
            or table.kind != first.kind
            or (table.kind == "parquet" and table.schema.select(first.columns) != first.schema)
        ):
            raise InputError(
                f"{table.source.label} has other columns than {first.source.path.name} ({len(table.columns)} and "
                f"{len(first.columns)}), or another format. Give files of one layout"
            )
    if len(tables) == 1:
        return first
    return replace(
        first,
        source=replace(first.source, beside=len(tables) - 1),
        rows=sum(table.rows for table in tables),
        sha256=_together([table.sha256 for table in tables]),
        skipped=first.skipped,
        more=tuple(tables[1:]),
    )


def _together(digests: Sequence[str]) -> str:
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _open_file(
    path: Path, required: Sequence[str], option: str, column_options: Mapping[str, str] | None, read: ReadOptions
) -> Table:
    source, skipped = open_source(path, option, read, required), [0]
    sha256 = file_digest(path)
    if source.kind == "jsonl":
        source, schema, rows = _scan_json(source, required, skipped)
        require_columns(source, required, column_options)
    elif source.kind == "parquet":
        _check_memory(source, sha256)
        with pq.ParquetFile(path) as file:
            schema, rows = _readable(source, file.schema_arrow), file.metadata.num_rows
        if len(set(schema.names)) < len(schema.names):
            raise InputError(f"{source.label} has a column name twice. Rename one")
        require_columns(source, required, column_options)
    else:
        require_columns(source, required, column_options)
        source = scan(source, read)
        schema = pa.schema([pa.field(name, pa.string()) for name in source.columns])
        rows = read_safely(source, lambda: sum(1 for _ in _csv_rows(source, [], skipped)))
        if not rows:
            raise InputError(f"{source.label} has a header and no records. Give a file of records")
    return Table(source, source.columns, rows, sha256, schema, skipped[0], read)


def survey(
    path: Path | Sequence[Path],
    *,
    text_columns: Sequence[str],
    option: str = "data",
    column_options: Mapping[str, str] | None = None,
    read: ReadOptions = AS_IT_LOOKS,
) -> Table:
    """Reads a table to its end, so that its faults show before work starts."""
    table = open_table(path, text_columns, option=option, column_options=column_options, read=read)
    if table.kind == "parquet":
        for _ in table.texts(text_columns) if text_columns else ():
            pass
        for _ in table.read():
            pass
    return table


def read_small(
    path: Path, required: Sequence[str], *, option: str, read: ReadOptions = AS_IT_LOOKS
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Returns the columns and all rows, as text, of a small table that is not a file of records."""
    if path.is_file() and path.stat().st_size > _SMALL:
        raise InputError(f"{option}: {path} has over {_SMALL >> 20} MB. Give a smaller file, not the data file")
    table = open_table(path, required, option=option, read=read)
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


def _csv_rows(source: Source, places: Sequence[int] | None, skipped: list[int]) -> Iterator[Row]:
    """Yields the rows of a CSV, or these cells of them.

    Args:
        skipped: its first number is raised by each bad row that is skipped, where the source says so.
    """
    fault, number, line, width = "", 0, 0, len(source.columns)
    with source.text() as text:
        lines = Lines(text, LONGEST_LINE)
        for _ in range(source.skip):
            next(lines, None)
            lines.end_record()
        reader = csv.reader(lines, **source.dialect)
        header = not source.named
        while not fault:
            try:
                for row in reader:
                    lines.end_record()
                    before, line = line, reader.line_num
                    if not row:
                        continue
                    if header:
                        header = False
                        continue
                    number += 1
                    if source.blank_end and len(row) == width + 1 and not row[-1].strip():
                        row.pop()
                    # guard: an open quote is told by its lines
                    if len(row) == width and line - before > 1 and (inside := _records_inside(row, source.delimiter)):
                        raise InputError(
                            f"{source.label}, row {number}: a cell has line breaks, and {inside} of its lines read as "
                            "records. Close an open quote"
                        )
                    if len(row) != width:
                        fault = f"{len(row)} fields where the header has {width}"
                    if not fault:
                        yield tuple(row) if places is None else tuple([row[place] for place in places])
                    elif source.skips_bad_rows:
                        skipped[0], fault = skipped[0] + 1, ""
                    else:
                        break
                break
            except csv.Error:
                number += 1
                fault = f"it is not valid CSV, or has a cell of over {LONGEST_LINE:,} characters"
                # A quote that is open at the end has swallowed rows, which must not be skipped unseen.
                if source.skips_bad_rows and reader.line_num - line == 1:
                    skipped[0], fault, line = skipped[0] + 1, "", reader.line_num
                    lines.end_record()
            except TooLong:
                number, fault = number + 1, f"over {LONGEST_LINE:,} characters in one line or record"
    if fault:
        raise InputError(
            f"{source.label}, row {number}: {fault} (rows are counted from 1 after the header). It was read as "
            f"{source.reading}. Correct the quotes and delimiters there, name others (--read separator=…, quotes=…), "
            "or skip such rows (--read bad_rows=skip)"
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
    """Refuses a Parquet file that takes more memory than its reader could hold."""
    rows = pq.read_metadata(source.path).num_rows
    if rows > max(_FEW_ROWS, _ROWS_A_BYTE * source.path.stat().st_size):
        raise InputError(f"{source.label}: {rows:,} rows in so small a file. Give a file of records")
    settings = map(str, (_PARQUET_MEMORY, _PARQUET_ROWS, _PARQUET_BYTES))
    program = [sys.executable, "-I", guarded.__file__, "parquet", *settings]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    with source.path.open("rb") as file:
        done = subprocess.run(program, stdin=file, env=environment, capture_output=True, check=False)
    if done.returncode:
        raise InputError(
            f"{source.label}: {_PARQUET_ROWS} of its rows take over {_PARQUET_BYTES >> 20} MB unpacked, or it is "
            "damaged. Shorten its cells, or give a CSV"
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


def _json_records(source: Source, skipped: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields each object with its number: of its line, or of its place in the array."""
    place = "record" if source.array else "line"
    for number, text in _json_texts(source):
        record: Any = None
        fault = "it is not a JSON object"
        try:
            record = json.loads(text, object_pairs_hook=_object, parse_constant=_no_number, parse_float=_number)
        except _NotANumber:
            fault = "it has NaN or Infinity, which JSON lacks. Write null"
        except (ValueError, ArithmeticError, RecursionError):
            fault = "it is not valid JSON, or has a key twice"
        if "\\ud" in text.lower() and not _encodes(record):  # only an escape can make half a character
            record, fault = None, "it has half of a surrogate pair"
        if isinstance(record, dict):
            yield number, record
        elif source.skips_bad_rows:
            skipped[0] += 1
        else:
            raise InputError(f"{source.label}, {place} {number}: {fault}. Write one object per {place}")


def _json_texts(source: Source) -> Iterator[tuple[int, str]]:
    if source.array:
        yield from _array_texts(source)
        return
    with source.open() as file:
        for number, line in enumerate(bounded_lines(file, source.label, LONGEST_JSON), start=1):
            fault = ""
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                text, fault = "", "it is not UTF-8"
            if fault:
                raise InputError(f"{source.label}, line {number}: {fault}. Write one object per line")
            if text.strip():
                yield number, text


_BETWEEN = re.compile(r"[\s,]*")


def _array_texts(source: Source) -> Iterator[tuple[int, str]]:
    """Yields the texts of an array's records; holds a chunk and a record."""
    decoder, number, fault = json.JSONDecoder(), 0, ""
    with source.open() as raw:
        stream = codecs.getreader("utf-8-sig")(raw)
        held, ended = read_safely(source, lambda: stream.read(_JSON_CHUNK)).lstrip(), False
        at = 1
        if not held.startswith("["):
            fault = "one JSON object, not a list of records. Write an array of objects, or one object per line"
        while not fault:
            at = _BETWEEN.match(held, at).end()  # pyrefly: ignore[missing-attribute]
            if held.startswith("]", at):
                return
            end = at
            with suppress(ValueError, RecursionError):
                _, end = decoder.raw_decode(held, at)
            if 0 < end - at <= LONGEST_JSON:
                number += 1
                yield number, held[at:end]
                at = end
                continue
            if ended or max(end, len(held)) - at > LONGEST_JSON:
                fault = f"record {number + 1} is not valid JSON, or has over {LONGEST_JSON:,} characters. Correct it"
            chunk = read_safely(source, lambda: stream.read(_JSON_CHUNK))
            held, at, ended = held[at:] + chunk, 0, not chunk
    raise InputError(f"{source.label}: {fault}")


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


class _NotANumber(Exception):
    pass


def _no_number(name: str) -> Any:
    """Refuses NaN and Infinity, which JSON lacks (RFC 8259, section 6)."""
    raise _NotANumber


def _encodes(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return False
    return True


def _scan_json(source: Source, required: Sequence[str], skipped: list[int]) -> tuple[Source, pa.Schema, int]:
    """Returns the source with its columns, their types, and the number of records."""
    kinds: dict[str, set[type]] = {}
    characters = rows = 0
    place = "record" if source.array else "line"
    for number, record in _json_records(source, skipped):
        rows += 1
        for name, value in record.items():
            if name not in kinds:
                kinds[name], characters = set(), characters + len(name)
            kinds[name].add(type(value))
        for name in required:
            if isinstance(record.get(name), list | dict):
                raise InputError(f"{source.label}, {place} {number}, key {name!r}: a list or an object. Give text")
        if len(kinds) > MOST_COLUMNS or characters > LONGEST_LINE:
            raise InputError(
                f"{source.label}, {place} {number}: over {MOST_COLUMNS:,} different keys, or long ones. Give a table"
            )
    if not kinds:
        raise InputError(f"{source.label} has no records. Give a file of records")
    schema = pa.schema([pa.field(name, _arrow_type(types)) for name, types in kinds.items()])
    return replace(source, columns=tuple(kinds)), schema, rows


def _arrow_type(kinds: set[type]) -> pa.DataType:
    """Returns the type of every value of a key; text where there is none."""
    kinds = kinds - {type(None)}
    if kinds == {bool}:
        return pa.bool_()
    if kinds and kinds <= {float}:
        return pa.float64()
    return pa.string()  # integers too: JSON's have no bound
