"""The published classification: codes and their titles, in the order of the list."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Collection, Container
from dataclasses import dataclass
from pathlib import Path

from storage.errors import InputError

MAX_CODE = 120
"""Characters. A longer value is a sentence: a column was mapped wrongly. The longest OIICS title has 112."""

_MAX_BYTES = 64 << 20
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
    """Read a CSV with the columns `code` and `title`, in UTF-8 or cp1252; other columns are ignored.

    Raises:
        InputError: names the file, and the row or column at fault.
    """
    rows = _rows(path)
    if not rows:
        raise InputError(f"code list {path}: the file is empty; it needs the columns code and title")
    header = [name.strip().lower() for name in rows[0]]
    missing = [name for name in ("code", "title") if header.count(name) != 1]
    if missing:
        raise InputError(f"code list {path}: column {missing[0]} is missing or doubled; it needs code and title")
    at_code, at_title = header.index("code"), header.index("title")
    codes: dict[str, Code] = {}
    for number, row in enumerate(rows[1:], start=1):
        if not any(row):
            continue
        if len(row) != len(header):
            raise InputError(f"code list {path}: row {number} has {len(row)} fields, the header {len(header)}")
        code, title = row[at_code].strip(), row[at_title].strip()
        if not code or len(code) > MAX_CODE:
            raise InputError(f"code list {path}: row {number} has no code, or one over {MAX_CODE} characters")
        if code in codes:
            raise InputError(f"code list {path}: row {number} repeats the code of another; remove one")
        codes[code] = Code(code, title)
    if len(codes) < 2:
        raise InputError(f"code list {path}: it holds {len(codes)} codes; a classification needs two or more")
    return tuple(codes.values())


def _rows(path: Path) -> list[list[str]]:
    if not path.is_file():
        raise InputError(f"code list: no file {path}")
    if path.stat().st_size > _MAX_BYTES:
        raise InputError(f"code list {path}: over {_MAX_BYTES >> 20} MB; is it the data file?")
    content = path.read_bytes()
    if b"\0" in content:
        raise InputError(f"code list {path}: it holds NUL bytes; it must be a CSV, in UTF-8 or cp1252")
    text = _decoded(content)
    if text is None:
        raise InputError(f"code list {path}: neither UTF-8 nor cp1252; save it as UTF-8")
    try:
        return list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error:
        fault = f"code list {path}: it does not read as a CSV; is a quote left open?"
    raise InputError(fault)


def _decoded(content: bytes) -> str | None:
    for encoding in ("utf-8-sig", "cp1252"):
        try:
            return content.decode(encoding)
        except UnicodeDecodeError:
            continue
    return None
