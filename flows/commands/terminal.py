"""Prints text on a terminal without letting the text control the terminal.

Codes, titles, narratives, file names and partner names come from elsewhere. An escape sequence
could clear the screen, rename the window or overwrite the verdict. A bidirectional mark could show
a different text. `[/x]` must not be read as markup.
"""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

import typer
from typer.core import TyperGroup

from flows.server.settings import home_of

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
    """Writes out control characters, halves of surrogate pairs and bidirectional
    marks (`\\u001b`).
    """
    # guard: test_what_is_said
    return "".join(_escape(c) if _is_active(c) else c for c in text)


def say(text: str, *, err: bool = False, end: str = "\n") -> None:
    first_sign.cancel()
    typer.echo(escape_text(text) + end, err=err, nl=False)


class FirstSign:
    """Prints the first message of a slow command on stderr, unless it prints something sooner."""

    AFTER = 1.0

    def __init__(self) -> None:
        self._timer: Timer | None = None

    def expect(self, text: str) -> None:
        self._timer = Timer(self.AFTER, say, (text,), {"err": True})
        self._timer.daemon = True  # a command that has ended does not wait for the timer
        self._timer.start()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


first_sign = FirstSign()
"""The first message of this process's command."""


class Group(TyperGroup):
    """Runs commands like Typer, with escaped errors on options and arguments.

    Only the top group needs it, because errors of inner groups pass through it.
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
        message = getattr(
            error, "format_message", None
        )  # the base of Click's errors, which typer does not export
        if message is not None:
            text = escape_text(message())
            error.format_message = lambda: text  # pyrefly: ignore[missing-attribute]
        raise


def _is_active(c: str) -> bool:
    return (
        c not in _HARMLESS and (c < " " or "\x7f" <= c <= "\x9f" or "\ud800" <= c <= "\udfff")
    ) or c in _BIDIRECTIONAL


def _escape(c: str) -> str:
    return f"\\u{ord(c):04x}"  # as in JSON, so that JSON output remains valid


def count_of(number: int, noun: str) -> str:
    """Formats a number with its noun, which gets an s unless the number is one: `1
    row`, `2,000 rows`.
    """
    return f"{number:,} {noun if number == 1 else noun + 's'}"


def nearby(path: str | Path) -> str:
    """Shortens a path below the current folder, where the next command is typed."""
    path = Path(path)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def command_line(*words: str | Path, home: str | Path | None = None) -> str:
    """Quotes a command line of `autocoder`. Words in capitals such as PARTNER are for the user to
    fill in.

    Args:
        home: workspace of the command; it is included unless the command finds it by default.
    """
    home_option = (
        [] if home is None or Path(home).resolve() == home_of(None) else ["--home", nearby(home)]
    )
    return shlex.join(
        [
            "autocoder",
            *(nearby(word) if isinstance(word, Path) else word for word in words),
            *home_option,
        ]
    )


def command_of(flow: str) -> str:
    return "train" if flow == "retrain" else flow
