"""The published classification: codes and their titles, in the order of the list."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
    """A class, its title, and more public words on it; all are empty where no list gave them."""

    code: str
    title: str = ""
    description: str = ""
    above: Sequence[str] = ()
    """Titles of the levels above it, the nearest first, of a code that stands apart from its list."""

    def as_json(self) -> dict[str, Any]:
        """Its fields by name; a description and levels above only where there are some."""
        return {
            "code": self.code,
            "title": self.title,
            **({"description": self.description} if self.description else {}),
            **({"above": list(self.above)} if self.above else {}),
        }


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


def read_codelist(path: Path, *, option: str = "code list") -> tuple[Code, ...]:
    """Read a table with the columns `code` and `title`, and perhaps `description`, in any case; others are ignored.

    Raises:
        InputError: names the file, and the row or column at fault.
    """
    columns, rows = read_small(path, (), option=option)
    header = [name.strip().lower() for name in columns]
    missing = [name for name in ("code", "title") if header.count(name) != 1]
    if missing or header.count("description") > 1:
        name = (missing or ["description"])[0]
        raise InputError(f"{option}: {path}: column {name} is missing or doubled; it needs code and title")
    at_code, at_title = header.index("code"), header.index("title")
    at_description = header.index("description") if "description" in header else None
    codes: dict[str, Code] = {}
    for number, row in enumerate(rows, start=1):
        code, title = row[at_code].strip(), row[at_title].strip()
        if not any(row):
            continue
        if not code or len(code) > MAX_CODE:
            raise InputError(f"{option}: {path}: row {number} has no code, or one over {MAX_CODE} characters")
        if code in codes:
            raise InputError(f"{option}: {path}: row {number} repeats the code of another; remove one")
        codes[code] = Code(code, title, "" if at_description is None else row[at_description].strip())
    if len(codes) < 2:
        raise InputError(f"{option}: {path}: it holds {len(codes)} codes; a classification needs two or more")
    return tuple(codes.values())


def told(codes: Sequence[Code]) -> list[str]:
    """What the list says of each code, in words: its title, its description; empty where it says nothing."""
    return [". ".join(dict.fromkeys(part for part in (code.title, code.description) if part)) for code in codes]


def told_in_sentence(codes: Sequence[Code], sentence: str) -> list[str]:
    """The title of each code in a sentence that has {} for it, as narratives would say it: without a capital, unless
    the word is all capitals. Empty where the list has no title."""
    said = []
    for code in codes:
        first, *_ = code.title.split() or [""]
        title = code.title if len(first) > 1 and first.isupper() else code.title[:1].lower() + code.title[1:]
        said.append(sentence.replace("{}", title) if title else "")
    return said


def told_in_place(codes: Sequence[Code]) -> list[str]:
    """The same with the titles of the levels above it, the nearest first.

    The level above is the longest other code of the list that the code begins with (111 is under 11, under 1). A title
    that two levels share is said once. Empty where the list says nothing of the code itself.
    """
    in_order = zip(told(codes), _levels(codes), strict=True)
    return [". ".join(dict.fromkeys([own, *levels])) if own else "" for own, levels in in_order]


def cut(codes: Sequence[Code], kept: Collection[str]) -> tuple[Code, ...]:
    """Those of a list that are kept, in its order; each takes the titles of the levels above it along."""
    levels = zip(codes, _levels(codes), strict=True)
    return tuple(replace(code, above=tuple(above)) for code, above in levels if code.code in kept)


def _levels(codes: Sequence[Code]) -> list[list[str]]:
    titles = {code.code: code.title for code in codes}
    return [
        [title for title in code.above or _above(code.code, titles) if title and title != code.title] for code in codes
    ]


def _above(code: str, titles: Mapping[str, str]) -> list[str]:
    return [titles[code[:end]] for end in range(len(code) - 1, 0, -1) if code[:end] in titles]
