"""Passes over posterior draws: what is evaluated, run here with checkpoints, or a shard of it as a stage of its own.

Draw number s depends on (seed, purpose, s) alone, so that a shard of draws is the same wherever it is run, and maxima
over shards are the maxima over all draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, model_validator

from mechanisms.model import checkpoint
from mechanisms.model.classifier import ModelConfig
from mechanisms.posterior import risks, swag
from mechanisms.posterior.risks import RiskPass
from storage.artifacts import ArtifactRef
from tasks.fitting.prepared import build, load_inputs
from tasks.fitting.train import load_weights
from tasks.running.stage import Step, Work

Purpose = Literal["risk", "sensitivity"]
_SAVE_EVERY = 64
"""Draws between two checkpoints of a pass, at most."""
_FILE = "pass.safetensors"


class Draws(BaseModel, frozen=True, extra="forbid", title="Draws"):
    """What a pass evaluates, but for its inputs: the records, the posterior and, if any, the weights."""

    model: ModelConfig = Field(title="Model")
    seed: int = Field(ge=0, lt=2**53, title="Seed", description="Of the fit; draw s depends on it, the purpose and s.")
    std_scale: float = Field(gt=0, allow_inf_nan=False, title="Standard deviation scale", description="Of SWAG.")
    precision: Literal["float32", "bfloat16"] = Field(default="float32", title="Precision", description="Of the pass.")
    purpose: Purpose = Field(title="Purpose", description="What the draws are for.")
    first: int = Field(default=0, ge=0, title="First draw", description="Its number; 0 is the first.")
    end: int = Field(ge=1, le=1_000_000, title="End", description="Number of the first draw that is left out.")

    @model_validator(mode="after")
    def _some(self) -> Draws:
        if self.end <= self.first:
            raise ValueError("end must be above first")
        return self

    @property
    def label(self) -> str:
        """The draws in words, counted from one."""
        return f"{self.purpose} draws {self.first + 1} to {self.end}"

    def split(self, shards: int) -> list[Draws]:
        """Consecutive shards of nearly the same size, no more of them than draws."""
        number = self.end - self.first
        shards = min(shards, number)
        cuts = [self.first + number * i // shards for i in range(shards + 1)]
        return [self.model_copy(update={"first": first, "end": end}) for first, end in pairwise(cuts)]


def run(work: Work, draws: Draws) -> RiskPass:
    """The pass in this process. It keeps its state now and then, and goes on from it after a kill.

    Inputs of the stage: dataset, prepared, posterior, and weights where the pass is weighted.

    Raises:
        MechanismError: a log-likelihood is not finite.
    """
    records, labels = load_inputs(work.inputs["prepared"], "train")
    work.sized(len(labels) * (draws.end - draws.first))
    file = work.scratch / _FILE
    so_far = load(work.scratch) if file.exists() else None
    every = max(1, min(_SAVE_EVERY, (draws.end - draws.first) // 20))

    def keep(done: int, state: RiskPass) -> None:
        if done % every == 0:
            _save(file, state)

    return risks.risk_pass(
        build(work.context, draws.model, work.inputs["dataset"], seed=draws.seed),
        records,
        labels,
        swag.load(work.inputs["posterior"], std_scale=draws.std_scale),
        draws=range(draws.first, draws.end),
        seed=draws.seed,
        purpose=draws.purpose,
        weights=load_weights(work.inputs["weights"]) if "weights" in work.inputs else None,
        precision=draws.precision,
        so_far=so_far,
        on_draw=keep,
        progress=work.progress,
    )


def shard(draws: Draws, inputs: Mapping[str, ArtifactRef]) -> Step:
    """Some of a pass's draws as a stage of their own; `load` opens it."""

    def body(work: Work) -> Mapping[str, Any]:
        _save(work.out / _FILE, run(work, draws))
        return {"draws": draws.end - draws.first}

    return Step(
        name="risk-shard",
        label=draws.label,
        config=draws.model_dump(mode="json"),
        inputs=dict(inputs),
        body=body,
    )


def load(folder: Path) -> RiskPass:
    """What a shard left."""
    return RiskPass(**checkpoint.load(folder / _FILE)[0])


def _save(file: Path, done: RiskPass) -> None:
    checkpoint.save(file, {"risk": done.risk, "draw_maxima": done.draw_maxima}, {})
