"""The noise of SAD-DPSGD against its settings (Huang and Xie, figures 3 to 5). It reads no records.

A schedule fixes ratios. The noise of its last phase is solved for, so that the whole costs the
target epsilon whatever beta, gamma and n are. For each schedule the study gives the mean and
variance of the noise multiplier over steps, the noise of the first phase, and the length of the
first phase.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from mechanisms.dp_sgd import DpSgd
from mechanisms.mechanism import Task
from mechanisms.privacy.events import NoiseSegment, descent_of
from mechanisms.privacy.schedules import SadSchedule
from studies import results
from studies.options import Out

RECORDS, DELTA = 8012, 1e-3
"""Four fifths of HAM10000, and the paper's delta."""
SWEEPS: dict[str, tuple[str, dict[str, Any], tuple[float, ...]]] = {
    "beta": (
        "noise_decay",
        {"length_decay": 0.9, "number_of_phases": 3},
        (0.5, 0.6, 0.7, 0.8, 0.9),
    ),
    "gamma": ("length_decay", {"noise_decay": 0.8, "number_of_phases": 3}, (0.2, 0.4, 0.6, 0.8, 1)),
    "n": ("number_of_phases", {"noise_decay": 0.9, "length_decay": 0.9}, (2, 3, 4, 5, 8)),
}
"""By figure: the setting that varies, the settings that stay as in the paper, and the values."""
FIGURES = {
    "mean": "mean of σ over steps",
    "variance": "variance of σ over steps",
    "first": "σ of the first phase",
    "first_share": "share of steps in the first phase",
}


def sad(name: str, value: float) -> SadSchedule:
    setting, fixed, _ = SWEEPS[name]
    return SadSchedule.model_validate(fixed | {setting: value})


def segments(
    schedule: SadSchedule, *, epsilon: float, epochs: int, sampling_prob: float
) -> tuple[NoiseSegment, ...]:
    """Returns the phases of a whole run on HAM10000 that costs epsilon for adding
    or removing one image.
    """
    mechanism = DpSgd(
        optimiser="sgd",
        learning_rate=1.0,
        epochs=epochs,
        sampling_prob=sampling_prob,
        schedule=schedule,
    )
    task = Task(records=RECORDS, classes=7, target_epsilon=epsilon, delta=DELTA)
    event = mechanism.plan(task).event
    assert event is not None
    return descent_of(event).segments


def figures(phases: Sequence[NoiseSegment]) -> dict[str, float]:
    """Returns mean and variance over steps, the first phase's noise and its share of the steps.

    >>> quiet = NoiseSegment(steps=1, noise_multiplier=1, l2_clip_norm=1)
    >>> loud = NoiseSegment(steps=3, noise_multiplier=2, l2_clip_norm=1)
    >>> figures([quiet, loud])
    {'mean': 1.75, 'variance': 0.1875, 'first': 1.0, 'first_share': 0.25, 'last': 2.0}
    """
    steps = np.array([phase.steps for phase in phases])
    noise = np.array([phase.noise_multiplier for phase in phases])
    mean = float(np.average(noise, weights=steps))
    return {
        "mean": mean,
        "variance": float(np.average((noise - mean) ** 2, weights=steps)),
        "first": float(noise[0]),
        "first_share": float(steps[0] / steps.sum()),
        "last": float(noise[-1]),
    }


def draw(rows: Sequence[results.Row], file: Path, name: str) -> None:
    """Plots the four panels of one of the paper's figures against one setting."""
    setting_rows = [row for row in rows if row["setting"] == name]
    values = [row["value"] for row in setting_rows]
    panels = {
        title: {"SAD-DPSGD": (values, [[row[figure]] for row in setting_rows])}
        for figure, title in FIGURES.items()
    }
    symbol = {"beta": "β", "gamma": "γ", "n": "n"}[name]
    results.panels(file, panels, title=f"Noise of SAD-DPSGD against {symbol}", x=symbol)


def run(
    out: Out,
    epsilon: Annotated[float, typer.Option(help="epsilon of every schedule, at δ 1e-3")] = 3.0,
    epochs: Annotated[int, typer.Option(help="epochs of training")] = 30,
    sampling_prob: Annotated[float, typer.Option(help="probability of an image per step")] = 0.064,
) -> Path:
    """σ of SAD-DPSGD against β, γ and n (Huang and Xie, figures 3 to 5); needs no data.

    The paper does not state the batch size; 512 of 8,012 images are used here.

    Example: python -m studies schedules --out results
    """
    wanted: list[results.Row] = [
        {"setting": name, "value": value, "epsilon": epsilon, "epochs": epochs, "q": sampling_prob}
        for name, (_, _, values) in SWEEPS.items()
        for value in values
    ]

    def measure(cell: Mapping[str, Any]) -> results.Row:
        schedule = sad(cell["setting"], cell["value"])
        phases = segments(schedule, epsilon=epsilon, epochs=epochs, sampling_prob=sampling_prob)
        return figures(phases)

    rows = results.fill(out / "schedules.csv", wanted, measure)
    for name in SWEEPS:
        draw(rows, out / f"schedules-{name}.svg", name)
    return out / "schedules.csv"
