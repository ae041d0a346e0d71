"""Reports what a run is doing: the steps done in each stage, and one line of figures at its end.

Stages call `report` and `finished`; the flow sets the listeners (a terminal, Prefect's page, none).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from storage.figures import delta_text, epsilon_text


class Listener:
    """Receives the events of every stage; its methods must be cheap, since training loops call them."""

    def named(self, label: str, name: str) -> None:
        """Takes the name of the stage whose start comes next; a label tells also of a branch, a round, a seed."""

    def started(self, label: str) -> None:
        """Handles the start of a stage."""

    def sized(self, label: str, records: int) -> None:
        """Takes the number of records that pass through the model in the whole stage, repetitions included."""

    def report(self, label: str, done: int, total: int | None) -> None:
        """Handles `done` of `total` steps; None if the total is unknown."""

    def finished(self, label: str, figures: Mapping[str, Any], *, reused: bool, seconds: float) -> None:
        """Handles the end of a stage, computed or reused."""

    def failed(self, label: str) -> None:
        """Handles the failure of a stage."""


_listeners: ContextVar[tuple[Listener, ...]] = ContextVar("listeners", default=())


@contextmanager
def listening(*listeners: Listener) -> Iterator[None]:
    """Adds listeners to all stages run inside the block, also in concurrent task runs."""
    token = _listeners.set((*_listeners.get(), *listeners))
    try:
        yield
    finally:
        _listeners.reset(token)


@contextmanager
def only(*listeners: Listener) -> Iterator[None]:
    """Replaces all listeners inside the block."""
    token = _listeners.set(listeners)
    try:
        yield
    finally:
        _listeners.reset(token)


def started(label: str, name: str | None = None) -> None:
    """Notifies all listeners that a stage of this name starts; by default its label is its name."""
    for listener in _listeners.get():
        listener.named(label, name or label)
        listener.started(label)


def sized(label: str, records: int) -> None:
    """Notifies all listeners of the number of records that pass through the model."""
    for listener in _listeners.get():
        listener.sized(label, records)


def report(label: str, done: int, total: int | None) -> None:
    """Notifies all listeners of the progress of a stage."""
    for listener in _listeners.get():
        listener.report(label, done, total)


def reporter(label: str) -> Callable[[int, int], None]:
    """Returns `report` for one stage, bound to the current listeners, which threads do not inherit."""
    listeners = _listeners.get()

    def notify(done: int, total: int) -> None:
        for listener in listeners:
            listener.report(label, done, total)

    return notify


def finished(label: str, figures: Mapping[str, Any], *, reused: bool, seconds: float) -> None:
    """Notifies all listeners that a stage ended."""
    for listener in _listeners.get():
        listener.finished(label, figures, reused=reused, seconds=seconds)


@contextmanager
def report_failures(label: str) -> Iterator[None]:
    """Notifies all listeners if the block raises."""
    try:
        yield
    except Exception:
        for listener in _listeners.get():
            listener.failed(label)
        raise


def _seed(match: re.Match[str], figures: Mapping[str, Any]) -> str:
    loss = f", loss {figures['loss']:.3f}" if isinstance(figures.get("loss"), int | float) else ""
    return f"{match[1]}, seed {match[2]}{loss}"


def _planned(_: re.Match[str], figures: Mapping[str, Any]) -> str:
    noise = f"; noise {figures['noise_multiplier']:.3g}" if "noise_multiplier" in figures else ""
    steps = f", {figures['steps']:,} steps" if "steps" in figures else ""
    return f"ε {epsilon_text(float(figures['epsilon']))}, δ {delta_text(float(figures['delta']))}{noise}{steps}"


def _scores(_: re.Match[str], figures: Mapping[str, Any]) -> str:
    rounds = [name.removesuffix("_weighted_f1") for name in figures if re.fullmatch("[a-z]+_weighted_f1", name)]
    named = ", ".join(f"{figures[f'{name}_weighted_f1']:.3f} ({name})" for name in rounds if "quartile" not in name)
    return f"weighted F1 {named} on held-out records (internal)"


_WORDS: tuple[tuple[str, tuple[str, ...], str, str | Callable[[re.Match[str], Mapping[str, Any]], str]], ...] = (
    (
        "ingest",
        ("records", "train", "test", "codes_observed", "label_space"),
        "read",
        "{records:,} records: {train:,} to train on, {test:,} held out; {codes_observed:,} of {label_space:,} codes",
    ),
    ("features|tokens", ("records", "encoder"), "encode", "{records:,} records with {encoder}"),
    ("features|tokens", ("records",), "encode", "{records:,} records"),
    ("titles.*", ("codes",), "encode", "titles of {codes:,} codes"),
    (r"plan \(.*\)", ("epsilon", "delta"), "plan", _planned),
    (r"plan \((.*)\)", (), "plan", "{0}: nothing to calibrate"),
    (r"predictions of (.*), seed (\d+)", (), "predict", "held-out records"),
    (
        r"scores of .*, seed \d+",
        ("weighted_f1", "macro_f1"),
        "score",
        "weighted F1 {weighted_f1:.3f}, macro F1 {macro_f1:.3f} on held-out records (internal)",
    ),
    (r"(.*), seed (\d+)", ("releasable",), "train", _seed),
    (r"fine-tune \((.*)\)", ("loss",), "train", "{0} fit, loss {loss:.3f}"),
    (r"SWAG \((.*)\)", ("snapshots",), "collect", "{0} posterior from {snapshots:,} snapshots"),
    ("risks", ("draws",), "measure", "risks of the records over {draws:,} draws"),
    ("risk weights", ("mean_weight",), "weigh", "records by their risk, mean weight {mean_weight:.3f}"),
    ("reweight", ("mean_weight",), "weigh", "records again, mean weight {mean_weight:.3f}"),
    (r"sensitivity \((.*)\)", ("sensitivity",), "measure", "Δ {sensitivity:.4f} of the {0} posterior"),
    ("evaluate", ("weighted_weighted_f1",), "score", _scores),
    ("audit pool", ("records", "canaries"), "prepare", "{records:,} records and {canaries:,} canaries for the attacks"),
    (r"audit trials \((.*)\)", ("trials",), "rerun", "{0}, {trials:,} times on records chosen by coins"),
    (
        r"gradient canaries \((.*)\)",
        ("coins", "right"),
        "attack",
        "gradients of {0}: {right:,} of {coins:,} coins guessed",
    ),
    (
        r"audit (.*), seed (\d+)",
        ("attack_auc", "epsilon_lower_bound"),
        "audit",
        "{0}, seed {1}: at least ε {epsilon_lower_bound:.3g}, membership AUC {attack_auc:.3f}",
    ),
    ("release", ("release", "state"), "release", "{release}, {state}"),
)
"""Label, the figures that it needs, the verb, and the words of a stage. Others are shown by all their figures."""


def words_of(label: str, figures: Mapping[str, Any]) -> tuple[str, str]:
    """Returns a verb and a line in words for a finished stage; for an unknown one its label and its figures."""
    for pattern, needed, verb, words in _WORDS:
        match = re.fullmatch(pattern, label)
        if match and all(_is_scalar(figures.get(name)) for name in needed):
            return verb, words.format(*match.groups(), **figures) if isinstance(words, str) else words(match, figures)
    return label, line_of(figures)


_MAX_FIGURES = 12
"""Most figures on a line; beyond that, figures whose name holds a number (a bin, a level) are left out."""


def line_of(figures: Mapping[str, Any]) -> str:
    """Formats figures as one line: `records 2,354, loss 0.61`. Counts the figures that it leaves out."""
    scalars = {name: value for name, value in figures.items() if _is_scalar(value)}
    shown = scalars
    if len(scalars) > _MAX_FIGURES:
        shown = {name: value for name, value in scalars.items() if not any(w[:1].isdigit() for w in name.split("_"))}
    more = [f"and {len(scalars) - len(shown)} more"] if len(shown) < len(scalars) else []
    return ", ".join([*(f"{name.replace('_', ' ')} {_format(value)}" for name, value in shown.items()), *more])


def _is_scalar(value: Any) -> bool:
    return isinstance(value, int | float | str | bool)


def _format(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    text = str(value)
    return f"{text[:12]}…" if len(text) == 64 else text  # a digest: enough of it to compare by eye
