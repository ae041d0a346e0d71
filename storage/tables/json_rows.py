"""Reads records from JSON: one object per line, or an array of objects. No message quotes a
value.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from storage.errors import Fault, Missing, OutOfRange, Unreadable
from storage.tables.source import MOST_COLUMNS, Source, read_safely

ABSENT: Final = "\x00absent\x00"
"""Marks a key that is missing in a JSON object. No cell equals it, because the reader refuses or
replaces NUL.
"""
LONGEST_RECORD = 1 << 22
"""Maximum size of a record in bytes. In memory it may take thirty times as much."""
LONGEST_ARRAY = 1 << 24
_LONGEST_KEYS = 1 << 24


def json_rows(source: Source, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yields these values of each record; `ABSENT` if it has no such key."""
    for _, record in _records(source, [0]):
        yield tuple(_value(record, name) for name in columns)


def _value(record: dict[str, object], name: str) -> Any:
    """The value at a key, or at a path of keys and indices separated by points."""
    if name in record or "." not in name:
        return record.get(name, ABSENT)
    value: Any = record
    for step in name.split("."):
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return ABSENT
    return value


def _is_text(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) < 2 and not any(isinstance(inner, list | dict) for inner in value)
    return not isinstance(value, dict)


def path_to(record: dict[str, object], name: str) -> str | None:
    """The path of keys to a value inside a record whose last key is `name`."""
    waiting: list[tuple[str, Any]] = [("", record)]
    while waiting and len(waiting) < _MOST_PATHS:
        path, value = waiting.pop(0)
        inner = value.items() if isinstance(value, dict) else enumerate(value[:1])
        for step, below in inner:
            if step == name and not isinstance(below, dict):
                return f"{path}{step}"
            if isinstance(below, dict | list):
                waiting.append((f"{path}{step}.", below))
    return None


_MOST_PATHS = 1000


def scan_json(
    source: Source, required: Sequence[str], skipped: list[int]
) -> tuple[Source, pa.Schema, int]:
    """The source with its columns, their types, and the number of records.

    Args:
        skipped: its first element is incremented for each bad record that is skipped, if the source
            allows it.
    """
    kinds: dict[str, set[type]] = {}
    characters = rows = 0
    paths = [name for name in required if "." in name]
    nested: dict[str, str | None] = {}
    for place, record in _records(source, skipped):
        rows += 1
        if rows == 1 and any(isinstance(value, dict | list) for value in record.values()):
            nested = {name: path_to(record, name) for name in required}
        inside = {name: _value(record, name) for name in paths if name not in record}
        inside = {name: value for name, value in inside.items() if value != ABSENT}
        for name, value in (record | inside).items():
            if name not in kinds:
                kinds[name], characters = set(), characters + len(name)
            kinds[name].add(type(value))
            if name in required and not _is_text(value):
                raise Unreadable(
                    f"{source.label}, {place}, key {name!r}: an object, or a list "
                    "of several values. Use text, or the path of keys to it, such "
                    "as data.text or labels.0",
                    kind="nested-value",
                )
        if len(kinds) > MOST_COLUMNS or characters > _LONGEST_KEYS:
            raise OutOfRange(
                f"{source.label}, {place}: over {MOST_COLUMNS:,} different keys, or "
                "long ones. Use a table",
                kind="too-many-keys",
            )
    if not kinds:
        raise Missing(
            f"{source.label} has no records. Use a file of records", kind="no-json-records"
        )
    schema = pa.schema([pa.field(name, _arrow_type(types)) for name, types in kinds.items()])
    return replace(source, columns=tuple(kinds), nested=nested), schema, rows


def _arrow_type(kinds: set[type]) -> pa.DataType:
    kinds = kinds - {type(None)}
    if kinds == {bool}:
        return pa.bool_()
    # also for integers, which are unbounded in JSON
    return pa.float64() if kinds == {float} else pa.string()


def _records(source: Source, skipped: list[int]) -> Iterator[tuple[str, dict[str, object]]]:
    for place, record, fault in _array(source) if source.array else _lines(source):
        if isinstance(record, dict):
            yield place, record
        elif source.skips_bad_rows:
            skipped[0] += 1
        else:
            fault = fault or Fault("it is not a JSON object", kind="not-an-object")
            raise Unreadable(
                f"{source.label}, {place}: {fault.text}. Write one object per line",
                kind=fault.kind,
            )


def _lines(source: Source) -> Iterator[tuple[str, Any, Fault | None]]:
    number = 0
    with source.open() as file:
        while line := read_safely(source, lambda: file.readline(LONGEST_RECORD)):
            number += 1
            if len(line) == LONGEST_RECORD:
                raise OutOfRange(
                    f"{source.label}, line {number}: over {LONGEST_RECORD:,} characters. "
                    "Shorten it",
                    kind="long-line",
                    row=number,
                )
            if line.strip():
                yield f"line {number}", *_parsed(line)


def _array(source: Source) -> Iterator[tuple[str, Any, Fault | None]]:
    with source.open() as file:
        content = read_safely(source, lambda: file.read(LONGEST_ARRAY))
    if len(content) == LONGEST_ARRAY:
        raise OutOfRange(
            f"{source.label}: over {LONGEST_ARRAY:,} characters in one array. Write one object "
            "per line",
            kind="long-array",
        )
    records, fault = _parsed(content)
    lists = (
        [value for value in records.values() if isinstance(value, list)]
        if isinstance(records, dict)
        else []
    )
    if len(lists) == 1:
        records = lists[0]  # as in responses of web services: {"count": 2, "results": [...]}
    if not isinstance(records, list):
        fault = fault or Fault("one JSON object, not a list of records", kind="not-an-array")
        raise Unreadable(
            f"{source.label}: {fault.text}. Write an array of objects, or one object per line",
            kind=fault.kind,
        )
    for number, record in enumerate(records, start=1):
        yield f"record {number}", record, None


def _parsed(content: bytes) -> tuple[Any, Fault | None]:
    try:
        text = content.decode("utf-8-sig")
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_no_number, parse_float=_number
        )
        if "\\ud" in text.lower():  # only an escape can create half a character
            json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeDecodeError:
        return None, Fault("it is not UTF-8", kind="json-not-utf-8")
    except UnicodeEncodeError:
        return None, Fault("it has half of a surrogate pair", kind="half-a-surrogate")
    except _NotANumber:
        return None, Fault(
            "it has NaN or Infinity, which JSON does not have. Write null", kind="nan"
        )
    except (ValueError, ArithmeticError, RecursionError):
        return None, Fault("it is not valid JSON, or has a key twice", kind="invalid-json")
    return value, None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, object]:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError
    return record


def _number(text: str) -> float | Decimal:
    """A float if it represents the number exactly, otherwise a decimal with all digits."""
    value = float(text)
    return (
        value if math.isfinite(value) and Decimal(repr(value)) == Decimal(text) else Decimal(text)
    )


class _NotANumber(Exception):
    pass


def _no_number(name: str) -> Any:
    raise _NotANumber
