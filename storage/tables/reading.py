"""A table of any size, looked through once before work starts, then read in pieces.

A row is a tuple of values in the order of `Table.columns`: text from a CSV, what they are from Parquet and JSON Lines.
No message quotes a cell.
"""

from __future__ import annotations

import csv
import difflib
import io
import json
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from storage.artifacts import file_digest
from storage.errors import InputError
from storage.ingest.source import Source, open_source, safely, scan

Kind = Literal["csv", "parquet", "jsonl"]
Row = tuple[Any, ...]

JSON_LINES: Final = {".jsonl", ".ndjson"}
ABSENT: Final = "\x00absent\x00"
"""Stands for a key that a JSON object lacks; no cell equals it, since the reader refuses or replaces NUL."""

_MOST_COLUMNS = 100_000
_PIECE_CELLS = 1 << 20
_PIECE_CHARACTERS = 1 << 24
_PIECE_ROWS = 2048
_PARQUET_ROWS = 256


@dataclass(frozen=True)
class Table:
    """A table that has been looked through: it reads from the first row to the last."""

    source: Source
    kind: Kind
    columns: tuple[str, ...]
    rows: int
    sha256: str
    schema: pa.Schema
    """Arrow types of the columns: text for a CSV; for JSON what every value of a key is, else text."""

    def read(self, columns: Sequence[str] | None = None) -> Generator[Row, None, None]:
        """All rows, or of all rows these columns.

        Raises:
            InputError: the file is another than it was.
        """
        wanted = self.columns if columns is None else tuple(columns)
        if self.kind == "parquet":
            yield from _parquet_rows(self.source, wanted)
        elif self.kind == "jsonl":
            for _, record in _json_records(self.source.path):
                yield tuple(record.get(name, ABSENT) for name in wanted)
        elif columns is None:
            yield from _csv_rows(self.source)
        else:
            places = [self.columns.index(name) for name in wanted]
            yield from (tuple(row[place] for place in places) for row in _csv_rows(self.source))


def survey(path: Path, *, text_columns: Sequence[str]) -> Table:
    """Read a table to its end, keeping nothing but what `Table` says.

    Raises:
        InputError: no such file or column, or a row that does not read; names the row, counted from 1.
    """
    csv.field_size_limit(sys.maxsize)  # a narrative may have any length; Python's default refuses 131,073 characters
    digest = file_digest(path) if path.is_file() else ""
    if path.suffix.lower() in JSON_LINES:
        return _survey_json(path, text_columns, digest)
    source = open_source(path)
    if source.kind == "parquet":
        _require(source.columns, text_columns, path)
        with pq.ParquetFile(source.path) as file:
            schema, rows = file.schema_arrow, 0
        twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if twice:
            raise InputError(f"data: {source.name} has the column {twice[0]!r} twice; rename one")
        for name in text_columns:
            kind = schema.field(name).type
            if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
                raise InputError(f"data: {source.name}, column {name!r}: type {kind} does not read as text")
        with closing(_parquet_rows(source, tuple(schema.names))) as read:
            rows = sum(1 for _ in read)
        return Table(source, "parquet", tuple(schema.names), rows, digest, schema)
    source = scan(source)
    _require(source.columns, text_columns, path)
    with closing(_csv_rows(source)) as read:
        rows = sum(1 for _ in read)
    schema = pa.schema([pa.field(name, pa.string()) for name in source.columns])
    return Table(source, "csv", source.columns, rows, digest, schema)


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


def as_text(value: Any) -> str:
    """A cell as the coder reads it: absent values are blank, NUL characters become blanks."""
    if value is None or value is ABSENT or value == ABSENT:
        return ""
    return str(value).replace("\0", " ")


def _require(columns: Sequence[str], wanted: Sequence[str], path: Path) -> None:
    for name in wanted:
        if columns.count(name) == 1:
            continue
        if name in columns:
            raise InputError(f"data: {path} has the column {name!r} twice; rename one")
        near = difflib.get_close_matches(name, columns, n=1)
        # The other names stay unsaid: without a header line they are a record.
        hint = f"did you mean {near[0]!r}?" if near else f"its header names {len(columns):,} others"
        raise InputError(f"data: {path} has no column {name!r}; {hint}")


def _csv_rows(source: Source) -> Generator[Row, None, None]:
    encoding = "utf-8-sig" if source.encoding == "utf-8" else source.encoding
    fault, number = "", 0
    with source.open() as raw, io.TextIOWrapper(raw, encoding=encoding, newline="") as text:
        reader = csv.reader(text, delimiter=source.delimiter, strict=True)
        try:
            for _ in islice((row for row in reader if row), 1):
                pass  # the header
            for row in reader:
                if not row:
                    continue
                number += 1
                if len(row) != len(source.columns):
                    fault = f"{len(row)} fields where the header has {len(source.columns)}"
                    break
                yield tuple(row)
        except (csv.Error, UnicodeDecodeError):
            number, fault = number + 1, "it does not read as CSV"
    if fault:
        raise InputError(
            f"data: {source.name}, row {number}: {fault} (rows are counted from 1 after the header); is a quote or a "
            "delimiter wrong there?"
        )


def _parquet_rows(source: Source, columns: tuple[str, ...]) -> Generator[Row, None, None]:
    def damaged() -> InputError:
        return InputError(f"data: {source.name}: the Parquet file is damaged; write it anew")

    try:
        file = pq.ParquetFile(source.path)
    except (pa.ArrowException, OSError):
        raise damaged() from None
    size = max(1, min(_PARQUET_ROWS, _PIECE_CELLS // max(1, len(columns))))
    with file:
        batches = file.iter_batches(batch_size=size, columns=list(columns), use_threads=False)
        while True:
            try:
                batch = safely(source, lambda: next(batches, None))
                if batch is None:
                    return
                values = [batch.column(name).to_pylist() for name in columns]
            except OSError:
                raise damaged() from None
            yield from zip(*values, strict=True)


def _json_records(path: Path) -> Generator[tuple[int, dict[str, Any]], None, None]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            record: Any = None
            fault = "it is no JSON object"
            try:
                record = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError:
                fault = "it is no UTF-8"
            except (ValueError, RecursionError):
                fault = "it does not read as JSON"
            if b"\\ud" in line.lower() and not _encodes(record):  # only an escape can make half a character
                record, fault = None, "it holds half of a surrogate pair"
            if not isinstance(record, dict):
                raise InputError(f"data: {path}, line {number}: {fault}; JSON Lines has one object a line")
            yield number, record


def _encodes(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _survey_json(path: Path, text_columns: Sequence[str], digest: str) -> Table:
    if not path.is_file():
        raise InputError(f"data: no file {path}")
    found: dict[str, set[type]] = {}
    rows = 0
    for number, record in _json_records(path):
        rows += 1
        for name, value in record.items():
            found.setdefault(name, set()).add(type(value))
        if len(found) > _MOST_COLUMNS:
            raise InputError(
                f"data: {path}, line {number}: over {_MOST_COLUMNS:,} different keys so far; is it a table?"
            )
        for name in text_columns:
            if isinstance(record.get(name), list | dict):
                raise InputError(f"data: {path}, line {number}, key {name!r}: no text")
    if not rows:
        raise InputError(f"data: {path} has no records")
    source = Source(path, "csv", tuple(found), path.stat().st_size, rows)
    _require(source.columns, text_columns, path)
    schema = pa.schema([pa.field(name, _arrow_type(kinds)) for name, kinds in found.items()])
    return Table(source, "jsonl", tuple(found), rows, digest, schema)


def _arrow_type(kinds: set[type]) -> pa.DataType:
    """The type that holds every value of a key; text where there is none."""
    kinds = kinds - {type(None)}
    if kinds == {bool}:
        return pa.bool_()
    if kinds and kinds <= {float}:
        return pa.float64()
    return pa.string()  # integers too: JSON's have no bound
