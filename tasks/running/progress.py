"""What a run tells while it works: steps done of each stage, and one line of figures at its end.

Stages call `report` and `finished`; who listens (a terminal, Prefect's page, nobody) is set by whoever runs the flow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any


class Listener:
    """Hears of every stage, and of what it overrides; its methods must be cheap, since training loops call them."""

    def started(self, label: str) -> None:
        """A stage begins."""

    def sized(self, label: str, records: int) -> None:
        """`records` pass through the model in the whole stage, each as often as it does."""

    def report(self, label: str, done: int, total: int | None) -> None:
        """`done` of `total` steps; None where the total is not known."""

    def finished(self, label: str, figures: Mapping[str, Any], *, reused: bool, seconds: float) -> None:
        """A stage ended, or was found finished."""

    def failed(self, label: str) -> None:
        """A stage ended in an error."""


_listeners: list[Listener] = []


@contextmanager
def listening(*listeners: Listener) -> Iterator[None]:
    """Have these listeners hear of all stages run inside the block."""
    _listeners.extend(listeners)
    try:
        yield
    finally:
        for listener in listeners:
            _listeners.remove(listener)


def started(label: str) -> None:
    """Tell all listeners that a stage begins."""
    for listener in _listeners:
        listener.started(label)


def sized(label: str, records: int) -> None:
    """Tell all listeners how many records pass through the model in a stage."""
    for listener in _listeners:
        listener.sized(label, records)


def report(label: str, done: int, total: int | None) -> None:
    """Tell all listeners how far a stage is."""
    for listener in _listeners:
        listener.report(label, done, total)


def finished(label: str, figures: Mapping[str, Any], *, reused: bool, seconds: float) -> None:
    """Tell all listeners that a stage ended."""
    for listener in _listeners:
        listener.finished(label, figures, reused=reused, seconds=seconds)


def failed(label: str) -> None:
    """Tell all listeners that a stage ended in an error."""
    for listener in _listeners:
        listener.failed(label)


def line_of(figures: Mapping[str, Any]) -> str:
    """Figures as one line: `records 2,354, loss 0.61`."""
    return ", ".join(
        f"{name.replace('_', ' ')} {_shown(value)}" for name, value in figures.items() if _is_scalar(value)
    )


def _is_scalar(value: Any) -> bool:
    return isinstance(value, int | float | str | bool)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    text = str(value)
    return f"{text[:12]}…" if len(text) == 64 else text  # a digest: enough of it to compare by eye


class OneAtATime(Listener):
    """Lets one thread at a time speak to a listener; bars of stages side by side would overwrite each other."""

    def __init__(self, inner: Listener, *, bars: bool) -> None:
        self._inner, self._bars, self._lock = inner, bars, Lock()

    def started(self, label: str) -> None:
        """Pass it on where stages run one after another."""
        if self._bars:
            self._inner.started(label)

    def report(self, label: str, done: int, total: int | None) -> None:
        """Likewise."""
        if self._bars:
            self._inner.report(label, done, total)

    def finished(self, label: str, figures: Any, *, reused: bool, seconds: float) -> None:
        """Pass it on, in turn."""
        with self._lock:
            self._inner.finished(label, figures, reused=reused, seconds=seconds)
