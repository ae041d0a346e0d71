"""Reads the published classification: codes and their titles, in the order of the list."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from storage import rdf
from storage.errors import InputError
from storage.tables.reader import read_small

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
    """Holds a code, its title and more public words on it; all are empty where no list gave them."""

    code: str
    title: str = ""
    description: str = ""
    above: Sequence[str] = ()
    """Titles of the levels above it, the nearest first, for a code apart from its list."""

    def as_json(self) -> dict[str, Any]:
        """Returns its fields by name, without an empty description or empty levels."""
        return {
            "code": self.code,
            "title": self.title,
            **({"description": self.description} if self.description else {}),
            **({"above": list(self.above)} if self.above else {}),
        }


def normalise_code(raw: str, listed: Container[str] = ()) -> str:
    """Strips outer blanks and reads `111.0` as `111`, which is how a table program writes a number.

    Nothing else changes: leading zeros, case and inner points stay. A code that `listed` contains stays as it is, so
    that a classification may have a code `250.0`.
    """
    code = raw.strip()
    if code in listed:
        return code
    return re.sub(r"^(\d+)\.0+$", r"\1", code, flags=re.ASCII)


def describe_shape(values: Collection[str]) -> str:
    """Describes values for a message that must not show them: how many differ, their lengths and characters."""
    lengths = sorted({len(value) for value in values})
    span = f"{lengths[0]}" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
    characters = "".join(values)
    kinds = [name for name, matches in _CHARACTERS.items() if any(map(matches, characters))]
    # guard: unknown codes are told by their shape
    return f"{len(set(values)):,} distinct values of {span} characters: {', '.join(kinds)}"


def read_codelist(path: Path, *, option: str = "code list") -> tuple[Code, ...]:
    """Reads a table with the columns `code` and `title`, and perhaps `description`, in any case; ignores others.

    Or reads a classification in SKOS, by the file's ending (`storage.rdf`).
    """
    if rdf.is_rdf(path):
        return _read_skos(path, option)
    columns, rows = read_small(path, (), option=option)
    header = [name.strip().lower() for name in columns]
    missing = [name for name in ("code", "title") if header.count(name) != 1]
    if missing or header.count("description") > 1:
        name = (missing or ["description"])[0]
        raise InputError(f"{option}: {path}: column {name} is missing or repeated. Give it once")
    at_code, at_title = header.index("code"), header.index("title")
    at_description = header.index("description") if "description" in header else None
    codes: dict[str, Code] = {}
    for number, row in enumerate(rows, start=1):
        code, title = row[at_code].strip(), row[at_title].strip()
        if not any(row):
            continue
        if not code or len(code) > MAX_CODE:
            raise InputError(
                f"{option}: {path}: row {number} has no code or one over {MAX_CODE} characters. Correct it"
            )
        if code in codes:
            raise InputError(f"{option}: {path}: row {number} repeats another row's code. Remove one")
        codes[code] = Code(code, title, "" if at_description is None else row[at_description].strip())
    if len(codes) < 2:
        raise InputError(f"{option}: {path}: it contains {len(codes)} codes. Give two or more")
    return tuple(codes.values())


def _read_skos(path: Path, option: str) -> tuple[Code, ...]:
    """Returns the concepts as codes. Broader titles count where the codes themselves do not give them."""
    concepts = rdf.read_concepts(path, option=option)
    titles = {one.code: one.title for one in concepts}
    if len(titles) < max(2, len(concepts)) or not all(0 < len(code) <= MAX_CODE for code in titles):
        raise InputError(
            f"{option}: {path} has {len(concepts)} concepts with {len(titles)} different notations. Give two or more, "
            f"each with its own of at most {MAX_CODE} characters"
        )
    return tuple(
        Code(one.code, one.title, one.description, () if list(one.above) == _above(one.code, titles) else one.above)
        for one in concepts
    )


def describe(codes: Sequence[Code]) -> list[str]:
    """Returns each code's title and description in one text; empty where the list has neither."""
    return [". ".join(dict.fromkeys(part for part in (code.title, code.description) if part)) for code in codes]


def describe_in_sentence(codes: Sequence[Code], sentence: str) -> list[str]:
    """Puts each code's title into a sentence in place of {}; empty where the list has no title.

    The title starts in lower case, as a narrative would have it, unless its first word is all capitals."""
    sentences: list[str] = []
    for code in codes:
        first, *_ = code.title.split() or [""]
        title = code.title if len(first) > 1 and first.isupper() else code.title[:1].lower() + code.title[1:]
        sentences.append(sentence.replace("{}", title) if title else "")
    return sentences


def describe_with_levels(codes: Sequence[Code]) -> list[str]:
    """Returns what `describe` does with the titles of the levels above it, the nearest first.

    The level above is the longest other code of the list that the code begins with (111 is under 11, under 1). A title
    that two levels share appears once. Empty where the list has no words on the code itself.
    """
    in_order = zip(describe(codes), _levels(codes), strict=True)
    return [". ".join(dict.fromkeys([words, *levels])) if words else "" for words, levels in in_order]


def restrict(codes: Sequence[Code], names: Collection[str]) -> tuple[Code, ...]:
    """Restricts a list to these codes, in its order; each carries the titles of the levels above it."""
    levels = zip(codes, _levels(codes), strict=True)
    return tuple(replace(code, above=tuple(above)) for code, above in levels if code.code in names)


def _levels(codes: Sequence[Code]) -> list[list[str]]:
    titles = {code.code: code.title for code in codes}
    return [
        [title for title in code.above or _above(code.code, titles) if title and title != code.title] for code in codes
    ]


def _above(code: str, titles: Mapping[str, str]) -> list[str]:
    return [titles[code[:end]] for end in range(len(code) - 1, 0, -1) if code[:end] in titles]
