"""Stages over posterior draws: risks and weights, sensitivity, equation 7.

They measure, in nats a record. What that claims for a unit of several records is the accountant's to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from mechanisms.model import checkpoint
from mechanisms.model.bounded import BoundedLikelihood
from mechanisms.model.classifier import ModelConfig
from mechanisms.posterior import risks as pseudo_posterior
from mechanisms.posterior.risks import PseudoPosteriorConfig, RiskPass
from mechanisms.privacy.numerics import failure_probability
from storage.artifacts import ArtifactRef
from tasks.fitting.draws import Draws, Purpose
from tasks.fitting.fan_out import passed
from tasks.fitting.train import load_weights
from tasks.parameters import FitParameters
from tasks.running.stage import Step, Work


def risks(
    model: ModelConfig,
    fit: FitParameters,
    config: PseudoPosteriorConfig,
    *,
    dataset: ArtifactRef | None,
    prepared: ArtifactRef | None,
    posterior: ArtifactRef | None,
) -> Step:
    """Per-record risks over draws of the unweighted posterior."""
    return Step(
        name="risks",
        label="risks",
        config=_common(model, fit, config) | {"draws": config.risk_draws},
        inputs={"dataset": dataset, "prepared": prepared, "posterior": posterior},
        body=partial(_risks, model=model, fit=fit, config=config),
        modules=("tasks.fitting.risks",),
    )


def _risks(work: Work, *, model: ModelConfig, fit: FitParameters, config: PseudoPosteriorConfig) -> Mapping[str, Any]:
    done = passed(work, _draws(model, fit, config, "risk", config.risk_draws))
    _save(work, done, torch.ones_like(done.risk))
    return {"draws": config.risk_draws, "largest_risk": done.sensitivity}


def weights(config: PseudoPosteriorConfig, *, risks: ArtifactRef | None) -> Step:
    """The weights that risks map to; apart from them, so that other c and g cost no draws."""
    return Step(
        name="risk-weights",
        label="risk weights",
        config={"c": config.c, "g": config.g},
        inputs={"risks": risks},
        body=partial(_weights, c=config.c, g=config.g),
        modules=("tasks.fitting.risks",),
    )


def _weights(work: Work, *, c: float, g: float) -> Mapping[str, Any]:
    risk = checkpoint.load(work.inputs["risks"] / "weights.safetensors")[0]["risk"]
    alpha = pseudo_posterior.risk_weights(risk, c=c, g=g)
    checkpoint.save(work.out / "weights.safetensors", {"alpha": alpha}, {})
    return weight_figures(alpha)


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
    weighted: bool = True,
    bounded: BoundedLikelihood | None = None,
) -> Step:
    """Delta over S draws of the posterior that was fitted with these weights, or with none, and with this bound."""
    return Step(
        name="sensitivity",
        label=f"sensitivity ({round_name})",
        config=_common(model, fit, config)
        | {"draws": config.sensitivity_draws}
        | ({} if bounded is None else {"bound": bounded.bound}),
        inputs={"dataset": dataset, "prepared": prepared, "posterior": posterior}
        | ({"weights": weights} if weighted else {}),
        body=partial(_sensitivity, model=model, fit=fit, config=config, bounded=bounded),
        modules=("tasks.fitting.risks",),
    )


def _sensitivity(
    work: Work,
    *,
    model: ModelConfig,
    fit: FitParameters,
    config: PseudoPosteriorConfig,
    bounded: BoundedLikelihood | None,
) -> Mapping[str, Any]:
    alpha = load_weights(work.inputs["weights"]) if "weights" in work.inputs else None
    draws = config.sensitivity_draws
    done = passed(work, _draws(model, fit, config, "sensitivity", draws))
    if bounded is not None:  # monotone: the bounded maximum is the bound of the maximum
        done = RiskPass(risk=done.risk, draw_maxima=bounded(-done.draw_maxima).abs())
    _save(work, done, torch.ones_like(done.risk) if alpha is None else alpha)
    if bounded is not None:
        return {
            "sensitivity": bounded.bound,
            "largest_seen": done.sensitivity,
            "draws": draws,
        }
    return {
        "sensitivity": done.sensitivity,
        "draws": draws,
        "mc_failure_prob": failure_probability(draws),
    }


def reweight(config: PseudoPosteriorConfig, *, measured: ArtifactRef | None) -> Step:
    """Equation 7: raise the weights of records whose sensitivity lies below the largest."""
    return Step(
        name="reweight",
        label="reweight",
        config={"k": config.k},
        inputs={"measured": measured},
        body=partial(_reweight, k=config.k),
        modules=("tasks.fitting.risks",),
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


def _draws(
    model: ModelConfig, fit: FitParameters, config: PseudoPosteriorConfig, purpose: Purpose, draws: int
) -> Draws:
    return Draws(
        model=model,
        seed=fit.seed,
        std_scale=fit.swag.std_scale,
        precision=config.precision,
        purpose=purpose,
        end=draws,
    )


def _save(work: Work, done: RiskPass, alpha: torch.Tensor) -> None:
    checkpoint.save(
        work.out / "weights.safetensors",
        {"alpha": alpha, "risk": done.risk, "draw_maxima": done.draw_maxima},
        {},
    )
