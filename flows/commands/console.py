"""The terminal: one bar for the stage at work, one line of figures for each that ended. Elsewhere, lines in between."""

from __future__ import annotations

import time
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


def duration(seconds: float) -> str:
    """For people: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Told:
    """What is said of long stages where no bar can move: a line after 15 seconds, then each minute."""

    FIRST, EVERY = 15.0, 60.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, Lock()
        self._began: dict[str, float] = {}
        self._first: dict[str, int] = {}
        self._due: dict[str, float] = {}

    def started(self, label: str) -> None:
        """The clock of a stage starts."""
        with self._lock:
            self._began[label] = self._clock()
            self._due[label] = self._began[label] + self.FIRST
            self._first.pop(label, None)

    def line(self, label: str, done: int, total: int | None) -> str | None:
        """What to say now; None: nothing yet. Time left is told by what was done since the first report."""
        now = self._clock()
        with self._lock:
            began, first = self._began.setdefault(label, now), self._first.setdefault(label, done)
            if now < self._due.setdefault(label, now + self.FIRST):
                return None
            self._due[label] = now + self.EVERY
        if not total:
            return f"{'':>7} {label}: {done:,} done, {duration(now - began)} so far"
        if done <= first:
            return f"{'':>7} {label}: {done / total:.0%} in {duration(now - began)}"
        took = (now - began) / (done - first)
        left = f", {1 / took:.3g}/s, about {duration(took * (total - done))} left"
        return f"{'':>7} {label}: {done / total:.0%} in {duration(now - began)}{left}"


class ConsoleListener(Listener):
    """Draws the progress of its block's stages on stderr, so that stdout stays for what a program reads.

    Args:
        quiet: nothing at all.
        bars: one for the stage at work; those of stages side by side would overwrite each other.
    """

    def __init__(self, *, quiet: bool = False, bars: bool = True) -> None:
        self._lock, self._stack = Lock(), ExitStack()
        self._console = Console(stderr=True, quiet=quiet)
        self._bars = bars and self._console.is_terminal
        self._told = None if self._console.is_terminal else Told()
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

    def expect(self, what: str, seconds: float, *, measured: bool) -> None:
        """Say beforehand how long it takes."""
        by = "by what stages took in this workspace" if measured else "rough: nothing was timed in this workspace yet"
        self._console.print(f"{what}: about {duration(seconds)} ({by})", soft_wrap=True)

    def started(self, label: str) -> None:
        """Put up the bar of a stage."""
        if self._told is not None:
            self._told.started(label)
        if self._bars:
            self._clear()
            self._bar = self._progress.add_task(shown(label), total=None)

    def report(self, label: str, done: int, total: int | None) -> None:
        """Move the bar, or, off a terminal, say now and then how far it is."""
        if self._told is not None and (line := self._told.line(label, done, total)):
            with self._lock:
                self._console.print(line, soft_wrap=True)
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
