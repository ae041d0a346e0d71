"""Stages over posterior draws: risks and weights, sensitivity, equation 7."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mechanisms import checkpoint, pseudo_posterior, swag
from mechanisms.classifier import ModelConfig
from mechanisms.pseudo_posterior import PseudoPosteriorConfig, RiskPass
from storage.artifacts import ArtifactRef
from tasks.data import load_inputs
from tasks.parameters import FitParameters
from tasks.stage import Step, Work
from tasks.train import build, load_weights

_SAVE_EVERY = 64
"""Draws between two checkpoints of a risk pass, at most."""


def risks(
    model: ModelConfig,
    fit: FitParameters,
    config: PseudoPosteriorConfig,
    *,
    dataset: ArtifactRef | None,
    prepared: ArtifactRef | None,
    posterior: ArtifactRef | None,
) -> Step:
    """Per-record risks over draws of the unweighted posterior, and the weights they map to."""
    return Step(
        name="risk-weights",
        label="risk weights",
        config=_common(model, fit, config) | {"draws": config.risk_draws, "c": config.c, "g": config.g},
        inputs={"dataset": dataset, "prepared": prepared, "posterior": posterior},
        body=partial(_risks, model=model, fit=fit, config=config),
        modules=("mechanisms.pseudo_posterior", "tasks.posterior"),
    )


def _risks(work: Work, *, model: ModelConfig, fit: FitParameters, config: PseudoPosteriorConfig) -> Mapping[str, Any]:
    done = _pass(work, model=model, fit=fit, config=config, draws=config.risk_draws, purpose="risk", weights=None)
    alpha = pseudo_posterior.risk_weights(done.risk, c=config.c, g=config.g)
    _save(work, done, alpha)
    return {"draws": config.risk_draws, "largest_risk": done.sensitivity} | weight_figures(alpha)


def sensitivity(
    round_name: str,
    model: ModelConfig,
    fit: FitParameters,
    config: PseudoPosteriorConfig,
    *,
    dataset: ArtifactRef | None,
    prepared: ArtifactRef | None,
    posterior: ArtifactRef | None,
    weights: ArtifactRef | None,
) -> Step:
    """Delta over S draws of the posterior that was fitted with these weights."""
    return Step(
        name="sensitivity",
        label=f"sensitivity ({round_name})",
        config=_common(model, fit, config) | {"draws": config.sensitivity_draws},
        inputs={"dataset": dataset, "prepared": prepared, "posterior": posterior, "weights": weights},
        body=partial(_sensitivity, model=model, fit=fit, config=config),
        modules=("mechanisms.pseudo_posterior", "tasks.posterior"),
    )


def _sensitivity(
    work: Work, *, model: ModelConfig, fit: FitParameters, config: PseudoPosteriorConfig
) -> Mapping[str, Any]:
    alpha = load_weights(work.inputs["weights"])
    draws = config.sensitivity_draws
    done = _pass(work, model=model, fit=fit, config=config, draws=draws, purpose="sensitivity", weights=alpha)
    _save(work, done, alpha)
    return {
        "sensitivity": done.sensitivity,
        "epsilon": 2 * done.sensitivity,
        "guarantee": "asymptotic-local",
        "draws": draws,
        "mc_failure_prob": pseudo_posterior.failure_probability(draws),
    }


def reweight(config: PseudoPosteriorConfig, *, measured: ArtifactRef | None) -> Step:
    """Equation 7: raise the weights of records whose sensitivity lies below the largest."""
    return Step(
        name="reweight",
        label="reweight",
        config={"k": config.k},
        inputs={"measured": measured},
        body=partial(_reweight, k=config.k),
        modules=("mechanisms.pseudo_posterior", "tasks.posterior"),
    )


def _reweight(work: Work, *, k: float) -> Mapping[str, Any]:
    tensors = checkpoint.load(work.inputs["measured"] / "weights.safetensors")[0]
    alpha = pseudo_posterior.reweight(tensors["alpha"], tensors["risk"], k=k)
    checkpoint.save(work.out / "weights.safetensors", {"alpha": alpha}, {})
    return {"k": k} | weight_figures(alpha)


def weight_figures(alpha: torch.Tensor) -> dict[str, Any]:
    """Aggregates of the weights that may be shown to the operator."""
    return {"mean_weight": float(alpha.mean()), "share_at_one": float((alpha >= 1).float().mean())}


def running_maximum(folder: Path) -> list[float]:
    """Delta after each draw, for the plot: the cumulative maximum over draws."""
    maxima = checkpoint.load(folder / "weights.safetensors")[0]["draw_maxima"]
    return maxima.cummax(0).values.tolist()


def _common(model: ModelConfig, fit: FitParameters, config: PseudoPosteriorConfig) -> dict[str, Any]:
    return {
        "model": model.model_dump(mode="json"),
        "seed": fit.seed,
        "std_scale": fit.swag.std_scale,
        "precision": config.precision,
    }


def _pass(
    work: Work,
    *,
    model: ModelConfig,
    fit: FitParameters,
    config: PseudoPosteriorConfig,
    draws: int,
    purpose: str,
    weights: torch.Tensor | None,
) -> RiskPass:
    """A risk pass that keeps its state now and then, and goes on from it after a kill."""
    records, labels = load_inputs(work.inputs["prepared"], "train")
    file = work.scratch / "pass.safetensors"
    so_far = RiskPass(**checkpoint.load(file)[0]) if file.exists() else None
    every = max(1, min(_SAVE_EVERY, draws // 20))

    def keep(done: int, state: RiskPass) -> None:
        if done % every == 0:
            checkpoint.save(file, {"risk": state.risk, "draw_maxima": state.draw_maxima}, {})

    return pseudo_posterior.risk_pass(
        build(work.context, model, work.inputs["dataset"], seed=fit.seed),
        records,
        labels,
        swag.load(work.inputs["posterior"], std_scale=fit.swag.std_scale),
        draws=range(draws),
        seed=fit.seed,
        purpose=purpose,
        weights=weights,
        precision=config.precision,
        so_far=so_far,
        on_draw=keep,
        progress=work.progress,
    )


def _save(work: Work, done: RiskPass, alpha: torch.Tensor) -> None:
    checkpoint.save(
        work.out / "weights.safetensors",
        {"alpha": alpha, "risk": done.risk, "draw_maxima": done.draw_maxima},
        {},
    )
