"""Reads the public lists of values of the columns next to a narrative, such as the industry.

A list is declared: no value comes from the records. What a cell has beyond its list counts as one other value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from storage.codelist import MAX_CODE
from storage.errors import InputError
from storage.tables.reader import read_small

MOST_VALUES = 2000
"""Of all columns together: each is a feature of every code."""


def read_value_lists(declared: Mapping[str, str | Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Returns the values of each column: a list, or a file's name, whose table has a column value or code."""
    lists = {name: _read(name, given) for name, given in declared.items()}
    if (total := sum(map(len, lists.values()))) > MOST_VALUES:
        raise InputError(
            f"data.ingest.value_columns: {total:,} values, more than {MOST_VALUES:,}. Give a coarser list, such as a "
            "classification's upper level"
        )
    return lists


def set_value_lists(settings: dict[str, Any], lists: Mapping[str, Sequence[str]]) -> None:
    """Puts the values into dumped settings in the place of their file's name; settings without columns name none."""
    settings.pop("value_columns", None)
    if lists:
        settings["value_columns"] = {name: list(values) for name, values in lists.items()}


def _read(name: str, given: str | Sequence[str]) -> tuple[str, ...]:
    option = f"data.ingest.value_columns.{name}"
    if not isinstance(given, str):
        return _checked(given, f"{option}: value")
    path = Path(given).expanduser()
    if not path.is_file():
        raise InputError(f"{option}: no file {given}. Name a file, or list the values in brackets")
    columns, rows = read_small(path, (), option=option)
    header = [column.strip().lower() for column in columns]
    chosen = next((column for column in ("value", "code") if header.count(column) == 1), None)
    if chosen is None:
        raise InputError(f"{option}: {given} has no column value or code. Name one of its columns so")
    at = header.index(chosen)
    return _checked([row[at] for row in rows if any(row)], f"{option}: {given}: row")


def _checked(values: Sequence[str], place: str) -> tuple[str, ...]:
    trimmed: dict[str, int] = {}
    for number, raw in enumerate(values, start=1):
        value = raw.strip()
        if not value or len(value) > MAX_CODE or not value.isprintable():
            raise InputError(f"{place} {number} is blank, has over {MAX_CODE} characters or unusual ones. Correct it")
        if value in trimmed:
            raise InputError(f"{place} {number} repeats {trimmed[value]}. Remove one")
        trimmed[value] = number
    if not trimmed:
        raise InputError(f"{place.partition(':')[0]}: the list is empty. Give the values")
    return tuple(trimmed)
