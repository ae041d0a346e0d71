"""Reports progress: the steps done in each stage, and one line of figures when it ends.

Stages call `report` and `finished`. The flow sets the listeners (a terminal, Prefect's page, or
none).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeGuard

from mechanisms.privacy.numerics import epsilon_text, lower_text
from storage.figures import delta_text

if TYPE_CHECKING:
    from storage.json_values import Figures, Json


class Listener:
    """Receives the events of every stage. Its methods must be cheap, because training loops call
    them.
    """

    def named(self, label: str, name: str) -> None:
        """Called with the stage's name before it starts. The label also includes a branch, round or
        seed.
        """

    def started(self, label: str) -> None:
        """Called when a stage starts."""

    def sized(self, label: str, records: int) -> None:
        """Called with the number of records that pass through the model in the whole stage,
        including repetitions.
        """

    def report(self, label: str, done: int, total: int | None) -> None:
        """Called when `done` of `total` steps are finished; `total` is None if it is unknown."""

    def finished(self, label: str, figures: Figures, *, reused: bool, seconds: float) -> None:
        """Called when a stage ends, whether it was computed or reused."""

    def failed(self, label: str) -> None:
        """Called when a stage fails."""


_listeners: ContextVar[tuple[Listener, ...]] = ContextVar("listeners", default=())


@contextmanager
def listening(*listeners: Listener, others: bool = True) -> Iterator[None]:
    """Adds listeners to all stages inside the block, including concurrent task runs. With
    `others=False` only these listen.
    """
    token = _listeners.set((*(_listeners.get() if others else ()), *listeners))
    try:
        yield
    finally:
        _listeners.reset(token)


def started(label: str, name: str | None = None) -> None:
    for listener in _listeners.get():
        listener.named(label, name or label)
        listener.started(label)


def sized(label: str, records: int) -> None:
    for listener in _listeners.get():
        listener.sized(label, records)


def report(label: str, done: int, total: int | None) -> None:
    for listener in _listeners.get():
        listener.report(label, done, total)


def reporter(label: str) -> Callable[[int, int], None]:
    """Returns `report` for one stage, bound to the current listeners, because threads do not
    inherit them.
    """
    listeners = _listeners.get()

    def notify(done: int, total: int) -> None:
        for listener in listeners:
            listener.report(label, done, total)

    return notify


def finished(label: str, figures: Figures, *, reused: bool, seconds: float) -> None:
    for listener in _listeners.get():
        listener.finished(label, figures, reused=reused, seconds=seconds)


@contextmanager
def report_failures(label: str) -> Iterator[None]:
    try:
        yield
    except Exception:
        for listener in _listeners.get():
            listener.failed(label)
        raise


_HELD_OUT = "on held-out records (internal)"
_WORDS: dict[str, tuple[str, str]] = {
    "ingest": (
        "read",
        (
            "{records:,} records: {train:,} to train on, {test:,} held out; {codes_observed:,} of "
            "{label_space:,} codes"
        ),
    ),
    "features": ("encode", "{records:,} records"),
    "tokens": ("encode", "{records:,} records"),
    "titles": ("encode", "{codes:,} public texts: {label}"),
    "public-start": ("start", "{label}, {entries:,} public examples"),
    "plan": ("plan", "{label}: ε {epsilon_text}, δ {delta_text}"),
    "predictions": ("predict", "held-out records"),
    "scores": ("score", "weighted F1 {weighted_f1:.3f}, macro F1 {macro_f1:.3f} " + _HELD_OUT),
    "branch-fit": ("train", "{label}, loss {loss:.3f}"),
    "audit-pool": ("prepare", "{records:,} records and {canaries:,} canaries for the attacks"),
    "audit-trials": ("repeat", "{label}, {trials:,} times on records chosen at random"),
    "audit-gradients": ("attack", "{label}: {right:,} of {coins:,} guesses right"),
    "audit": ("audit", "{label}: at least ε {bound_text}"),
    "release": ("release", "{release}, {state}"),
}
"""Verb and sentence for a finished stage, by name. If the stage lacks one of the figures, all its
figures are listed instead.
"""


_SENTENCES = {
    "ingest": "Records read and split",
    "code list": "Code list compared with published ones",
    "features": "Records encoded",
    "tokens": "Records encoded",
    "titles": "Public texts encoded: {label}",
    "public-start": "Head moved to public examples",
    "plan": "Release planned",
    "predictions": "Held-out records predicted",
    "scores": "Predictions scored",
    "branch-fit": "Model trained: {label}",
    "fine-tune": "Model trained: {label}",
    "swag": "Posterior collected: {label}",
    "risks": "Risks of the records measured",
    "risk-weights": "Records weighted by their risk",
    "reweight": "Records weighted again",
    "sensitivity": "Sensitivity measured: {label}",
    "evaluate": "Posterior scored",
    "audit-pool": "Records and canaries prepared for the attacks",
    "audit-trials": "Training repeated for the attacks: {label}",
    "audit-gradients": "Gradients attacked: {label}",
    "audit": "Audit finished: {label}",
    "release": "Model sampled, bundled and recorded",
}


def sentence_of(name: str, label: str) -> str:
    """Describes a finished stage without figures, for logs that other people read."""
    return _SENTENCES.get(name, "{label} finished").format(label=label)


def words_of(name: str, label: str, figures: Figures) -> tuple[str, str]:
    scalars = {key: value for key, value in figures.items() if _is_scalar(value)}
    if scalars.get("epsilon") is not None and scalars.get("delta") is not None:
        scalars |= {
            "epsilon_text": epsilon_text(float(scalars["epsilon"])),
            "delta_text": delta_text(float(scalars["delta"])),
        }
    if scalars.get("epsilon_lower_bound") is not None:
        scalars["bound_text"] = lower_text(float(scalars["epsilon_lower_bound"]))
    verb, words = _WORDS.get(name, ("", "{}"))
    try:
        return verb, words.format_map(scalars | {"label": label})
    except (KeyError, IndexError, ValueError):
        return label, line_of(figures)


_MAX_FIGURES = 12
"""Most figures on a line. Beyond it, figures with a number in their name (a bin, a level) are left
out.
"""


def line_of(figures: Figures) -> str:
    """Formats figures as one line: `records 2,354, loss 0.61`. It ends with the number of figures
    left out.
    """
    scalars = {name: value for name, value in figures.items() if _is_scalar(value)}
    shown = scalars
    if len(scalars) > _MAX_FIGURES:
        shown = {
            name: value
            for name, value in scalars.items()
            if not any(w[:1].isdigit() for w in name.split("_"))
        }
    more = [f"and {len(scalars) - len(shown)} more"] if len(shown) < len(scalars) else []
    return ", ".join(
        [*(f"{name.replace('_', ' ')} {_format(value)}" for name, value in shown.items()), *more]
    )


def _is_scalar(value: Json) -> TypeGuard[int | float | str | bool]:
    return isinstance(value, int | float | str | bool)


def _format(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    text = str(value)
    return f"{text[:12]}…" if len(text) == 64 else text  # a digest: enough to compare by eye
