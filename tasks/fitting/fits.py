"""Defines the stages of a mechanism that is one fit: plan its noise, fit at a seed, predict each
record.

Their keys include the mechanism's module: a change of another mechanism, a metric or a page leaves
them finished.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from mechanisms.mechanism import (
    AnyMechanism,
    Fitted,
    Mechanism,
    Plan,
    Records,
    Releasable,
    Run,
    Task,
)
from mechanisms.model import checkpoint
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig
from mechanisms.model.inputs import FeatureInputs
from mechanisms.privacy.events import Event, decode
from storage.artifacts import ArtifactRef, Store
from tasks.fitting.model_inputs import build, label_count, load_inputs
from tasks.running import ranks
from tasks.running.parts import Part, compute_part, run_parts_of
from tasks.running.stage import Step, Work

_TOKENS_PART, _FEATURES_PART = 1 << 12, 1 << 15
"""Records that are predicted at a time: through an encoder, and from features."""
_BUILDING = threading.Lock()
"""Initial weights come from torch's one generator a process; fits that run side by side take turns.
"""


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
        config={
            "mechanism": mechanism.model_dump(mode="json"),
            "task": task.model_dump(mode="json"),
        },
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
    """Fits a plan of this mechanism at one seed. Noise that protects has no seed: each fit draws
    its own.
    """

    def body(work: Work) -> Mapping[str, Any]:
        fitted = _fit(work, model, seed)
        fitted.model.save(work.out)
        (work.out / "event.json").write_text(fitted.event.model_dump_json())
        return dict(fitted.figures) | {"releasable": isinstance(fitted.model, Releasable)}

    return Step(
        name="branch-fit",
        label=f"{name}, seed {seed}",
        # the mechanism follows from the plan; a release reads the origin of its settings here
        config={
            "model": model.model_dump(mode="json"),
            "seed": seed,
            "mechanism": mechanism.model_dump(mode="json"),
        },
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
    """Predicts log-probabilities at a fit, or at a posterior's repeatable draw of this purpose.
    Private.
    """
    config = {"mechanism": mechanism, "model": model, "seed": seed, "purpose": purpose}

    def body(work: Work) -> Mapping[str, Any]:
        parts: list[Predicted] = []
        for split in splits:
            inputs, _ = load_inputs(work.inputs["prepared"], split)
            whole = Predicted(end=max(len(inputs), 1), split=split, **config)
            parts += whole.cut(
                _FEATURES_PART if isinstance(inputs, FeatureInputs) else _TOKENS_PART
            )
        folders = run_parts_of(work, compute, parts, part_step)
        for split in splits:
            tensors = [
                predictions(file, split)
                for file, part in zip(folders, parts, strict=True)
                if part.split == split
            ]
            joined = {name: torch.cat([some[name] for some in tensors]) for name in tensors[0]}
            checkpoint.save(work.out / f"{split}.safetensors", joined, {})
        return {}

    return Step(
        name="predictions",
        label=f"predictions of {name}, seed {seed}",
        config=Predicted(end=1, split="", **config).model_dump(mode="json") | {"splits": splits},
        inputs={"dataset": dataset, "prepared": prepared, "fitted": fitted},
        body=body,
        modules=modules(mechanism),
    )


class Predicted(Part, frozen=True):
    """Selects records of a split to predict. Inputs are the data set, the prepared records and the
    fit.
    """

    mechanism: AnyMechanism
    model: ModelConfig
    seed: int
    purpose: str
    split: str


def compute(request: str) -> str:
    """Predicts a part of the records."""
    return compute_part(request, Predicted, part_step)


def part_step(store: Store, part: Predicted, inputs: Mapping[str, ArtifactRef]) -> Step:
    def body(work: Work) -> Mapping[str, Any]:
        run = run_of(work, part.model, part.seed)
        fitted = part.mechanism.load(work.inputs["fitted"], run, purpose=part.purpose)
        records, _ = load_inputs(work.inputs["prepared"], part.split)
        scores = fitted.log_probabilities(
            records.take(torch.arange(part.first, min(part.end, len(records))))
        )
        # in float32, with the most probable class as float64 has it: rounding makes ties
        tensors = {"log_probabilities": scores.float(), "predicted": scores.argmax(-1)}
        checkpoint.save(work.out / f"{part.split}.safetensors", tensors, {})
        return {}

    return Step(
        name="predictions-part",
        label=f"predictions of {part.split} records {part.first + 1} to {part.end}",
        config=part.model_dump(mode="json"),
        inputs=dict(inputs),
        body=body,
        modules=modules(part.mechanism),
    )


def predictions(folder: Path, split: str) -> dict[str, torch.Tensor]:
    """Loads `log_probabilities` float32 [n, classes] and `predicted` int64 [n] of a split."""
    return checkpoint.load(folder / f"{split}.safetensors")[0]
