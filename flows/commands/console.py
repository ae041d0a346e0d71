"""Shows progress on a terminal: a bar for the running stage, and a line per finished stage.
Elsewhere, it prints lines at intervals.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from threading import Lock
from typing import TYPE_CHECKING

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from flows.commands.layout import Console
from flows.commands.terminal import escape_text, first_sign
from tasks.running.progress import Listener, line_of, listening, words_of

if TYPE_CHECKING:
    from storage.json_values import Figures


def duration(seconds: float) -> str:
    """Formats a duration for readers: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class StageHeartbeat:
    """Prints lines on long stages if no bar can be drawn: after 15 seconds, then every minute."""

    FIRST, EVERY = 15.0, 60.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, Lock()
        self._began: dict[str, float] = {}
        self._base: dict[str, tuple[int, float]] = {}
        """Work done and time, at the first report and at the last line, because a
        stage starts slowly.
        """
        self._due: dict[str, float] = {}

    def started(self, label: str) -> None:
        with self._lock:
            self._began[label] = self._clock()
            self._due[label] = self._began[label] + self.FIRST
            self._base.pop(label, None)

    def line(self, label: str, done: int, total: int | None) -> str | None:
        """Returns the line to print now, or None. The remaining time is estimated from the work
        since the last line.
        """
        now = self._clock()
        with self._lock:
            began, (first, since) = (
                self._began.setdefault(label, now),
                self._base.setdefault(label, (done, now)),
            )
            if now < self._due.setdefault(label, now + self.FIRST):
                return None
            self._due[label], self._base[label] = now + self.EVERY, (done, now)
        if not total:
            return f"{'':>7} {label}: {done:,} done, {duration(now - began)} so far"
        if done <= first:
            return f"{'':>7} {label}: {done / total:.0%} in {duration(now - began)}"
        took = (now - since) / (done - first)
        pace = f"{1 / took:.3g}/s" if took <= 1 else f"{duration(took)} each"
        remaining = f"about {duration(took * (total - done))} left"
        so_far = f"{'':>7} {label}: {done / total:.0%} in {duration(now - began)}"
        return so_far if total == 1 else f"{so_far}, {pace}, {remaining}"


class StepsColumn(MofNCompleteColumn):
    """Shows the steps of a stage, and nothing if their number is unknown."""

    def render(self, task: Task) -> Text:
        return Text("") if task.total is None else super().render(task)


class ConsoleListener(Listener):
    """Draws the progress of its block's stages on stderr. Results go to stdout.

    Args:
        bars: show a bar for the running stage. Parallel stages need False, because their bars would
            overwrite each other.
        verbose: show stages by name with all their figures, instead of sentences.
    """

    def __init__(self, *, bars: bool = True, verbose: bool = False) -> None:
        self._lock, self._stack, self._verbose = Lock(), ExitStack(), verbose
        self._console = Console(stderr=True)
        self._bars = bars and self._console.is_terminal
        self._heartbeat = None if self._console.is_terminal else StageHeartbeat()
        self._progress = Progress(
            TextColumn(
                "  {task.description}",
                markup=False,
                table_column=Column(no_wrap=True, overflow="ellipsis"),
            ),
            BarColumn(bar_width=8),
            StepsColumn(table_column=Column(no_wrap=True)),
            TimeElapsedColumn(),
            TimeRemainingColumn(compact=True),
            console=self._console,
            transient=True,
        )
        self._bar: TaskID | None = None
        self._shown = ""
        self._names: dict[str, str] = {}

    def __enter__(self) -> ConsoleListener:
        first_sign.cancel()
        self._stack.enter_context(self._progress)
        self._stack.callback(self._clear)
        self._stack.enter_context(listening(self))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def expect(self, what: str, seconds: float, *, measured: bool) -> None:
        by = (
            "from the time that stages took in this workspace"
            if measured
            else "a rough guess: no such stage has run in this workspace yet"
        )
        self._console.print(f"{what}: about {duration(seconds)} ({by})", soft_wrap=True)

    def named(self, label: str, name: str) -> None:
        self._names[label] = name

    def started(self, label: str) -> None:
        if self._heartbeat is not None:
            self._heartbeat.started(label)
        self._show(label, 0, None)

    def report(self, label: str, done: int, total: int | None) -> None:
        if self._heartbeat is not None and (line := self._heartbeat.line(label, done, total)):
            with self._lock:
                self._console.print(line, soft_wrap=True)
        self._show(label, done, total)

    def bar(self, label: str) -> Callable[[int, int], None]:
        """Returns a callback for work outside stages, to be called with steps done
        and the total.
        """
        self.started(label)
        return lambda done, total: self.report(label, done, total)

    def finished(self, label: str, figures: Figures, *, reused: bool, seconds: float) -> None:
        mark = Text("reused", "cyan") if reused else Text(f"{seconds:5.1f}s", "green")
        name = self._names.pop(label, label)
        name, words = (label, line_of(figures)) if self._verbose else words_of(name, label, figures)
        line = Text.assemble(
            mark, "  ", (f"{escape_text(name):<8}", "bold"), "  ", escape_text(words)
        )
        with self._lock:
            self._clear()
            self._console.print(line, soft_wrap=True)

    def _show(self, label: str, done: int, total: int | None) -> None:
        if not self._bars:
            return
        with self._lock:
            if (
                self._bar is None or self._shown != label
            ):  # a stage that was interrupted by another one gets its bar back
                self._clear()
                self._bar, self._shown = (
                    self._progress.add_task(escape_text(label), total=total, completed=done),
                    label,
                )
            self._progress.update(self._bar, completed=done, total=total)

    def _clear(self) -> None:
        if self._bar is not None:
            self._progress.remove_task(self._bar)
            self._bar = None
