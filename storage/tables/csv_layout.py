"""Detects the encoding, separator, quotes and header of a CSV from its first rows."""

import codecs
import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Required, TypedDict

from storage.errors import Missing, OutOfRange, Unreadable
from storage.tables.encodings import decodes
from storage.tables.layouts import CUT, Cut, published_layout
from storage.tables.options import AS_IT_LOOKS, Quotes, ReadOptions
from storage.tables.source import (
    HEAD,
    MOST_COLUMNS,
    Source,
    recognise,
)

LONGEST_RECORD = 1 << 24
"""Maximum size of a record in bytes."""
_LOOKED_AT, _TITLES = 200, 50
"""Number of rows that the separator must fit, and number of rows in which the header is
searched.
"""
_WIDE = {
    "UTF-32": (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
    "UTF-16": (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
}
_SEPARATORS = (",", ";", "\t", "|", "^", "~", "$")

csv.field_size_limit(LONGEST_RECORD)  # Python's default refuses 131,073 characters


@dataclass(frozen=True)
class _Layout:
    delimiter: str
    quotes: Quotes
    header: Sequence[str]
    header_line: int
    """Lines above the header."""
    first_line: int
    """Lines above the first record."""
    below: Sequence[Sequence[str]]
    broken: bool
    required: bool
    """Whether the header contains every required column."""

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """Sort key of layouts: required columns, complete rows, and the share of rows with the
        header's width.
        """
        width = len(self.header)
        fitting = sum(
            len(row) == width or (len(row) == width + 1 and not row[-1]) for row in self.below
        )
        share = (fitting / len(self.below) if self.below else 1.0) * (width > 1)
        share *= share >= 0.5
        return self.required, share > 0 and not self.broken, share


def open_source(
    path: Path, option: str = "data", read: ReadOptions = AS_IT_LOOKS, required: Sequence[str] = ()
) -> Source:
    """The format of a file; for a CSV, including the encoding, separator, quotes and header that
    fit its first rows.

    Args:
        required: columns with which the header is found below lines of titles.
    """
    source, head = recognise(path, option, read)
    if source.kind != "csv":
        return source
    is_whole = len(head) < HEAD
    encoding = read.encoding or _encoding_of(source, head, whole=is_whole)
    text = head.decode(encoding, errors="replace").removeprefix("\ufeff")
    if not text.strip():
        raise Missing(f"{source.label} is blank. Use a file of records", kind="blank-table")
    if read == AS_IT_LOOKS or not (read.names or read.separator or read.widths):
        read = read.model_copy(update=published_layout(text))
    layout = max(
        _layouts(text, read, required, whole=is_whole), key=lambda each: each.rank
    )  # the first of the best layouts
    header, below = layout.header, layout.below
    if not header:
        raise Unreadable(
            f"{source.label} is not valid CSV. Close the open quote in the header",
            kind="open-quote-in-header",
        )
    if len(header) > MOST_COLUMNS:
        raise OutOfRange(
            f"{source.label} has over {MOST_COLUMNS:,} columns. Use a table of records",
            kind="too-many-columns",
        )
    if is_whole and not below and not layout.broken:
        raise Missing(
            f"{source.label} has a header and no records. Use a file of records",
            kind="only-a-header",
        )
    header = _fitted_header(header, below)
    written = tuple(header)
    names = list(map(_name_of, header))
    if not read.names and len(set(names)) == len(names):
        header = names
    quotes = layout.quotes
    if quotes == "none" and read.quotes is None and not read.widths and _are_quoted(below):
        quotes = "outer"
    return replace(
        source,
        columns=tuple(header),
        written=written,
        widths=read.widths,
        encoding=encoding,
        delimiter=layout.delimiter,
        quotes=quotes,
        header_line=None if read.names else layout.header_line,
        first_line=layout.first_line,
        blank_end=_has_blank_end(header, below),
        rows=max(round(text.count("\n") * source.bytes / len(head)) - layout.first_line, 1),
    )


def _encoding_of(source: Source, head: bytes, *, whole: bool) -> str:
    """The encoding that fits the first bytes of a file. Refuses UTF-16 and UTF-32."""
    for name, marks in _WIDE.items():
        if head.startswith(marks):
            raise Unreadable(
                f"{source.label} is {name}. Save it as UTF-8, or set "
                f"{source.read_option} encoding={name.lower()}",
                kind="utf-32",
            )
    for name, zero in (("utf-16-le", 1), ("utf-16-be", 0)):
        if len(head) > 8 and not any(head[zero:40:2]) and all(head[1 - zero : 40 : 2]):
            raise Unreadable(
                f"{source.label} is UTF-16. Save it as UTF-8, or set "
                f"{source.read_option} encoding={name}",
                kind="utf-16",
            )
    if b"\0" in head:
        raise Unreadable(
            f"{source.label} has a NUL byte, so it is damaged or not text. Use a table of text",
            kind="nul-in-header",
        )
    decoder = codecs.getincrementaldecoder("utf-8")()
    return "utf-8" if decodes(decoder, head, final=whole) else "cp1252"


def _fitted_header(header: Sequence[str], below: Sequence[Sequence[str]]) -> list[str]:
    """The header with as many names as the rows have cells, if a spreadsheet program wrote one more
    or less.
    """
    fitted = list(header)
    if below and not fitted[-1].strip() and all(len(row) == len(fitted) - 1 for row in below):
        fitted = fitted[:-1]
    numbers = list(map(str, range(1, len(below) + 1)))
    numbered = len(below) > 2 and [row[0] for row in below] == numbers
    if numbered and all(len(row) == len(fitted) + 1 for row in below):
        return ["", *fitted]  # R's row names have no header
    return fitted


def _has_blank_end(header: Sequence[str], below: Sequence[Sequence[str]]) -> bool:
    """Whether every row ends with a separator that is missing in the header."""
    if not below:
        return False
    return all(len(row) == len(header) + 1 and not row[-1].strip() for row in below)


def _layouts(
    text: str, read: ReadOptions, required: Sequence[str], *, whole: bool
) -> Iterator[_Layout]:
    if read.widths:
        text = "\n".join(map(Cut(read.widths).line, text.splitlines()))
    declared = re.match(r"\"?sep=(.)\"?(?:\r\n|\n|\r)", text)  # as written and read by Excel
    specified = read.separator or (declared and declared[1])
    kinds: tuple[Quotes, ...] = (
        ("double", "backslash", "none") if read.quotes is None else (read.quotes,)
    )
    if read.widths:
        specified, kinds = CUT, ("none",)
    for quotes in kinds:
        for delimiter in [specified] if specified else _SEPARATORS:
            unlikely = (quotes == "backslash" and '\\"' not in text) or (
                quotes == "none" and delimiter not in "\t|^~$"
            )
            looked = read.quotes is None and not read.widths
            if (looked and unlikely) or (delimiter not in text and delimiter != ","):
                continue
            skip = (read.skip or 0) + bool(declared)
            rows, broken = _first_rows(text, delimiter, quotes, skip, whole=whole)
            if read.names:
                yield _Layout(
                    delimiter,
                    quotes,
                    read.names,
                    skip,
                    skip,
                    [row for *_, row in rows],
                    broken,
                    True,
                )
                continue
            first, has = (
                (0, False)
                if read.skip is not None
                else _header_at([row for *_, row in rows], required)
            )
            before, after, header = rows[first] if rows else (skip, skip, [])
            yield _Layout(
                delimiter,
                quotes,
                header,
                before,
                after,
                [row for *_, row in rows[first + 1 :]],
                broken,
                has,
            )


def _first_rows(
    text: str, delimiter: str, quotes: Quotes, skip: int, *, whole: bool
) -> tuple[list[tuple[int, int, list[str]]], bool]:
    # the last line may be truncated
    end = 0 if whole else max(text.rfind("\n"), text.rfind("\r")) + 1
    file = io.StringIO(text[: end or None], newline="")
    for _ in range(skip):
        file.readline()
    rows: list[tuple[int, int, list[str]]] = []
    reader, before = csv.reader(file, **dialect(delimiter, quotes), strict=True), skip
    try:
        for row in reader:
            if row:
                rows.append((before, skip + reader.line_num, row))
            before = skip + reader.line_num
            if len(rows) == _LOOKED_AT:
                return rows, False
    except csv.Error:
        return rows, whole or bool(file.read(1))  # a quote may be open where the text was truncated
    return rows, False


class Dialect(TypedDict, total=False):
    """Settings of Python's `csv`."""

    delimiter: Required[str]
    escapechar: str
    doublequote: bool
    quoting: Literal[3]
    """`csv.QUOTE_NONE`."""


def dialect(delimiter: str, quotes: Quotes) -> Dialect:
    """The settings of Python's `csv` that match `csv_batches`."""
    if quotes == "double":
        return {"delimiter": delimiter}
    if quotes == "backslash":
        return {"delimiter": delimiter, "escapechar": "\\", "doublequote": False}
    return {"delimiter": delimiter, "quoting": csv.QUOTE_NONE}


def _header_at(rows: Sequence[Sequence[str]], required: Sequence[str]) -> tuple[int, bool]:
    for n, row in enumerate(rows[:_TITLES]):
        if required and set(required) <= {_name_of(cell) for cell in row}:
            return n, True
    filled = [sum(bool(cell.strip()) for cell in row) for row in rows[: _TITLES + 1]]
    titles = next((n for n, number in enumerate(filled) if number > 1), 0)
    return titles * (
        2 * sum(number > 1 for number in filled[titles:]) > len(filled) - titles
    ), False


def _name_of(cell: str) -> str:
    """A column's name without outer whitespace and quotes, which some programs add."""
    name = cell.strip()
    return name[1:-1].strip() if is_quoted(name) and name[1:-1].strip() else name


def is_quoted(cell: str) -> bool:
    return len(cell) > 1 and cell[0] == cell[-1] == '"'


def _are_quoted(rows: Sequence[Sequence[str]]) -> bool:
    """Whether most rows have quoted cells, so that only a stray quote caused them to be read as
    text.
    """
    return 2 * sum(any(map(is_quoted, row)) for row in rows) > len(rows)
