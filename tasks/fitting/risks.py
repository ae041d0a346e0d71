"""Defines the stages over posterior draws: risks, sensitivity, and the weights that follow from
them.

They measure nats per record. The accountant derives the claim for a unit of several records. Draw
number s depends on (seed, purpose, s) alone, so that a part of the draws is the same wherever it is
run, and maxima over parts are the maxima over all draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import Field

from mechanisms.model import checkpoint
from mechanisms.model.config import ModelConfig
from mechanisms.posterior import risks, swag
from mechanisms.posterior.config import PseudoPosteriorConfig
from mechanisms.posterior.risks import RiskPass
from mechanisms.posterior.rounds import TABLE, Purpose, RoundName
from mechanisms.privacy.numerics import failure_probability
from storage.artifacts import ArtifactRef, Store
from tasks.fitting.model_inputs import build, load_inputs
from tasks.fitting.train import Round, load_weights
from tasks.running.parts import Part, compute_part, run_parts_of
from tasks.running.stage import Step, Work

_FILE = "weights.safetensors"
"""Of the stages: `alpha` float32 [n], and from a pass `risk` [n] and `draw_maxima` [S]."""
_PASS = "pass.safetensors"
"""Of a part."""
_PARTS, _MOST = 16, 64
"""A pass has this many parts; each has this many draws at most, since a killed one begins again."""


class Draws(Part, frozen=True, title="Draws"):
    """Holds the settings of a pass. Its inputs are the records, the posterior and, if any, the
    weights.
    """

    model: ModelConfig = Field(title="Model")
    seed: int = Field(
        ge=0,
        lt=2**53,
        title="Seed",
        description="Of the training; sample s depends on it, the purpose and s.",
    )
    std_scale: float = Field(
        gt=0, allow_inf_nan=False, title="Standard deviation scale", description="Of SWAG."
    )
    purpose: Purpose = Field(title="Purpose", description="What the samples are for.")

    @property
    def label(self) -> str:
        return f"{self.purpose} samples {self.first + 1} to {self.end}"


def measure(this: Round, config: PseudoPosteriorConfig, *, posterior: ArtifactRef | None) -> Step:
    """Measures risks over draws of the base posterior, or Delta over draws of a later one."""
    draws, purpose = TABLE[this.name].draws(config), TABLE[this.name].purpose
    settings = {"seed": this.fit.seed, "std_scale": this.fit.swag.std_scale}

    def body(work: Work) -> Mapping[str, Any]:
        done = run_risk_pass(work, Draws(model=this.model, purpose=purpose, end=draws, **settings))
        alpha = (
            load_weights(work.inputs["weights"])
            if "weights" in work.inputs
            else torch.ones_like(done.risk)
        )
        checkpoint.save(
            work.out / _FILE,
            {"alpha": alpha, "risk": done.risk, "draw_maxima": done.draw_maxima},
            {},
        )
        if purpose == "risk":
            return {"draws": draws, "largest_risk": done.sensitivity}
        return {
            "sensitivity": done.sensitivity,
            "draws": draws,
            "mc_failure_prob": failure_probability(draws),
        }

    return Step(
        name="risks" if purpose == "risk" else "sensitivity",
        label="risks" if purpose == "risk" else f"sensitivity ({this.name})",
        config={"model": this.model.model_dump(mode="json"), "draws": draws, **settings},
        inputs={**this.inputs, "posterior": posterior},
        body=body,
    )


def weigh(config: PseudoPosteriorConfig, name: RoundName, *, measured: ArtifactRef | None) -> Step:
    """Weighs records for a round, in a stage after the pass before it, so that another c, g or k
    costs no draws.
    """
    reweighted = TABLE[name].reweighted
    settings = {"k": config.k} if reweighted else {"c": config.c, "g": config.g}

    def body(work: Work) -> Mapping[str, Any]:
        tensors = checkpoint.load(work.inputs["measured"] / _FILE)[0]
        alpha = risks.weights_of(config, name, tensors["alpha"], tensors["risk"])
        checkpoint.save(work.out / _FILE, {"alpha": alpha}, {})
        shown = settings if reweighted else {}
        return shown | {
            "mean_weight": float(alpha.mean()),
            "share_at_one": float((alpha >= 1).float().mean()),
        }

    return Step(
        name="reweight" if reweighted else "risk-weights",
        label="reweight" if reweighted else "risk weights",
        config=settings,
        inputs={"measured": measured},
        body=body,
    )


def run_risk_pass(work: Work, whole: Draws) -> RiskPass:
    labels = load_inputs(work.inputs["prepared"], "train")[1]
    work.sized(len(labels) * whole.size)
    parts = whole.cut(min(_MOST, -(-whole.size // _PARTS)))
    return risks.merge([_load(folder) for folder in run_parts_of(work, compute, parts, part_step)])


def compute(request: str) -> str:
    return compute_part(request, Draws, part_step)


def part_step(store: Store, draws: Draws, inputs: Mapping[str, ArtifactRef]) -> Step:
    def body(work: Work) -> Mapping[str, Any]:
        records, labels = load_inputs(work.inputs["prepared"], "train")
        done = risks.risk_pass(
            build(work.context, draws.model, work.inputs["dataset"], seed=draws.seed),
            records,
            labels,
            swag.load(work.inputs["posterior"], std_scale=draws.std_scale),
            draws=range(draws.first, draws.end),
            seed=draws.seed,
            purpose=draws.purpose,
            weights=load_weights(work.inputs["weights"]) if "weights" in work.inputs else None,
            progress=work.progress,
        )
        checkpoint.save(work.out / _PASS, {"risk": done.risk, "draw_maxima": done.draw_maxima}, {})
        return {"draws": draws.size}

    return Step("risk-part", draws.label, draws.model_dump(mode="json"), dict(inputs), body)


def _load(folder: Path) -> RiskPass:
    return RiskPass(**checkpoint.load(folder / _PASS)[0])


def running_maximum(folder: Path) -> list[float]:
    """Returns Delta after each draw, for the plot: the cumulative maximum over draws."""
    return checkpoint.load(folder / _FILE)[0]["draw_maxima"].cummax(0).values.tolist()
