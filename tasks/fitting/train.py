"""Defines the stages that fit: fine-tuning with AdamW, then constant-rate SGD whose iterates SWAG
collects.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mechanisms.model import checkpoint, training
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig, OptimiserPhase
from mechanisms.model.inputs import FeatureInputs
from mechanisms.posterior import swag
from mechanisms.posterior.rounds import TABLE, RoundName
from storage.artifacts import ArtifactRef
from tasks.fitting.model_inputs import build, load_inputs
from tasks.parameters import FitParameters
from tasks.running import ranks
from tasks.running.stage import Step, Work


@dataclass(frozen=True)
class Round:
    """Holds what all stages of one round depend on. A reference of None does not exist yet, in a
    dry run.
    """

    name: RoundName
    model: ModelConfig
    fit: FitParameters
    dataset: ArtifactRef | None
    prepared: ArtifactRef | None
    weights: ArtifactRef | None = None

    @property
    def inputs(self) -> dict[str, ArtifactRef | None]:
        """Returns the references that every stage of the round reads, by name."""
        records = {"dataset": self.dataset, "prepared": self.prepared}
        return records | ({} if TABLE[self.name].after is None else {"weights": self.weights})


def fine_tune(this: Round) -> Step:
    """Fine-tunes from the public encoder, on the pseudo likelihood."""
    phase = this.fit.adamw

    def body(work: Work) -> Mapping[str, Any]:
        trained, losses = _train(work, this, phase, purpose="fine-tune")
        checkpoint.save(work.out / "theta.safetensors", {"theta": trained.flat}, {})
        return {"epochs": phase.epochs, **_figures(losses, trained)}

    return Step("fine-tune", f"fine-tune ({this.name})", _config(this, phase), this.inputs, body)


def collect_swag(this: Round, *, tuned: ArtifactRef | None) -> Step:
    """Continues with SGD at a constant rate and collects the SWAG posterior, one snapshot per
    epoch.
    """
    phase, rank = this.fit.sgd, this.fit.swag.rank

    def body(work: Work) -> Mapping[str, Any]:
        tuned = checkpoint.load(work.inputs["tuned"] / "theta.safetensors")[0]["theta"]
        state = swag.init(tuned.numel(), rank=rank, folder=work.out)
        trained, losses = _train(work, this, phase, purpose="swag", start=tuned, state=state)
        swag.save(state)
        return {
            "snapshots": state.count,
            "rank": min(state.count, rank),
            **_figures(losses, trained),
        }

    config = _config(this, phase) | {"rank": rank}
    return Step("swag", f"SWAG ({this.name})", config, {**this.inputs, "tuned": tuned}, body)


def _config(this: Round, phase: OptimiserPhase) -> dict[str, Any]:
    settings = {"model": this.model, "phase": phase}
    return {name: setting.model_dump(mode="json") for name, setting in settings.items()} | {
        "seed": this.fit.seed
    }


def _figures(losses: list[float], trained: Classifier) -> dict[str, Any]:
    return {"loss": losses[-1], "losses": losses, "parameters": trained.num_parameters}


def _train(
    work: Work,
    this: Round,
    phase: OptimiserPhase,
    *,
    purpose: str,
    start: torch.Tensor | None = None,
    state: training.EpochState | None = None,
) -> tuple[Classifier, list[float]]:
    records, labels = load_inputs(work.inputs["prepared"], "train")
    work.sized(len(labels) * phase.epochs)
    settings = {"name": this.name, "purpose": purpose}
    settings |= {
        "model": this.model.model_dump(mode="json"),
        "fit": this.fit.model_dump(mode="json"),
    }
    shared = (
        nullcontext()
        if isinstance(records, FeatureInputs)
        else ranks.shared(work, f"{__name__}:follow", settings)
    )
    with shared:
        trained = build(work.context, this.model, work.inputs["dataset"], seed=this.fit.seed)
        if start is not None:
            trained.flat.copy_(start)
        losses = training.train(
            trained,
            records,
            labels,
            phase=phase,
            seed=this.fit.seed,
            purpose=purpose,
            weights=load_weights(work.inputs["weights"]) if "weights" in work.inputs else None,
            folder=work.scratch,
            state=state,
            progress=work.progress,
        )
    return trained, losses


def follow(work: Work, settings: Mapping[str, Any]) -> None:
    """Takes part in the fit of a round's stage as another rank than the first."""
    fit = FitParameters.model_validate(settings["fit"])
    this = Round(
        settings["name"],
        ModelConfig.model_validate(settings["model"]),
        fit,
        dataset=None,
        prepared=None,
    )
    tuned = work.inputs.get("tuned")
    start = None if tuned is None else checkpoint.load(tuned / "theta.safetensors")[0]["theta"]
    _train(
        work,
        this,
        fit.adamw if tuned is None else fit.sgd,
        purpose=settings["purpose"],
        start=start,
    )


def load_weights(folder: Path) -> torch.Tensor:
    """Loads risk weights alpha, float32 [n], of a weights stage."""
    return checkpoint.load(folder / "weights.safetensors")[0]["alpha"]
