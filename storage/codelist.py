"""Reads a published classification: codes and their titles, in the order of the list."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from storage.errors import Contradiction, InputError, OutOfRange
from storage.list_formats import refuse_published_forms
from storage.tables.options import AS_IT_LOOKS, ReadOptions
from storage.tables.reader import read_small
from storage.tables.source import SeveralSheets, like_header

if TYPE_CHECKING:
    from storage.json_values import Json


MAX_CODE = 120
"""Maximum length of a code. A longer value is a sentence from a wrongly mapped column. The longest
OIICS title has 112 characters.
"""

_CHARACTERS: dict[str, Callable[[str], bool]] = {
    "digits": str.isdigit,
    "letters": str.isalpha,
    "blanks": str.isspace,
    "other signs": lambda c: not (c.isalnum() or c.isspace()),
}


@dataclass(frozen=True)
class Code:
    """A code, its title, and further public words about it; empty fields are unknown."""

    code: str
    title: str = ""
    description: str = ""
    above: Sequence[str] = ()
    """Titles of the levels above, nearest first, for a code without its list."""

    def as_json(self) -> dict[str, Json]:
        """The fields by name, without an empty description or empty levels."""
        return {
            "code": self.code,
            "title": self.title,
            **({"description": self.description} if self.description else {}),
            **({"above": list(self.above)} if self.above else {}),
        }


_ADDED = re.compile(r"=?\"([^\"]+)\"|\u201c([^\u201d]+)\u201d|'([^']+)'|'(.+)")
"""Decorations that spreadsheet programs put around or before a code."""


def normalise_code(raw: str, listed: Container[str] = ()) -> str:
    """Strips outer whitespace and the decorations of spreadsheet programs: `111.0`, `'111`, `"111"`
    and `="111"` become `111`.

    Invisible characters are removed, full-width digits become ASCII digits, and a letter and its
    accent become one character. Nothing else changes: leading zeros, case and inner points are
    kept. A code that is in `listed` is unchanged, so that a classification may contain a code such
    as `250.0`.
    """
    code = raw.strip()
    if code in listed:
        return code
    if not code.isascii():
        visible = "".join(sign for sign in code if unicodedata.category(sign) != "Cf").strip()
        plain = unicodedata.normalize("NFKC", visible)
        code = plain if plain.isascii() else _accented(visible)
    if added := _ADDED.fullmatch(code):
        code = next(filter(None, added.groups())).strip()
    return re.sub(r"^(\d+)\.0+$", r"\1", code, flags=re.ASCII)


def describe_shape(values: Collection[str]) -> str:
    """Describes values for a message that must not show them: the number of distinct values, their
    lengths, and their kinds of characters.
    """
    lengths = sorted({len(value) for value in values})
    span = f"{lengths[0]}" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
    characters = "".join(values)
    kinds = [name for name, matches in _CHARACTERS.items() if any(map(matches, characters))]
    # guard: ../storage/test_codelist
    return f"{len(set(values)):,} distinct values of {span} characters: {', '.join(kinds)}"


def read_codelist(
    path: Path,
    *,
    option: str = "code list",
    columns: Sequence[str] = (),
    read: ReadOptions = AS_IT_LOOKS,
) -> tuple[Code, ...]:
    """Reads a table of codes and titles, in its order. Several titles of a code are joined.

    Args:
        columns: names of the code and title columns. If each level has its own code column, list
            all of them, with the title last. Empty: `code` and `title` in any case, or the only
            columns with one of these words in their name. Columns called `description` and `parent`
            (the code above) are also used.
        read: how the table is read.

    Raises:
        InputError: no such columns, an invalid code, or fewer than two codes. The message contains
            column names, because a published list is public.
    """
    return read_list(path, option=option, columns=columns, read=read).codes


@dataclass(frozen=True)
class CodeList:
    """A published list as it was read."""

    codes: tuple[Code, ...]
    notes: tuple[str, ...]
    """Sentences about entries that were left out and choices that were made."""


def read_list(
    path: Path,
    *,
    option: str = "code list",
    columns: Sequence[str] = (),
    read: ReadOptions = AS_IT_LOOKS,
) -> CodeList:
    """Reads a list like `read_codelist`, with notes on what was left out."""
    place = f"{option}: {path}"
    refuse_published_forms(path, option)
    rows, notes = _entries(path, option, columns, read)
    words: dict[str, tuple[list[str], list[str], str]] = {}
    headings = non_codes = 0
    for number, entry in enumerate(map(_composed, rows), start=1):
        if not entry.code:
            headings += bool(entry.title)
            continue
        if entry.is_no_code:
            non_codes += 1
            continue
        if len(entry.code) > MAX_CODE:
            raise OutOfRange(
                f"{place}: row {number} has a code of over {MAX_CODE} characters. Correct it",
                kind="code-too-long",
                row=number,
            )
        titles, descriptions, above = words.setdefault(entry.code, ([], [], entry.parent))
        titles.append(entry.title)
        descriptions.append(entry.description)
        if above != entry.parent:
            raise Contradiction(
                f"{place}: row {number} lists another parent for a code. Correct it",
                kind="two-parents",
                row=number,
            )
    for word in _words_among_codes(words):
        non_codes += 1
        del words[word]
    left_out = f"; {headings:,} rows have no code" if headings else ""
    if len(words) < 2:
        raise OutOfRange(
            f"{place}: it contains {len(words)} codes{left_out}. A code list needs at least two",
            kind="too-few-codes",
        )
    codes = {
        code: Code(code, _joined("; ", titles), _joined(" ", descriptions))
        for code, (titles, descriptions, _) in words.items()
    }
    titles_of = {code: entry.title for code, entry in codes.items()}
    parents = {code: parent for code, (_, _, parent) in words.items()}
    for code in codes:
        above = _chain(code, parents, titles_of)
        if above and above != titles_above(code, titles_of):
            codes[code] = replace(codes[code], above=tuple(above))
    if headings:
        notes.append(f"{headings:,} headings without a code were left out")
    if non_codes:
        notes.append(f"{non_codes:,} rows that are no codes, as sources and totals, were left out")
    return CodeList(tuple(codes.values()), tuple(f"{path.name}: {note}" for note in notes))


_FOOTER = re.compile(
    r"(?:source|sources|note|notes|quelle|quellen|hinweis|remarque|remarques|nota|notas|fuente|"
    r"fonte|bron|copyright|last updated|updated|legend|legende|see also|footnote|disclaimer)\b.*",
    re.IGNORECASE | re.DOTALL,
)
_TOTALS = frozenset(
    ("total", "totals", "all", "grand total", "sum", "insgesamt", "ensemble", "totale", "_t", "_z")
)
_LONGEST_SECTION = 2


def _words_among_codes(words: Mapping[str, tuple[list[str], list[str], str]]) -> list[str]:
    """Words without a title, if every other code has a digit or is short."""
    odd = {
        code
        for code, (titles, *_) in words.items()
        if code.isalpha() and len(code) > _LONGEST_SECTION and not any(titles)
    }
    remaining = [code for code in words if code not in odd]
    numbered = all(
        len(code) <= _LONGEST_SECTION or any(map(str.isdigit, code)) for code in remaining
    )
    return [code for code in words if code in odd] if remaining and numbered else []


_DASHES = re.compile(r"^(?:[-\u2013\u2014]\s+)+")


@dataclass(frozen=True)
class _Entry:
    code: str
    title: str
    description: str = ""
    parent: str = ""

    @property
    def is_no_code(self) -> bool:
        """Whether the row is a footer or a total, or has only punctuation as its code."""
        if not any(sign.isalnum() for sign in self.code) or self.code.casefold() in _TOTALS:
            return True
        if _FOOTER.fullmatch(self.code) and re.search(r"[\s:]", self.code):
            return True
        return not self.title and bool(re.search(r"\s", self.code))


def _entries(
    path: Path, option: str, columns: Sequence[str], read: ReadOptions
) -> tuple[Iterator[_Entry], list[str]]:
    try:
        header, rows = read_small(path, (), option=option, read=read)
        return _read_entries(header, rows, columns, f"{option}: {path}"), []
    except SeveralSheets as several:
        sheets = several.names
    found = []
    for name in sheets:
        try:
            chosen = read.model_copy(update={"sheet": name})
            header, rows = read_small(path, (), option=option, read=chosen)
            found.append((name, _read_entries(header, rows, columns, f"{option}: {path}")))
        except InputError:  # not a list, for example a table of contents
            continue
    if len(found) == 1:
        name, entries = found[0]
        return entries, [f"its sheet {name!r} is the only one with codes and titles"]
    fitting = [name for name, _ in found] or list(sheets)
    raise Contradiction(
        f"{option}: {path}: {'several' if found else 'none'} of its {len(sheets)} "
        "sheets has codes and titles. Choose one of "
        f"{', '.join(map(repr, fitting[:20]))} with --read-codelist sheet=…",
        kind="several-sheets",
    )


def _composed(entry: _Entry) -> _Entry:
    """The entry with each letter and its accent as one character in its codes, as in
    `normalise_code`.
    """
    return replace(entry, code=_accented(entry.code), parent=_accented(entry.parent))


def _accented(code: str) -> str:
    """The code, in which a letter and its accent are one character."""
    return unicodedata.normalize("NFC", code)


def _read_entries(
    header: Sequence[str], rows: Sequence[Sequence[str]], columns: Sequence[str], place: str
) -> Iterator[_Entry]:
    filled = [row for row in rows if any(cell.strip() for cell in row)]
    try:
        codes, title, description, parent = _places(header, columns, place)
    except _NoColumns:
        if columns:
            raise
        if pairs := _pairs_of(header):
            return _entries_of_pairs(pairs, filled)
        found = (
            _levels_of(header, filled)
            or _beside_a_title(header, filled)
            or _without_header(header, filled)
        )
        if found is None and _is_staircase(filled):
            return (_first_two(row) for row in filled)
        if found is None:
            raise
        codes, title, filled = found
        description = parent = None
    return (
        _Entry(
            code=next((cell for n in codes if (cell := row[n].strip())), ""),
            title=_DASHES.sub("", row[title].strip()),
            description="" if description is None else row[description].strip(),
            parent="" if parent is None else row[parent].strip(),
        )
        for row in filled
    )


_Found = tuple[list[int], int, list[Sequence[str]]]
_MOST = 0.95
_CODE = re.compile(r"(?=.*\d)[\w.\-/]{1,12}|[A-Z]{1,2}")


def _levels_of(header: Sequence[str], rows: list[Sequence[str]]) -> _Found | None:
    """Finds columns of codes of which each row fills exactly one, as in lists with one column per
    level.
    """
    title = _by_word(header, _WORDS[1])
    if len(title) != 1 or not title[0]:
        return None
    codes = list(range(title[0]))
    single = sum(sum(bool(row[n].strip()) for n in codes) == 1 for row in rows)
    return (codes, title[0], rows) if single >= _MOST * len(rows) else None


def _beside_a_title(header: Sequence[str], rows: list[Sequence[str]]) -> _Found | None:
    """Uses the other one of two columns if one has the name of a title column."""
    title = _by_word(header, _WORDS[1])
    return ([1 - title[0]], title[0], rows) if len(header) == 2 and len(title) == 1 else None


def _pairs_of(header: Sequence[str]) -> list[tuple[int, int]]:
    """Finds columns of codes, one per level, each with a column of titles, such as `Class` and
    `Class Name`.
    """
    words_of_names = [" ".join(_letters(name).split()) for name in header]
    pairs = [
        (code, title)
        for code, name in enumerate(words_of_names)
        for title, other_name in enumerate(words_of_names)
        if name and other_name in {f"{name} {word}" for word in ("name", "title", "description")}
    ]
    return pairs if len(pairs) > 1 else []


def _entries_of_pairs(
    pairs: Sequence[tuple[int, int]], rows: list[Sequence[str]]
) -> Iterator[_Entry]:
    seen: set[str] = set()
    for row in rows:
        above = ""
        for code, title in pairs:
            entry = _Entry(row[code].strip(), row[title].strip(), parent=above)
            if entry.code and entry.code not in seen:
                seen.add(entry.code)
                yield entry
            above = entry.code or above


def _without_header(header: Sequence[str], rows: list[Sequence[str]]) -> _Found | None:
    """Accepts a two-column list whose first row is a code and a title like the others."""
    all_rows = [header, *rows]
    if len(header) != 2:
        return None
    for code, title in ((0, 1), (1, 0)):
        like_codes = sum(bool(_CODE.fullmatch(row[code].strip())) for row in all_rows)
        if _CODE.fullmatch(header[code].strip()) and like_codes >= _MOST * len(all_rows):
            return [code], title, all_rows
    return None


def _is_staircase(rows: list[Sequence[str]]) -> bool:
    coded = [row for row in rows if _first_two(row).code]
    places = {next(n for n, cell in enumerate(row) if cell.strip()) for row in coded}
    return len(places) > 1 and len(coded) >= _MOST * len(rows)


def _first_two(row: Sequence[str]) -> _Entry:
    """Reads a row in which deeper levels put code and title further to the right."""
    cells = [cell.strip() for cell in row if cell.strip()]
    if len(cells) > 1 and _CODE.fullmatch(cells[0]) and any(map(str.isalpha, cells[1])):
        return _Entry(cells[0], cells[1])
    return _Entry("", " ".join(cells))


def read_parents(path: Path, *, option: str, read: ReadOptions = AS_IT_LOOKS) -> dict[str, str]:
    """Reads the code above each code, from a list with the columns `code` and `parent`."""
    header, rows = read_small(path.expanduser(), ("code", "parent"), option=option, read=read)
    code, parent = header.index("code"), header.index("parent")
    return {_accented(row[code].strip()): _accented(row[parent].strip()) for row in rows}


_WORDS = (
    ("code", "codes", "kode", "codigo", "codice", "kod", "notation"),
    (
        *("title", "titles", "label", "labels", "description", "name", "libelle", "intitule"),
        *("titulo", "titel", "titolo", "bezeichnung", "benennung", "descripcion", "descricao"),
        *("denominacion", "omschrijving", "benamning", "navn", "nimike", "heading"),
    ),
)
"""Words in the names of columns, most likely first."""
_ENGLISH = frozenset(("en", "eng", "english"))


class _NoColumns(InputError):
    """No columns of codes and titles were recognised by name."""


def _places(
    header: Sequence[str], columns: Sequence[str], place: str
) -> tuple[list[int], int, int | None, int | None]:
    folded = [_folded(name) for name in header]
    matches: list[int] = []
    for number, wanted in enumerate(columns or ("code", "title")):
        fitting = [n for n, name in enumerate(folded) if name == _folded(wanted)]
        if not columns and not fitting:
            fitting = _by_word(header, _WORDS[number])
        if len(fitting) != 1:
            raise _missing_column(header, wanted, place)
        matches += fitting
    *codes, title = matches
    description = _place_if_single(folded, "description")
    parent = _place_if_single(folded, "parent")
    return codes, title, None if description == title else description, parent


def _folded(name: str) -> str:
    return " ".join(name.split()).casefold()


def _place_if_single(names: Sequence[str], name: str) -> int | None:
    return names.index(name) if names.count(name) == 1 else None


def _missing_column(header: Sequence[str], wanted: str, place: str) -> _NoColumns:
    shown = "not named"
    if like_header(header):
        shown = ", ".join(repr(name) for name in header[:40])
    widths = ""
    if len(header) == 1:
        widths = (
            "None of , ; tab | ^ ~ $ separates its rows; of fixed widths give them: "
            "--read-codelist 'widths=[5,60]' and its names=[code,title]. "
        )
    return _NoColumns(
        f"{place}: column {wanted!r} is missing or repeated. Its columns are "
        f"{shown}. {widths}Set those of codes and titles with --set "
        "data.ingest.codelist_columns=[CODE,TITLE], or name all columns of a "
        "list without a header: --read-codelist 'names=[code,title]'",
        kind="no-code-columns",
        column=wanted,
    )


def _by_word(header: Sequence[str], words: Sequence[str]) -> list[int]:
    """The columns whose name contains the first of these words that occurs in any name."""
    words_of_names = [_letters(name).split() for name in header]
    by_word = (
        [n for n, name_words in enumerate(words_of_names) if word in name_words] for word in words
    )
    places = next((places for places in by_word if places), [])
    english = [n for n in places if not _ENGLISH.isdisjoint(words_of_names[n])]
    return english if len(places) > 1 and len(english) == 1 else places


def _letters(name: str) -> str:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)  # preferredLabel consists of two words
    plain = unicodedata.normalize("NFKD", words).casefold()
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


def titles_above(code: str, titles: Mapping[str, str]) -> list[str]:
    """The titles of the codes that are prefixes of a code, nearest first."""
    return [titles[code[:end]] for end in range(len(code) - 1, 0, -1) if code[:end] in titles]
