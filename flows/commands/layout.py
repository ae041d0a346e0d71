"""Lays out text and tables for the terminal's width with Rich, which commands
without tables need not import.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import rich.console
from rich.cells import cell_len
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from flows.commands.terminal import escape_text, say


class Console(rich.console.Console):
    """Prints like Rich, but without markup, and escapes every text."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a string. Every printed string goes through here, including the
        cells of tables.
        """
        return super().render_str(escape_text(text), **options)


def say_prose(text: str, *, name: str | None = None, start: str = "", err: bool = False) -> None:
    """Print a sentence, wrapped at the terminal's width, optionally after a name in a column of its
    own.

    Args:
        start: text before the sentence; further lines are indented by its width.
    """
    console = Console(stderr=err)
    start = start if name is None else f"{name:<15} "
    keep = {
        "break_long_words": False,
        "break_on_hyphens": False,
        "subsequent_indent": " " * len(start),
    }
    lines = textwrap.wrap(start + text, console.width, **keep)
    say("\n".join(lines) if console.is_terminal else start + text, err=err)


@dataclass(frozen=True)
class Column:
    """A column of a table: its name, its cells, and its behaviour on a narrow terminal."""

    name: str
    cells: Sequence[str]
    rank: int = 0
    """Columns with the highest rank are left out first; columns with rank 0 never are."""
    wraps: bool = False
    """Whether long cells are wrapped into lines. Other columns are never wrapped."""
    right: bool = False
    """Whether the column is right-aligned, as for numbers."""


_LEAST, _WIDE = 12, 100_000
"""Smallest width of a column that wraps, and the width for a pipe."""


def print_table(columns: Sequence[Column]) -> None:
    """Print a table that fits the terminal, and name the columns that it leaves out. A pipe gets
    all columns, unwrapped.
    """
    for line in fitted_table(columns):
        say(line)


def fitted_table(columns: Sequence[Column]) -> list[str]:
    """Lays out a table for the current terminal, or for a pipe."""
    console = Console()
    return table_lines(columns, console.width if console.is_terminal else None)


def table_lines(columns: Sequence[Column], width: int | None) -> list[str]:
    """Lays out a table without truncating a cell. If the terminal is too narrow, each cell gets a
    line.

    Args:
        width: width of the terminal in columns, or None for no limit.
    """
    console, wide = (
        Console(width=n, file=io.StringIO(), color_system=None) for n in (width or _WIDE, _WIDE)
    )
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
    return lines + (
        [f"(not shown at this width: {', '.join(reversed(dropped))})"] if dropped else []
    )


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
        lines += [
            f"{column.name.strip()}: {escape_text(cell)}"
            for column, cell in zip(columns, row, strict=True)
        ] + [""]
    return lines[:-1]
