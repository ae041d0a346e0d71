"""Stages that fit: fine-tuning with AdamW, then constant-rate SGD whose iterates SWAG collects."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mechanisms.model import checkpoint, training
from mechanisms.model.bounded import BoundedLikelihood
from mechanisms.model.classifier import Classifier, ModelConfig
from mechanisms.model.training import OptimiserPhase
from mechanisms.posterior import swag
from storage.artifacts import ArtifactRef
from tasks.fitting.prepared import build, load_inputs
from tasks.parameters import FitParameters
from tasks.running.stage import Step, Work


def fine_tune(
    round_name: str,
    model: ModelConfig,
    fit: FitParameters,
    *,
    dataset: ArtifactRef | None,
    prepared: ArtifactRef | None,
    weights: ArtifactRef | None,
    weighted: bool,
    bounded: BoundedLikelihood | None = None,
) -> Step:
    """Fine-tune from the public encoder; with `weighted`, on the pseudo likelihood; `bounded`, on the bounded one."""

    def body(work: Work) -> Mapping[str, Any]:
        trained = build(work.context, model, work.inputs["dataset"], seed=fit.seed)
        losses = _train(work, trained, fit.adamw, fit.seed, purpose="fine-tune", bounded=bounded)
        checkpoint.save(work.out / "theta.safetensors", {"theta": trained.flat}, {})
        return {"epochs": fit.adamw.epochs, **_figures(losses, trained)}

    return Step(
        name="fine-tune",
        label=f"fine-tune ({round_name})",
        config=_config(model, fit.adamw, fit.seed, bounded),
        inputs={"dataset": dataset, "prepared": prepared} | ({"weights": weights} if weighted else {}),
        body=body,
    )


def collect_swag(
    round_name: str,
    model: ModelConfig,
    fit: FitParameters,
    *,
    dataset: ArtifactRef | None,
    prepared: ArtifactRef | None,
    tuned: ArtifactRef | None,
    weights: ArtifactRef | None,
    weighted: bool,
    bounded: BoundedLikelihood | None = None,
) -> Step:
    """Go on with SGD at a constant rate and collect the SWAG posterior, a snapshot an epoch."""

    def body(work: Work) -> Mapping[str, Any]:
        trained = build(work.context, model, work.inputs["dataset"], seed=fit.seed)
        trained.flat.copy_(checkpoint.load(work.inputs["tuned"] / "theta.safetensors")[0]["theta"])
        state = swag.init(trained.num_parameters, rank=fit.swag.rank, folder=work.out)
        losses = _train(work, trained, fit.sgd, fit.seed, purpose="swag", bounded=bounded, state=state)
        swag.save(state, temperature=1.0 if bounded is None else bounded.temperature)
        return {"snapshots": state.count, "rank": min(state.count, fit.swag.rank), **_figures(losses, trained)}

    needed = {"dataset": dataset, "prepared": prepared, "tuned": tuned}
    return Step(
        name="swag",
        label=f"SWAG ({round_name})",
        config=_config(model, fit.sgd, fit.seed, bounded) | {"rank": fit.swag.rank},
        inputs=needed | ({"weights": weights} if weighted else {}),
        body=body,
    )


def _config(model: ModelConfig, phase: OptimiserPhase, seed: int, bounded: BoundedLikelihood | None) -> dict[str, Any]:
    config = {"model": model.model_dump(mode="json"), "phase": phase.model_dump(mode="json"), "seed": seed}
    return config if bounded is None else config | {"bound": bounded.bound}


def _figures(losses: list[float], trained: Classifier) -> dict[str, Any]:
    return {"loss": losses[-1], "losses": losses, "parameters": trained.num_parameters}


def _train(
    work: Work,
    trained: Classifier,
    phase: OptimiserPhase,
    seed: int,
    *,
    purpose: str,
    bounded: BoundedLikelihood | None,
    state: training.EpochState | None = None,
) -> list[float]:
    records, labels = load_inputs(work.inputs["prepared"], "train")
    work.sized(len(labels) * phase.epochs)
    return training.train(
        trained,
        records,
        labels,
        phase=phase,
        seed=seed,
        purpose=purpose,
        weights=load_weights(work.inputs["weights"]) if "weights" in work.inputs else None,
        bounded=bounded,
        folder=work.scratch,
        state=state,
        progress=work.progress,
    )


def load_weights(folder: Path) -> torch.Tensor:
    """Risk weights alpha, float32 [n], of a weights stage."""
    return checkpoint.load(folder / "weights.safetensors")[0]["alpha"]
