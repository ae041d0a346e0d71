"""Prints text on a terminal without letting it act on the terminal.

Codes, titles, narratives, names of files and partners come from elsewhere. An escape sequence in one could clear the
screen, rename the window or overwrite the verdict; a bidirectional mark could show a different text; `[/x]` must not
count as markup.
"""

import io
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import rich.console
import typer
from rich.cells import cell_len
from rich.measure import Measurement
from rich.table import Table
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
    # guard: test_what_is_said
    return "".join(_escape(c) if _is_active(c) else c for c in text)


def say(text: str, *, err: bool = False, end: str = "\n") -> None:
    typer.echo(escape_text(text) + end, err=err, nl=False)


class Console(rich.console.Console):
    """Prints as Rich does, without markup, and escapes every text."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a string; every printed string, also in cells of tables, comes through here."""
        return super().render_str(escape_text(text), **options)


def say_prose(text: str, *, name: str | None = None) -> None:
    """Print a sentence, broken at blanks where the terminal ends; behind a name, in a column of its own."""
    console, start = Console(), "" if name is None else f"{name:<15} "
    keep = {"break_long_words": False, "break_on_hyphens": False, "subsequent_indent": " " * len(start)}
    lines = textwrap.wrap(start + text, console.width, **keep)
    say("\n".join(lines) if console.is_terminal else start + text)


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


_LEAST, _WIDE = 12, 100_000
"""Least width of a column that wraps, and the width of a pipe."""


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
    console, wide = (Console(width=n, file=io.StringIO(), color_system=None) for n in (width or _WIDE, _WIDE))
    shown, dropped = list(columns), []
    while Measurement.get(wide, wide.options, _table(shown)).minimum > console.width:
        last = max(shown, key=lambda column: column.rank)
        if not last.rank:
            return _stacked(columns)
        shown.remove(last)
        dropped.append(last.name)
    with console.capture() as captured:
        console.print(_table(shown))
    lines = [line.rstrip() for line in captured.get().splitlines()]
    return lines + ([f"(not shown at this width: {', '.join(reversed(dropped))})"] if dropped else [])


def _table(columns: Sequence[Column]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for column in columns:
        longest = max(map(cell_len, (column.name, *column.cells)))
        least = min(longest, max(_LEAST, cell_len(column.name))) if column.wraps else longest
        table.add_column(
            column.name,
            justify="right" if column.right else "left",
            no_wrap=not column.wraps,
            overflow="fold",
            min_width=least,
        )
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*(escape_text(cell).replace("\n", " ") for cell in row))
    return table


def _stacked(columns: Sequence[Column]) -> list[str]:
    lines = []
    for row in zip(*(column.cells for column in columns), strict=True):
        lines += [f"{column.name.strip()}: {escape_text(cell)}" for column, cell in zip(columns, row, strict=True)] + [
            ""
        ]
    return lines[:-1]


class Group(TyperGroup):
    """Runs commands as Typer does, with escaped errors about options and arguments.

    Only the top group needs it: errors of groups within come through it.
    """

    def make_context(self, *args: Any, **options: Any) -> Any:
        with _escaped_errors():
            return super().make_context(*args, **options)

    def invoke(self, *args: Any, **options: Any) -> Any:
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
