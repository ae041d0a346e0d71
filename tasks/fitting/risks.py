"""Stages over posterior draws: risks and weights, sensitivity, equation 7.

They measure, in nats a record. What that claims for a unit of several records is the accountant's to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mechanisms.model import checkpoint
from mechanisms.model.bounded import BoundedLikelihood
from mechanisms.model.classifier import ModelConfig
from mechanisms.model.precision import Precision
from mechanisms.posterior import risks as pseudo_posterior
from mechanisms.posterior.risks import PseudoPosteriorConfig, RiskPass
from mechanisms.privacy.numerics import failure_probability
from storage.artifacts import ArtifactRef
from tasks.fitting.draws import Draws, Purpose
from tasks.fitting.fan_out import passed
from tasks.fitting.train import load_weights
from tasks.parameters import FitParameters
from tasks.running.stage import Step, Work

_FILE = "weights.safetensors"
"""Of every stage here: `alpha` float32 [n], and from a pass `risk` [n] and `draw_maxima` [S]."""


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

    def body(work: Work) -> Mapping[str, Any]:
        done = passed(work, _draws(model, fit, config, "risk", config.risk_draws))
        _save(work, done, torch.ones_like(done.risk))
        return {"draws": config.risk_draws, "largest_risk": done.sensitivity}

    return Step(
        name="risks",
        label="risks",
        config=_config(model, fit, config, config.risk_draws),
        inputs={"dataset": dataset, "prepared": prepared, "posterior": posterior},
        body=body,
    )


def weights(config: PseudoPosteriorConfig, *, risks: ArtifactRef | None) -> Step:
    """The weights that risks map to; apart from them, so that other c and g cost no draws."""

    def body(work: Work) -> Mapping[str, Any]:
        risk = checkpoint.load(work.inputs["risks"] / _FILE)[0]["risk"]
        return _keep(work, pseudo_posterior.risk_weights(risk, c=config.c, g=config.g))

    return Step(
        name="risk-weights",
        label="risk weights",
        config={"c": config.c, "g": config.g},
        inputs={"risks": risks},
        body=body,
    )


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
    draws = config.sensitivity_draws

    def body(work: Work) -> Mapping[str, Any]:
        done = passed(work, _draws(model, fit, config, "sensitivity", draws))
        if bounded is not None:  # monotone: the bounded maximum is the bound of the maximum
            done = RiskPass(risk=done.risk, draw_maxima=bounded(-done.draw_maxima).abs())
        _save(work, done, load_weights(work.inputs["weights"]) if weighted else torch.ones_like(done.risk))
        if bounded is not None:
            return {"sensitivity": bounded.bound, "largest_seen": done.sensitivity, "draws": draws}
        return {"sensitivity": done.sensitivity, "draws": draws, "mc_failure_prob": failure_probability(draws)}

    return Step(
        name="sensitivity",
        label=f"sensitivity ({round_name})",
        config=_config(model, fit, config, draws) | ({} if bounded is None else {"bound": bounded.bound}),
        inputs={"dataset": dataset, "prepared": prepared, "posterior": posterior}
        | ({"weights": weights} if weighted else {}),
        body=body,
    )


def reweight(config: PseudoPosteriorConfig, *, measured: ArtifactRef | None) -> Step:
    """Equation 7: raise the weights of records whose sensitivity lies below the largest."""

    def body(work: Work) -> Mapping[str, Any]:
        tensors = checkpoint.load(work.inputs["measured"] / _FILE)[0]
        alpha = pseudo_posterior.reweight(tensors["alpha"], tensors["risk"], k=config.k)
        return {"k": config.k} | _keep(work, alpha)

    return Step(
        name="reweight",
        label="reweight",
        config={"k": config.k},
        inputs={"measured": measured},
        body=body,
    )


def _keep(work: Work, alpha: torch.Tensor) -> dict[str, Any]:
    """Write weights; return their aggregates, which the operator may be shown."""
    checkpoint.save(work.out / _FILE, {"alpha": alpha}, {})
    return {"mean_weight": float(alpha.mean()), "share_at_one": float((alpha >= 1).float().mean())}


def running_maximum(folder: Path) -> list[float]:
    """Delta after each draw, for the plot: the cumulative maximum over draws."""
    return checkpoint.load(folder / _FILE)[0]["draw_maxima"].cummax(0).values.tolist()


def precision(model: ModelConfig, config: PseudoPosteriorConfig) -> Precision:
    """Of a pass: its own, or the encoder's where passes run through it; a head's features are no work for bfloat16."""
    through_encoder = model.trainable != "head" and model.precision == "bfloat16"
    return "bfloat16" if through_encoder else config.precision


def _config(model: ModelConfig, fit: FitParameters, config: PseudoPosteriorConfig, draws: int) -> dict[str, Any]:
    return {
        "model": model.model_dump(mode="json"),
        "seed": fit.seed,
        "std_scale": fit.swag.std_scale,
        "precision": precision(model, config),
        "draws": draws,
    }


def _draws(
    model: ModelConfig, fit: FitParameters, config: PseudoPosteriorConfig, purpose: Purpose, draws: int
) -> Draws:
    scale = fit.swag.std_scale
    return Draws(
        model=model, seed=fit.seed, std_scale=scale, precision=precision(model, config), purpose=purpose, end=draws
    )


def _save(work: Work, done: RiskPass, alpha: torch.Tensor) -> None:
    checkpoint.save(work.out / _FILE, {"alpha": alpha, "risk": done.risk, "draw_maxima": done.draw_maxima}, {})
