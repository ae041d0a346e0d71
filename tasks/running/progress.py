"""What a run tells while it works: steps done of each stage, and one line of figures at its end.

Stages call `report` and `finished`; who listens (a terminal, Prefect's page, nobody) is set by whoever runs the flow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
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


_listeners: ContextVar[tuple[Listener, ...]] = ContextVar("listeners", default=())


@contextmanager
def listening(*listeners: Listener) -> Iterator[None]:
    """Have these listeners hear of all stages run inside the block, in task runs side by side too."""
    token = _listeners.set((*_listeners.get(), *listeners))
    try:
        yield
    finally:
        _listeners.reset(token)


def started(label: str) -> None:
    """Tell all listeners that a stage begins."""
    for listener in _listeners.get():
        listener.started(label)


def sized(label: str, records: int) -> None:
    """Tell all listeners how many records pass through the model in a stage."""
    for listener in _listeners.get():
        listener.sized(label, records)


def report(label: str, done: int, total: int | None) -> None:
    """Tell all listeners how far a stage is."""
    for listener in _listeners.get():
        listener.report(label, done, total)


def reporter(label: str) -> Callable[[int, int], None]:
    """`report` of one stage to those who listen now: threads that the stage starts have no listeners of their own."""
    listeners = _listeners.get()

    def tell(done: int, total: int) -> None:
        for listener in listeners:
            listener.report(label, done, total)

    return tell


def finished(label: str, figures: Mapping[str, Any], *, reused: bool, seconds: float) -> None:
    """Tell all listeners that a stage ended."""
    for listener in _listeners.get():
        listener.finished(label, figures, reused=reused, seconds=seconds)


def failed(label: str) -> None:
    """Tell all listeners that a stage ended in an error."""
    for listener in _listeners.get():
        listener.failed(label)


@contextmanager
def failures_told(label: str) -> Iterator[None]:
    """Tell all listeners where the block ends in an error."""
    try:
        yield
    except Exception:
        failed(label)
        raise


_MOST = 12
"""Figures that a line still has; of more, those of a single bin or level are left out, which a number in them names."""


def line_of(figures: Mapping[str, Any]) -> str:
    """Figures as one line: `records 2,354, loss 0.61`. What it leaves out of a long one it counts."""
    scalars = {name: value for name, value in figures.items() if _is_scalar(value)}
    told = scalars
    if len(scalars) > _MOST:
        told = {name: value for name, value in scalars.items() if not any(w[:1].isdigit() for w in name.split("_"))}
    more = [f"and {len(scalars) - len(told)} more"] if len(told) < len(scalars) else []
    return ", ".join([*(f"{name.replace('_', ' ')} {_shown(value)}" for name, value in told.items()), *more])


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
