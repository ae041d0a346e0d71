"""Prints text on a terminal without letting it act on the terminal.

Codes, titles, narratives, names of files and partners come from elsewhere. An escape sequence in one could clear the
screen, rename the window or overwrite the verdict; a bidirectional mark could show a different text; `[/x]` must not
count as markup.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import rich.console
import typer
from rich.cells import cell_len
from rich.text import Text
from typer.core import TyperGroup

_HARMLESS = {"\n", "\t"}
_BIDIRECTIONAL = {
    *map(chr, range(0x202A, 0x202F)),
    *map(chr, range(0x2066, 0x206A)),
    "\u2028",
    "\u2029",
    "\u200e",
    "\u200f",
}


def escape_text(text: str) -> str:
    """Writes out control characters, halves of surrogate pairs and bidirectional marks (`\\u001b`)."""
    # guard: what acts on a terminal is written out
    return "".join(_escape(c) if _is_active(c) else c for c in text)


def say(text: str, *, err: bool = False, end: str = "\n") -> None:
    """Print on stdout, or on stderr."""
    typer.echo(escape_text(text) + end, err=err, nl=False)


class Console(rich.console.Console):
    """Prints as Rich does, without markup, and escapes every text."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a string; every printed string, also in cells of tables, comes through here."""
        return super().render_str(escape_text(text), **options)


def say_prose(text: str) -> None:
    """Print a sentence, broken at blanks where the terminal ends."""
    console = Console()
    lines = textwrap.wrap(text, console.width, break_long_words=False, break_on_hyphens=False)
    say("\n".join(lines) if console.is_terminal else text)


@dataclass(frozen=True)
class Column:
    """Holds one column of a table: its name, its cells, and how it gives way on a narrow terminal."""

    name: str
    cells: Sequence[str]
    rank: int = 0
    """Columns of the highest rank are left out first; those of rank 0 never."""
    wraps: bool = False
    """Broken into lines where it is too long; other columns stay whole."""
    right: bool = False
    """Aligned on its end, as numbers are."""


_GAP, _LEAST = 2, 12
"""Blanks between columns, and the least width of a column that wraps."""


def print_table(columns: Sequence[Column]) -> None:
    """Print a table that fits the terminal, and name the columns that it leaves out; a pipe gets all, unbroken."""
    for line in fitted_table(columns):
        say(line)


def fitted_table(columns: Sequence[Column]) -> list[str]:
    """Lays out a table for the terminal at hand, or for a pipe."""
    console = Console()
    return table_lines(columns, console.width if console.is_terminal else None)


def table_lines(columns: Sequence[Column], width: int | None) -> list[str]:
    """Lays out a table without cutting a cell; a terminal that is too narrow gets one line per cell.

    Args:
        width: of the terminal in columns; None: without limit.
    """
    shown = [replace(one, cells=[escape_text(cell).replace("\n", " ") for cell in one.cells]) for one in columns]
    dropped = []
    while width is not None and _least(shown) > width and any(one.rank for one in shown):
        last = max(shown, key=lambda one: one.rank)
        shown.remove(last)
        dropped.append(last.name)
    if width is not None and _least(shown) > width:
        return _stacked(columns)
    room = None if width is None else width - _least(shown)
    widths = []
    for one in shown:
        more = _longest(one) - _floor(one)
        widths.append(_floor(one) + (more if room is None else min(more, room)))
        room = None if room is None else room - min(more, room)
    lines = [_line([one.name for one in shown], shown, widths)]
    for row in zip(*(one.cells for one in shown), strict=True):
        cells = [
            _broken(cell, size) if one.wraps else [cell] for cell, one, size in zip(row, shown, widths, strict=True)
        ]
        for number in range(max(map(len, cells))):
            parts = [cell[number] if number < len(cell) else "" for cell in cells]
            lines.append(_line(parts, shown, widths))
    if dropped:
        lines.append(f"(not shown at this width: {', '.join(reversed(dropped))})")
    return lines


def _longest(column: Column) -> int:
    return max(map(cell_len, (column.name, *column.cells)))


def _floor(column: Column) -> int:
    return min(_longest(column), max(_LEAST, cell_len(column.name))) if column.wraps else _longest(column)


def _least(columns: Sequence[Column]) -> int:
    return sum(map(_floor, columns)) + _GAP * (len(columns) - 1)


def _broken(cell: str, width: int) -> list[str]:
    return textwrap.wrap(cell, width, break_on_hyphens=False) or [""]


def _line(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    parts = []
    for cell, one, size in zip(cells, columns, widths, strict=True):
        blanks = " " * (size - cell_len(cell))
        parts.append(blanks + cell if one.right else cell + blanks)
    return (" " * _GAP).join(parts).rstrip()


def _stacked(columns: Sequence[Column]) -> list[str]:
    lines = []
    for number in range(len(columns[0].cells)):
        lines += [f"{one.name.strip()}: {escape_text(one.cells[number])}" for one in columns] + [""]
    return lines[:-1]


class Group(TyperGroup):
    """Runs commands as Typer does, with escaped errors about options and arguments.

    Only the top group needs it: errors of groups within come through it.
    """

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Parse arguments before the command."""
        with _escaped_errors():
            return super().make_context(*args, **options)

    def invoke(self, *args: Any, **options: Any) -> Any:
        """Run the command with its options and arguments."""
        with _escaped_errors():
            return super().invoke(*args, **options)


@contextmanager
def _escaped_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        message = getattr(error, "format_message", None)  # of Click's errors, which typer does not export
        if message is not None:
            text = escape_text(message())
            error.format_message = lambda: text  # pyrefly: ignore[missing-attribute]
        raise


def _is_active(c: str) -> bool:
    return (
        c not in _HARMLESS and (c < " " or "\x7f" <= c <= "\x9f" or "\ud800" <= c <= "\udfff")
    ) or c in _BIDIRECTIONAL


def _escape(c: str) -> str:
    return f"\\u{ord(c):04x}"  # as in JSON, so that JSON stays valid
