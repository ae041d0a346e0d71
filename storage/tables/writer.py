"""Writes rows as JSON Lines, Parquet, or CSV without executable formulas."""

import base64
import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import OutOfRange
from storage.tables.formulas import escape_formula
from storage.tables.json_rows import ABSENT
from storage.tables.reader import Row
from storage.tables.source import JSON_LINES, Kind

_LINES: dict[str, Kind] = dict.fromkeys(JSON_LINES, "jsonl")
_SUFFIXES: dict[str, Kind] = {".csv": "csv", ".parquet": "parquet", **_LINES}


Writer = Callable[[Sequence[Row]], object]
"""Writes rows, in order."""


def output_kind(path: Path) -> Kind:
    kind = _SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise OutOfRange(
            f"--out: {path.name} has another ending. Use {', '.join(_SUFFIXES)}",
            kind="output-ending",
        )
    return kind


@contextmanager
def open_writer(path: Path, kind: Kind, schema: pa.Schema) -> Iterator[Writer]:
    if kind == "parquet":
        with pq.ParquetWriter(path, schema, compression="zstd") as parquet:
            yield lambda rows: parquet.write_table(_arrow(rows, schema)) if rows else None
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        if kind == "csv":
            file.write(csv_lines([tuple(schema.names)]))
            yield lambda rows: file.write(csv_lines(rows))
        else:
            yield lambda rows: file.writelines(_json_line(schema.names, row) for row in rows)


def csv_lines(rows: Iterable[Row]) -> str:
    """Rows as lines of a CSV, with cells escaped so that no spreadsheet program evaluates a
    formula.
    """
    text = io.StringIO(newline="")
    lines = csv.writer(
        text
    )  # ends lines with CR LF (RFC 4180): with only LF it would leave a bare CR unquoted
    lines.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> str:
    if value is None or value == ABSENT:
        return ""
    if isinstance(value, str):
        return escape_formula(value.replace("\0", " "))  # no reader of CSV accepts NUL
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float | int):
        return repr(value)
    return escape_formula(_text(value))


def _json_line(names: Sequence[str], row: Row) -> str:
    return (
        _json({name: value for name, value in zip(names, row, strict=True) if value != ABSENT})
        + "\n"
    )


def _json(value: Any) -> str:
    """JSON with all digits of a number. NaN and infinities, which JSON lacks, become null at any
    depth.
    """
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{_json(str(name))}: {_json(inner)}" for name, inner in value.items())
            + "}"
        )
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_json, value)) + "]"
    if isinstance(value, Decimal):
        return str(value) if value.is_finite() else "null"
    if isinstance(value, float) and not math.isfinite(value):
        return "null"
    return json.dumps(value, ensure_ascii=False, default=_text)


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, list | dict):
        return _json(value)
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _arrow(rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
    arrays = []
    for field, column in zip(schema, zip(*rows, strict=True), strict=True):
        values: list[Any] = [
            None if isinstance(value, str) and value == ABSENT else value for value in column
        ]
        if pa.types.is_string(field.type):
            values = [v if v is None or isinstance(v, str) else _json(v) for v in values]
        arrays.append(pa.array(values, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)
