"""Reads the published classification: codes and their titles, in the order of the list."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from storage.errors import InputError
from storage.tables.reader import read_small
from storage.tables.source import like_header

MAX_CODE = 120
"""Characters. A longer value is a sentence: a column was mapped wrongly. The longest OIICS title
has 112.
"""

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
    """Strips outer blanks and what a table program adds: `111.0`, `'111` and `="111"` are `111`.

    Invisible characters go, and full-width digits are digits. Nothing else changes: leading zeros,
    case and inner points stay. A code that `listed` contains stays as it is, so that a
    classification may have a code `250.0`.
    """
    code = raw.strip()
    if code in listed:
        return code
    if not code.isascii():
        visible = "".join(sign for sign in code if unicodedata.category(sign) != "Cf").strip()
        plain = unicodedata.normalize("NFKC", visible)
        code = plain if plain.isascii() else visible
    if added := re.fullmatch(r"'(.+)|=\"(.+)\"", code):
        code = (added[1] or added[2]).strip()
    return re.sub(r"^(\d+)\.0+$", r"\1", code, flags=re.ASCII)


def describe_shape(values: Collection[str]) -> str:
    """Describes values for a message that must not show them: how many differ, their lengths and
    characters.
    """
    lengths = sorted({len(value) for value in values})
    span = f"{lengths[0]}" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
    characters = "".join(values)
    kinds = [name for name, matches in _CHARACTERS.items() if any(map(matches, characters))]
    # guard: ../storage/test_codelist
    return f"{len(set(values)):,} distinct values of {span} characters: {', '.join(kinds)}"


def read_codelist(
    path: Path, *, option: str = "code list", columns: Sequence[str] = ()
) -> tuple[Code, ...]:
    """Reads a table of codes and titles, in its order; several titles of a code are joined.

    Args:
        columns: of the code and of the title. Empty: `code` and `title` in any case, or the only
            columns with one of these words in their name. Those called `description` and `parent`
            (the code above) count too.

    Raises:
        InputError: no such columns; a row without a code; fewer than two codes. The message has the
            column names, since a published list is public.
    """
    header, rows = read_small(path, (), option=option)
    places = _places(header, columns, f"{option}: {path}")
    words: dict[str, tuple[list[str], list[str], str]] = {}
    for number, row in enumerate(rows, start=1):
        if not any(row):
            continue
        code, title, description, parent = (
            "" if place is None else row[place].strip() for place in places
        )
        if not code or len(code) > MAX_CODE:
            raise InputError(
                f"{option}: {path}: row {number} has no code or one over {MAX_CODE} characters. "
                "Correct it"
            )
        titles, descriptions, above = words.setdefault(code, ([], [], parent))
        titles.append(title)
        descriptions.append(description)
        if above != parent:
            raise InputError(
                f"{option}: {path}: row {number} gives a code another parent than before. "
                "Correct it"
            )
    if len(words) < 2:
        raise InputError(f"{option}: {path}: it contains {len(words)} codes. Give two or more")
    codes = {
        code: Code(code, _joined("; ", titles), _joined(" ", descriptions))
        for code, (titles, descriptions, _) in words.items()
    }
    titles_of = {code: entry.title for code, entry in codes.items()}
    parents = {code: parent for code, (_, _, parent) in words.items()}
    for code in codes:
        above = _chain(code, parents, titles_of)
        if above and above != _above(code, titles_of):
            codes[code] = replace(codes[code], above=tuple(above))
    return tuple(codes.values())


def read_parents(path: Path, *, option: str) -> dict[str, str]:
    """Reads the code above each code, from a list with the columns `code` and `parent`."""
    header, rows = read_small(path.expanduser(), ("code", "parent"), option=option)
    code, parent = header.index("code"), header.index("parent")
    return {row[code].strip(): row[parent].strip() for row in rows}


_WORDS = (
    ("code", "codes"),
    ("title", "titles", "label", "labels", "description", "name", "libelle", "intitule"),
)
"""Words of the columns' names, the likelier first."""


def _places(
    header: Sequence[str], columns: Sequence[str], place: str
) -> tuple[int, int, int | None, int | None]:
    folded = [" ".join(name.split()).casefold() for name in header]
    matches: list[int] = []
    for number, wanted in enumerate(columns or ("code", "title")):
        fitting = [
            n for n, name in enumerate(folded) if name == " ".join(wanted.split()).casefold()
        ]
        if not columns and not fitting:
            by_word = (
                [n for n, name in enumerate(folded) if word in _letters(name).split()]
                for word in _WORDS[number]
            )
            fitting = next((places for places in by_word if places), [])
        if len(fitting) != 1:
            shown = (
                ", ".join(repr(name) for name in header[:40])
                if like_header(header)
                else "not named"
            )
            raise InputError(
                f"{place}: column {wanted!r} is missing or repeated. Its columns are {shown}. "
                "Name two with "
                "--set data.ingest.codelist_columns=[CODE, TITLE]"
            )
        matches += fitting
    code, title = matches
    description, parent = (
        folded.index(name) if folded.count(name) == 1 else None
        for name in ("description", "parent")
    )
    return code, title, None if description == title else description, parent


def _letters(name: str) -> str:
    plain = unicodedata.normalize("NFKD", name).casefold()
    return " ".join(
        re.findall(r"[a-z]+", "".join(sign for sign in plain if not unicodedata.combining(sign)))
    )


def _joined(separator: str, texts: Sequence[str]) -> str:
    return separator.join(dict.fromkeys(filter(None, texts)))


def _chain(code: str, parents: Mapping[str, str], titles: Mapping[str, str]) -> list[str]:
    seen = [code]
    while (code := parents.get(code, "")) and code not in seen:
        seen.append(code)
    return [title for above in seen[1:] if (title := titles.get(above, ""))]


def describe(codes: Sequence[Code]) -> list[str]:
    """Returns each code's title and description in one text; empty where the list has neither."""
    return [
        ". ".join(dict.fromkeys(part for part in (code.title, code.description) if part))
        for code in codes
    ]


def describe_in_sentence(codes: Sequence[Code], sentence: str) -> list[str]:
    """Puts each code's title into a sentence in place of {}; empty where the list has no title.

    The title starts in lower case, as a narrative would have it, unless its first word is all
    capitals.
    """
    sentences: list[str] = []
    for code in codes:
        first, *_ = code.title.split() or [""]
        title = (
            code.title
            if len(first) > 1 and first.isupper()
            else code.title[:1].lower() + code.title[1:]
        )
        sentences.append(sentence.replace("{}", title) if title else "")
    return sentences


def describe_with_levels(codes: Sequence[Code]) -> list[str]:
    """Returns what `describe` does with the titles of the levels above it, the nearest first.

    The level above is the longest other code of the list that the code begins with (111 is under
    11, under 1). A title that two levels share appears once. Empty where the list has no words on
    the code itself.
    """
    in_order = zip(describe(codes), _levels(codes), strict=True)
    return [
        ". ".join(dict.fromkeys([words, *levels])) if words else "" for words, levels in in_order
    ]


def restrict(codes: Sequence[Code], names: Collection[str]) -> tuple[Code, ...]:
    """Restricts a list to these codes, in its order; each carries the titles of the levels above
    it.
    """
    levels = zip(codes, _levels(codes), strict=True)
    return tuple(replace(code, above=tuple(above)) for code, above in levels if code.code in names)


def _levels(codes: Sequence[Code]) -> list[list[str]]:
    titles = {code.code: code.title for code in codes}
    return [
        [
            title
            for title in code.above or _above(code.code, titles)
            if title and title != code.title
        ]
        for code in codes
    ]


def _above(code: str, titles: Mapping[str, str]) -> list[str]:
    return [titles[code[:end]] for end in range(len(code) - 1, 0, -1) if code[:end] in titles]
