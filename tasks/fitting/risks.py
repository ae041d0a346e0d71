"""Defines the stages over posterior draws: risks, sensitivity, and the weights that follow from them.

They measure nats per record. The accountant derives the claim for a unit of several records. Draw number s depends on
(seed, purpose, s) alone, so that a shard of draws is the same wherever it is run, and maxima over shards are the maxima
over all draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field

from mechanisms.model import checkpoint
from mechanisms.model.config import ModelConfig, Precision
from mechanisms.posterior import risks, swag
from mechanisms.posterior.config import PseudoPosteriorConfig
from mechanisms.posterior.risks import RiskPass
from mechanisms.posterior.rounds import TABLE, Purpose, RoundName
from mechanisms.privacy.numerics import failure_probability
from storage.artifacts import ArtifactRef
from tasks.fitting.model_inputs import build, load_inputs
from tasks.fitting.train import Round, load_weights
from tasks.running.shard_runs import Part
from tasks.running.shards import run_parts
from tasks.running.stage import Step, Work

_FILE = "weights.safetensors"
"""Of the stages: `alpha` float32 [n], and from a pass `risk` [n] and `draw_maxima` [S]."""
_PASS = "pass.safetensors"
"""Of a shard, and of a checkpoint."""
_SAVE_EVERY = 64
"""Draws between two checkpoints of a pass, at most."""


class Draws(Part, frozen=True, title="Draws"):
    """Holds the settings of a pass. Its inputs are the records, the posterior and, if any, the weights."""

    model: ModelConfig = Field(title="Model")
    seed: int = Field(ge=0, lt=2**53, title="Seed", description="Of the fit; draw s depends on it, the purpose and s.")
    std_scale: float = Field(gt=0, allow_inf_nan=False, title="Standard deviation scale", description="Of SWAG.")
    precision: Literal["float32", "bfloat16"] = Field(default="float32", title="Precision", description="Of the pass.")
    purpose: Purpose = Field(title="Purpose", description="What the draws are for.")

    @property
    def label(self) -> str:
        """Describes the draws, counted from one."""
        return f"{self.purpose} draws {self.first + 1} to {self.end}"


def measure(this: Round, config: PseudoPosteriorConfig, *, posterior: ArtifactRef | None) -> Step:
    """Measures risks over draws of the base posterior, or Delta over draws of a later one."""
    draws, purpose = TABLE[this.name].draws(config), TABLE[this.name].purpose
    settings = {"seed": this.fit.seed, "std_scale": this.fit.swag.std_scale, "precision": precision(this.model, config)}

    def body(work: Work) -> Mapping[str, Any]:
        done = run_risk_pass(work, Draws(model=this.model, purpose=purpose, end=draws, **settings))
        alpha = load_weights(work.inputs["weights"]) if "weights" in work.inputs else torch.ones_like(done.risk)
        checkpoint.save(work.out / _FILE, {"alpha": alpha, "risk": done.risk, "draw_maxima": done.draw_maxima}, {})
        if purpose == "risk":
            return {"draws": draws, "largest_risk": done.sensitivity}
        return {"sensitivity": done.sensitivity, "draws": draws, "mc_failure_prob": failure_probability(draws)}

    return Step(
        name="risks" if purpose == "risk" else "sensitivity",
        label="risks" if purpose == "risk" else f"sensitivity ({this.name})",
        config={"model": this.model.model_dump(mode="json"), "draws": draws, **settings},
        inputs={**this.inputs, "posterior": posterior},
        body=body,
    )


def weigh(config: PseudoPosteriorConfig, name: RoundName, *, measured: ArtifactRef | None) -> Step:
    """Weighs records for a round, in a stage after the pass before it, so that another c, g or k costs no draws."""
    reweighted = TABLE[name].reweighted
    settings = {"k": config.k} if reweighted else {"c": config.c, "g": config.g}

    def body(work: Work) -> Mapping[str, Any]:
        tensors = checkpoint.load(work.inputs["measured"] / _FILE)[0]
        alpha = risks.weights_of(config, name, tensors["alpha"], tensors["risk"])
        checkpoint.save(work.out / _FILE, {"alpha": alpha}, {})
        shown = settings if reweighted else {}
        return shown | {"mean_weight": float(alpha.mean()), "share_at_one": float((alpha >= 1).float().mean())}

    return Step(
        name="reweight" if reweighted else "risk-weights",
        label="reweight" if reweighted else "risk weights",
        config=settings,
        inputs={"measured": measured},
        body=body,
    )


def run_risk_pass(work: Work, whole: Draws) -> RiskPass:
    """Runs the pass in this process or in shards, as the context says. On like devices both agree bit for bit."""
    settings = work.context.fan_out
    parts = whole.split(settings.shards)
    if len(parts) == 1:
        return _run(work, whole)
    return risks.merge([_load(folder) for folder in run_parts(work, parts, shard, deployment=settings.deployment)])


def shard(draws: Draws, inputs: Mapping[str, ArtifactRef]) -> Step:
    """Returns the stage of one shard of a pass."""

    def body(work: Work) -> Mapping[str, Any]:
        _save(work.out, _run(work, draws))
        return {"draws": draws.size}

    return Step("risk-shard", draws.label, draws.model_dump(mode="json"), dict(inputs), body)


def _run(work: Work, draws: Draws) -> RiskPass:
    """Runs the pass in this process. It saves its state at intervals, and continues from it after a kill."""
    records, labels = load_inputs(work.inputs["prepared"], "train")
    work.sized(len(labels) * draws.size)
    every = max(1, min(_SAVE_EVERY, draws.size // 20))

    def save(done: int, state: RiskPass) -> None:
        if done % every == 0:
            _save(work.scratch, state)

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
        so_far=_load(work.scratch) if (work.scratch / _PASS).exists() else None,
        on_draw=save,
        progress=work.progress,
    )


def _load(folder: Path) -> RiskPass:
    return RiskPass(**checkpoint.load(folder / _PASS)[0])


def _save(folder: Path, done: RiskPass) -> None:
    checkpoint.save(folder / _PASS, {"risk": done.risk, "draw_maxima": done.draw_maxima}, {})


def running_maximum(folder: Path) -> list[float]:
    """Returns Delta after each draw, for the plot: the cumulative maximum over draws."""
    return checkpoint.load(folder / _FILE)[0]["draw_maxima"].cummax(0).values.tolist()


def precision(model: ModelConfig, config: PseudoPosteriorConfig) -> Precision:
    """Returns a pass's precision: its setting, or the encoder's if the pass runs through the encoder."""
    through_encoder = model.trainable != "head" and model.precision == "bfloat16"
    return "bfloat16" if through_encoder else config.precision
