"""Stages of every mechanism: plan its noise, fit at a seed, predict each record.

Their keys include the mechanism's module. A change to another mechanism, a metric or a page does
not invalidate them.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, cast

from mechanisms.mechanism import (
    AnyMechanism,
    Divisible,
    Drawable,
    Fitted,
    Mechanism,
    Plan,
    Records,
    Releasable,
    Run,
    Search,
    Task,
)
from mechanisms.model.config import ModelConfig
from mechanisms.privacy.events import Event, decode
from storage.artifacts import ArtifactRef, Store, file_digest
from storage.json_values import Config, Figures
from tasks.fitting.model_inputs import build, label_count, load_inputs
from tasks.running import progress
from tasks.running.parts import Part, compute_part, run_parts_of
from tasks.running.stage import Step, Work, run_step

if TYPE_CHECKING:
    import torch

    from mechanisms.model.classifier import Classifier
    from mechanisms.model.inputs import FeatureInputs

_TOKENS_PART, _FEATURES_PART = 1 << 12, 1 << 15
"""Number of records predicted together: through an encoder, and from features."""
_UNITS = "units.safetensors"
_PLAN, EVENT, _SEARCH = "plan.json", "event.json", "search.json"
_BUILDING = threading.Lock()
"""Initial weights use torch's global generator, so fits in several threads take turns."""


def modules(mechanism: Mechanism) -> tuple[str, ...]:
    """Returns the modules that a stage of this mechanism depends on: the
    mechanism's and this one.
    """
    return (type(mechanism).__module__, "tasks.fitting.fits")


def plan(name: str, mechanism: Mechanism, task: Task | None) -> Step:
    """Calibrates the noise of a mechanism to the target. All seeds share the plan.

    Args:
        task: None if it is not known before the records are read, which only occurs in a dry run.
    """
    if task is None:
        return Step("plan", f"plan ({name})", {}, {"dataset": None}, _never)
    asked = mechanism.relevant_task(task)

    def body(work: Work) -> Figures:
        planned = mechanism.plan(asked)
        (work.out / _PLAN).write_text(planned.model_dump_json())
        return dict(planned.mechanism.cost(planned, asked))

    return Step(
        name="plan",
        label=f"plan ({name})",
        config={
            "mechanism": mechanism.model_dump(mode="json"),
            "task": asked.model_dump(mode="json"),
        },
        inputs={},
        body=body,
        modules=modules(mechanism),
    )


def _never(work: Work) -> Any:
    raise RuntimeError("a dry run must not run a step")


def plan_of(folder: Path) -> Plan:
    """Loads the plan from the output of a plan's stage or of a fit's stage, which
    keeps the plan that it ran.
    """
    return Plan.model_validate_json((folder / _PLAN).read_text())


def event_of(folder: Path) -> Event:
    return decode(json.loads((folder / EVENT).read_text()))


def search_of(folder: Path) -> Search | None:
    """Loads the settings that a fit searched for, or None if it searched for none."""
    file = folder / _SEARCH
    return Search.model_validate_json(file.read_text()) if file.is_file() else None


def fit(
    name: str,
    mechanism: Mechanism,
    model: ModelConfig,
    *,
    seed: int,
    dataset: ArtifactRef,
    prepared: ArtifactRef,
    planned: ArtifactRef,
    earlier: ArtifactRef | None = None,
) -> Step:
    """Fits a plan of this mechanism at one seed. Privacy noise has no seed: each fit draws its own.

    Args:
        earlier: the fit that this one continues, if the mechanism continues another.
    """

    def body(work: Work) -> Figures:
        fitted = _fit(work, model, seed)
        fitted.model.save(work.out)
        (work.out / EVENT).write_text(fitted.event.model_dump_json())
        (work.out / _PLAN).write_bytes((work.inputs["plan"] / _PLAN).read_bytes())
        if fitted.search is not None:
            (work.out / _SEARCH).write_text(fitted.search.model_dump_json())
        releasable = isinstance(fitted.model, Releasable) and isinstance(fitted.model, Drawable)
        return dict(fitted.figures) | {"releasable": releasable}

    continued = {} if mechanism.continues is None else {"earlier": earlier}
    return Step(
        name="branch-fit",
        label=f"{name}, seed {seed}",
        # a release reads the origin of the settings here
        config={
            "model": model.model_dump(mode="json"),
            "seed": seed,
            "mechanism": mechanism.model_dump(mode="json"),
        },
        inputs={"dataset": dataset, "prepared": prepared, "plan": planned, **continued},
        body=body,
        modules=modules(mechanism),
    )


def _fit(work: Work, model: ModelConfig, seed: int) -> Fitted:
    from mechanisms.model.inputs import FeatureInputs
    from tasks.running import ranks

    records = Records(*load_inputs(work.inputs["prepared"], "train"))
    planned = plan_of(work.inputs["plan"])
    load = planned.mechanism.workload
    if load is not None:
        work.sized(int(len(records) * (load.epochs + load.draws)))
    settings: _FitSettings = {"model": model.model_dump(mode="json"), "seed": seed}
    shares = planned.mechanism.by_ranks and not isinstance(records.inputs, FeatureInputs)
    with ranks.shared(work, f"{__name__}:follow", settings) if shares else nullcontext():
        return planned.fit(records, run_of(work, model, seed))


class _FitSettings(TypedDict):
    model: Config
    """As JSON."""
    seed: int


def follow(work: Work, settings: _FitSettings) -> None:
    """Takes part in a fit as a worker rank."""
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
        checkpoint_seconds=work.context.checkpoint_seconds,
        progress=work.progress,
        earlier=work.inputs.get("earlier"),
        map=partial(_map, work, model, seed),
    )


class Units(Part, frozen=True):
    """A range of units inside a fit (`Mechanism.compute`). The inputs are the data set, the
    prepared records and the files that the units are computed from.
    """

    mechanism: AnyMechanism
    model: ModelConfig
    seed: int


_PARTS, _MOST_UNITS = 16, 64
"""Number of parts that a fit's units are divided into, and the most units per part, because a
killed part starts over.
"""


def _map(
    work: Work,
    model: ModelConfig,
    seed: int,
    mechanism: Divisible,
    count: int,
    folder: Path,
    records: Records,
    run: Run,
) -> list[Mapping[str, torch.Tensor]]:
    """Distributes the units of a fit over the engine. Waiting ranks leave all threads to it."""
    import torch

    from mechanisms.model import checkpoint
    from mechanisms.model.threads import using

    assert isinstance(mechanism, Mechanism)
    with progress.listening(others=False):
        files = run_step(work.context, _files(folder, work.refs["dataset"]))
    work.parts.append(files)
    inputs = {name: work.refs[name] for name in ("dataset", "prepared")} | {"files": files}
    within = replace(work, refs=inputs, progress=run.progress or work.progress)
    units = Units(mechanism=mechanism, model=model, seed=seed, end=count)
    parts = units.cut(min(_MOST_UNITS, -(-count // _PARTS)))
    threads = os.cpu_count() or 1 if work.context.processes > 1 else torch.get_num_threads()
    with using(threads):
        folders = run_parts_of(within, compute_units, parts, units_step)
    return [checkpoint.load(folder / _UNITS)[0] for folder in folders]


def _files(folder: Path, dataset: ArtifactRef) -> Step:
    """Declares files of a fit as a stage, which workers read from the store. They
    are removed with it.
    """

    def body(work: Work) -> Figures:
        for file in folder.iterdir():
            (work.out / file.name).unlink(missing_ok=True)
            os.link(file, work.out / file.name)
        return {}

    digests = {file.name: file_digest(file) for file in sorted(folder.iterdir())}
    return Step("fit-files", "files of a fit", {"files": digests}, {"dataset": dataset}, body)


def compute_units(request: str) -> str:
    return compute_part(request, Units, units_step)


def units_step(store: Store, units: Units, inputs: Mapping[str, ArtifactRef]) -> Step:
    def body(work: Work) -> Figures:
        from mechanisms.model import checkpoint

        computed = cast("Divisible", units.mechanism).compute(
            range(units.first, units.end),
            work.inputs["files"],
            Records(*load_inputs(work.inputs["prepared"], "train")),
            run_of(work, units.model, units.seed),
        )
        checkpoint.save(work.out / _UNITS, computed, {})
        return {"units": units.size}

    return Step(
        name="fit-part",
        label=f"units {units.first + 1} to {units.end}",
        config=units.model_dump(mode="json"),
        inputs=dict(inputs),
        body=body,
        modules=modules(units.mechanism),
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
    """Predicts log-probabilities with a fit, or with a posterior's repeatable draw
    for this purpose. Private.
    """
    config = {"mechanism": mechanism, "model": model, "seed": seed, "purpose": purpose}

    def body(work: Work) -> Figures:
        from mechanisms.model import checkpoint
        from mechanisms.model.inputs import FeatureInputs

        parts: list[Predicted] = []
        for split in splits:
            inputs, _ = load_inputs(work.inputs["prepared"], split)
            request = Predicted(end=max(len(inputs), 1), split=split, **config)
            parts += request.cut(
                _FEATURES_PART if isinstance(inputs, FeatureInputs) else _TOKENS_PART
            )
        folders = run_parts_of(work, compute, parts, part_step)
        for split in splits:
            files = [
                folder / f"{split}.safetensors"
                for folder, part in zip(folders, parts, strict=True)
                if part.split == split
            ]
            checkpoint.save_joined(work.out / f"{split}.safetensors", files)
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
    """A range of records of a split to predict. The inputs are the data set, the
    prepared records and the fit.
    """

    mechanism: AnyMechanism
    model: ModelConfig
    seed: int
    purpose: str
    split: str


def compute(request: str) -> str:
    return compute_part(request, Predicted, part_step)


def part_step(store: Store, part: Predicted, inputs: Mapping[str, ArtifactRef]) -> Step:
    def body(work: Work) -> Figures:
        import torch

        from mechanisms.model import checkpoint

        run = run_of(work, part.model, part.seed)
        fitted = part.mechanism.load(work.inputs["fitted"], run, purpose=part.purpose)
        records, _ = load_inputs(work.inputs["prepared"], part.split)
        scores = fitted.log_probabilities(
            records.select(torch.arange(part.first, min(part.end, len(records))))
        )
        # in float32, with the most probable class as in float64, because rounding makes ties
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


class Predictions(NamedTuple):
    """The predictions of a split."""

    log_probabilities: FeatureInputs
    """Float32 [n, classes], mapped from the file: readers take blocks of records."""
    predicted: torch.Tensor
    """The most probable class, int64 [n]."""


def predictions(folder: Path, split: str) -> Predictions:
    """Opens the predictions of a split."""
    from safetensors import safe_open

    from mechanisms.model import inputs

    file = folder / f"{split}.safetensors"
    with safe_open(file, framework="pt") as tensors:
        predicted = tensors.get_tensor("predicted")
    return Predictions(inputs.mapped(file, "log_probabilities"), predicted)
