"""Defines the stages of a mechanism that is one fit: plan its noise, fit at a seed, predict each record.

Their keys include the mechanism's module: a change of another mechanism, a metric or a page leaves them finished.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from mechanisms.mechanism import Fitted, Mechanism, Plan, Records, Releasable, Run, Task
from mechanisms.model import checkpoint
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig
from mechanisms.model.inputs import FeatureInputs
from mechanisms.privacy.events import Event, decode
from storage.artifacts import ArtifactRef
from tasks.fitting.model_inputs import build, label_count, load_inputs
from tasks.running import ranks
from tasks.running.stage import Step, Work

_BUILDING = threading.Lock()
"""Initial weights come from torch's one generator a process; fits that run side by side take turns."""


def modules(mechanism: Mechanism) -> tuple[str, ...]:
    """Returns the modules behind a stage of this mechanism: the mechanism's and this one."""
    return (type(mechanism).__module__, "tasks.fitting.fits")


def plan(name: str, mechanism: Mechanism, task: Task) -> Step:
    """Solves the noise of a branch for the target; all seeds share it."""
    if not mechanism.has_target:
        task = task.model_copy(update={"target_epsilon": None})

    def body(work: Work) -> Mapping[str, Any]:
        planned = mechanism.plan(task)
        (work.out / "plan.json").write_text(planned.model_dump_json())
        return dict(planned.mechanism.cost(planned, task))

    return Step(
        name="plan",
        label=f"plan ({name})",
        config={"mechanism": mechanism.model_dump(mode="json"), "task": task.model_dump(mode="json")},
        inputs={},
        body=body,
        modules=modules(mechanism),
    )


def plan_of(folder: Path) -> Plan:
    return Plan.model_validate_json((folder / "plan.json").read_text())


def event_of(folder: Path) -> Event:
    return decode(json.loads((folder / "event.json").read_text()))


def fit(
    name: str,
    mechanism: Mechanism,
    model: ModelConfig,
    *,
    seed: int,
    dataset: ArtifactRef,
    prepared: ArtifactRef,
    planned: ArtifactRef,
) -> Step:
    """Fits a plan of this mechanism at one seed. Noise that protects has no seed: each fit draws its own."""

    def body(work: Work) -> Mapping[str, Any]:
        fitted = _fit(work, model, seed)
        fitted.model.save(work.out)
        (work.out / "event.json").write_text(fitted.event.model_dump_json())
        return dict(fitted.figures) | {"releasable": isinstance(fitted.model, Releasable)}

    return Step(
        name="branch-fit",
        label=f"{name}, seed {seed}",
        # the mechanism follows from the plan; a release reads the origin of its settings here
        config={"model": model.model_dump(mode="json"), "seed": seed, "mechanism": mechanism.model_dump(mode="json")},
        inputs={"dataset": dataset, "prepared": prepared, "plan": planned},
        body=body,
        modules=modules(mechanism),
    )


def _fit(work: Work, model: ModelConfig, seed: int) -> Fitted:
    records = Records(*load_inputs(work.inputs["prepared"], "train"))
    planned = plan_of(work.inputs["plan"])
    settings = {"model": model.model_dump(mode="json"), "seed": seed}
    shares = planned.mechanism.by_ranks and not isinstance(records.inputs, FeatureInputs)
    with ranks.shared(work, f"{__name__}:follow", settings) if shares else nullcontext():
        return planned.fit(records, run_of(work, model, seed))


def follow(work: Work, settings: Mapping[str, Any]) -> None:
    """Takes part in a fit as another rank than the first."""
    _fit(work, ModelConfig.model_validate(settings["model"]), settings["seed"])


def run_of(work: Work, model: ModelConfig, seed: int) -> Run:
    def classifier() -> Classifier:
        with _BUILDING:
            return build(work.context, model, work.inputs["dataset"], seed=seed)

    return Run(
        classes=label_count(work.inputs["dataset"]),
        seed=seed,
        classifier=classifier,
        folder=work.scratch,
        progress=work.progress,
    )


def predict(
    name: str,
    mechanism: Mechanism,
    model: ModelConfig,
    *,
    seed: int,
    dataset: ArtifactRef,
    prepared: ArtifactRef,
    fitted: ArtifactRef,
    purpose: str = "evaluate",
    splits: tuple[str, ...] = ("test",),
) -> Step:
    """Predicts log-probabilities at a fit, or at a posterior's repeatable draw of this purpose. Private."""

    def body(work: Work) -> Mapping[str, Any]:
        run = run_of(work, model, seed)
        fitted = mechanism.load(work.inputs["fitted"], run, purpose=purpose)
        for split in splits:
            inputs, _ = load_inputs(work.inputs["prepared"], split)
            scores = fitted.log_probabilities(inputs)
            # in float32, with the most probable class as float64 has it: rounding makes ties
            tensors = {"log_probabilities": scores.float(), "predicted": scores.argmax(-1)}
            checkpoint.save(work.out / f"{split}.safetensors", tensors, {})
        return {}

    config = {"model": model.model_dump(mode="json"), "seed": seed, "purpose": purpose, "splits": splits}
    return Step(
        name="predictions",
        label=f"predictions of {name}, seed {seed}",
        config=config | {"mechanism": mechanism.model_dump(mode="json")},
        inputs={"dataset": dataset, "prepared": prepared, "fitted": fitted},
        body=body,
        modules=modules(mechanism),
    )


def predictions(folder: Path, split: str) -> dict[str, torch.Tensor]:
    """Loads `log_probabilities` float32 [n, classes] and `predicted` int64 [n] of a split."""
    return checkpoint.load(folder / f"{split}.safetensors")[0]
