"""The published classification: codes and their titles, in the order of the list."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container
from dataclasses import dataclass
from pathlib import Path

from storage.errors import InputError
from storage.tables.reading import read_small

MAX_CODE = 120
"""Characters. A longer value is a sentence: a column was mapped wrongly. The longest OIICS title has 112."""

_CHARACTERS: dict[str, Callable[[str], bool]] = {
    "digits": str.isdigit,
    "letters": str.isalpha,
    "blanks": str.isspace,
    "other signs": lambda c: not (c.isalnum() or c.isspace()),
}


@dataclass(frozen=True)
class Code:
    """A class and its title; the title is empty where no list gave one."""

    code: str
    title: str = ""


def normalise_code(raw: str, known: Container[str] = ()) -> str:
    """A code as a string: outer blanks gone, and `111.0` read as `111`, which is how a table program writes a number.

    Nothing else is touched: leading zeros, case and inner points stay. A code that is in `known` as it stands is
    kept, so that a classification with a code `250.0` of its own keeps it.
    """
    code = raw.strip()
    if code in known:
        return code
    return re.sub(r"^(\d+)\.0+$", r"\1", code, flags=re.ASCII)


def shape(values: Collection[str]) -> str:
    """What values look like, for a message that must not show them: how many differ, their lengths and characters."""
    lengths = sorted({len(value) for value in values})
    span = f"{lengths[0]}" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
    characters = "".join(values)
    kinds = [name for name, matches in _CHARACTERS.items() if any(map(matches, characters))]
    return f"{len(set(values)):,} distinct values of {span} characters: {', '.join(kinds)}"


def read_codelist(path: Path) -> tuple[Code, ...]:
    """Read a table with the columns `code` and `title`, in any case; other columns are ignored.

    Raises:
        InputError: names the file, and the row or column at fault.
    """
    columns, rows = read_small(path, (), option="code list")
    header = [name.strip().lower() for name in columns]
    missing = [name for name in ("code", "title") if header.count(name) != 1]
    if missing:
        raise InputError(f"code list: {path}: column {missing[0]} is missing or doubled; it needs code and title")
    at_code, at_title = header.index("code"), header.index("title")
    codes: dict[str, Code] = {}
    for number, row in enumerate(rows, start=1):
        code, title = row[at_code].strip(), row[at_title].strip()
        if not any(row):
            continue
        if not code or len(code) > MAX_CODE:
            raise InputError(f"code list: {path}: row {number} has no code, or one over {MAX_CODE} characters")
        if code in codes:
            raise InputError(f"code list: {path}: row {number} repeats the code of another; remove one")
        codes[code] = Code(code, title)
    if len(codes) < 2:
        raise InputError(f"code list: {path}: it holds {len(codes)} codes; a classification needs two or more")
    return tuple(codes.values())
