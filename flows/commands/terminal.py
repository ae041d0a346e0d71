"""What a terminal is given: text that can do nothing to it.

Codes, titles, narratives, names of files and partners come from elsewhere. An escape sequence in one could clear the
screen, rename the window or write over the verdict; a mark that turns the direction of writing shows another text than
is there; `[/x]` is no markup.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import rich.console
import typer
from rich.text import Text
from typer.core import TyperGroup

_KEPT = {"\n", "\t"}
_TURNING = {*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A)), "\u2028", "\u2029", "\u200e", "\u200f"}


def shown(text: str) -> str:
    """Text with its control characters, halves of surrogate pairs and turning marks written out (`\\u001b`)."""
    return "".join(_written_out(c) if _acts(c) else c for c in text)


def say(text: str, *, err: bool = False, end: str = "\n") -> None:
    """Print on stdout, or on stderr."""
    typer.echo(shown(text) + end, err=err, nl=False)


class Console(rich.console.Console):
    """Rich's, without markup, and with every text as `shown` has it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Rich's: whatever is printed as a string, cells of tables among it, comes through here."""
        return super().render_str(shown(text), **options)


class Group(TyperGroup):
    """Typer's, whose complaints about options and arguments show these as `shown` has them.

    Of the uppermost group alone: errors of those within come through it.
    """

    def make_context(self, *args: Any, **options: Any) -> Any:
        """Typer's: arguments before the command."""
        with _shown_errors():
            return super().make_context(*args, **options)

    def invoke(self, *args: Any, **options: Any) -> Any:
        """Typer's: the command, its options and arguments."""
        with _shown_errors():
            return super().invoke(*args, **options)


@contextmanager
def _shown_errors() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        message = getattr(error, "format_message", None)  # of Click's own, which typer keeps to itself
        if message is not None:
            text = shown(message())
            error.format_message = lambda: text  # pyright: ignore[reportAttributeAccessIssue]
        raise


def _acts(c: str) -> bool:
    return (c not in _KEPT and (c < " " or "\x7f" <= c <= "\x9f" or "\ud800" <= c <= "\udfff")) or c in _TURNING


def _written_out(c: str) -> str:
    return f"\\u{ord(c):04x}"  # as JSON has it, so that JSON stays what it is
