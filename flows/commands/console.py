"""The terminal: one bar for the stage at work, one line of figures for each that ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from threading import Lock
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from flows.commands.terminal import Console, shown
from tasks.running.progress import Listener, line_of, listening


class RateColumn(ProgressColumn):
    """Steps a second (of a sampler: draws), once there have been some."""

    def render(self, task: Task) -> Text:
        """Three digits of it."""
        return Text("" if not task.speed else f"{task.speed:.3g}/s")


class ConsoleListener(Listener):
    """Draws the progress of its block's stages on stderr, so that stdout stays for what a program reads.

    Args:
        quiet: nothing at all.
        bars: one for the stage at work; those of stages side by side would overwrite each other.
    """

    def __init__(self, *, quiet: bool = False, bars: bool = True) -> None:
        self._bars, self._lock, self._stack = bars, Lock(), ExitStack()
        self._console = Console(stderr=True, quiet=quiet)
        self._progress = Progress(
            TextColumn("  {task.description}", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            RateColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._bar: TaskID | None = None

    def __enter__(self) -> ConsoleListener:
        self._stack.enter_context(self._progress)
        self._stack.callback(self._clear)
        self._stack.enter_context(listening(self))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def started(self, label: str) -> None:
        """Put up the bar of a stage."""
        if self._bars:
            self._clear()
            self._bar = self._progress.add_task(shown(label), total=None)

    def report(self, label: str, done: int, total: int | None) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._progress.update(self._bar, completed=done, total=total)

    def bar(self, label: str) -> Callable[[int, int], None]:
        """A bar for work that is no stage; call it with what is done and the whole."""
        self.started(label)
        return lambda done, total: self.report(label, done, total)

    def finished(self, label: str, figures: Mapping[str, Any], *, reused: bool, seconds: float) -> None:
        """One line of figures."""
        mark = Text("reused", "cyan") if reused else Text(f"{seconds:5.1f}s", "green")
        line = Text.assemble(mark, "  ", (shown(label), "bold"), "  ", shown(line_of(figures)))
        with self._lock:
            self._clear()
            self._console.print(line, soft_wrap=True)

    def _clear(self) -> None:
        if self._bar is not None:
            self._progress.remove_task(self._bar)
            self._bar = None
