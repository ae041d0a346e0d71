"""Stages: diagnose a finished retrain: convergence of Delta, coverage of SWAG, influence of one record.

These stages claim and release nothing. Their files hold per-record figures and stay private; their figures are
aggregates. The mathematics are in `mechanisms.posterior.checks` and `mechanisms.audit.leave_one_out`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, cast

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from mechanisms.audit import leave_one_out
from mechanisms.audit.leave_one_out import Effect, FullFit
from mechanisms.model import checkpoint
from mechanisms.model.inputs import FeatureInputs
from mechanisms.posterior import checks, risks, swag
from tasks.fitting.model_inputs import build, load_inputs
from tasks.parameters import RetrainParameters
from tasks.running.stage import Step, Work

if TYPE_CHECKING:  # no part of the stages' code version
    from tasks.branches.swag_chain import Chain

FILE = "diagnostics.json"
_GROUP = 5
"""Records left out in one batch: as many fits as stay in a core's cache."""


class DiagnoseParameters(BaseModel, frozen=True, extra="forbid", title="Diagnose"):
    """Sets the extent of the diagnostics."""

    leave_out: int = Field(default=50, ge=0, le=10_000, title="Records left out", description="Each is one refit.")
    refits: bool = Field(default=True, title="Refits", description="Other learning rates and seeds: four more chains.")
    study_draws: int = Field(
        default=100, ge=10, le=100_000, title="Draws of each study", description="From each posterior."
    )
    horizon: int = Field(
        default=50_000,
        ge=1000,
        le=10**9,
        title="Draws to extrapolate to",
        description="Number of draws for which Delta is extrapolated.",
    )


def posterior_checks(parameters: RetrainParameters, settings: DiagnoseParameters, made: Chain) -> Step:
    """Declares the diagnostics of a chain that need no refit."""
    inputs = {"dataset": made.dataset, "prepared": made.prepared}
    inputs |= {f"posterior_{name}": ref for name, ref in made.posteriors.items()}
    inputs |= {f"measured_{name}": ref for name, ref in made.measured.items()}
    return Step(
        name="diagnose",
        label="diagnostics",
        config={
            "rounds": list(made.posteriors),
            "fit": parameters.fit.model_dump(mode="json", include={"seed", "swag"}),
            "model": parameters.model.model_dump(mode="json"),
            "draws": settings.study_draws,
            "horizon": settings.horizon,
        },
        inputs=inputs,
        body=partial(_check_posteriors, parameters=parameters, settings=settings, rounds=tuple(made.posteriors)),
        modules=("tasks.diagnosing.stages",),
    )


def _check_posteriors(
    work: Work, *, parameters: RetrainParameters, settings: DiagnoseParameters, rounds: tuple[str, ...]
) -> Mapping[str, Any]:
    trained = build(work.context, parameters.model, work.inputs["dataset"], seed=parameters.fit.seed)
    halves = {name: load_inputs(work.inputs["prepared"], name) for name in ("train", "test")}
    by_round: dict[str, Any] = {}
    for name in rounds:
        post = swag.load(work.inputs[f"posterior_{name}"], std_scale=parameters.fit.swag.std_scale)
        tensors = checkpoint.load(work.inputs[f"measured_{name}"] / "weights.safetensors")[0]
        trained.flat.copy_(post.mean)
        by_round[name] = _round(name, parameters, settings, post, tensors, halves["train"][1]) | {
            f"{half}_log_likelihood": checks.mean_log_likelihood(trained, *halves[half]) for half in halves
        }
    last = rounds[-1]
    studied: dict[str, list[Any]] = {"scales": [], "ranks": []}
    post = swag.load(work.inputs[f"posterior_{last}"], std_scale=parameters.fit.swag.std_scale)
    alpha = _alpha(last, checkpoint.load(work.inputs[f"measured_{last}"] / "weights.safetensors")[0])
    studies = list(checks.variants(post))
    for done, (study, value, changed) in enumerate(studies, start=1):
        largest = risks.risk_pass(
            trained,
            *halves["train"],
            changed,
            draws=range(settings.study_draws),
            seed=parameters.fit.seed,
            purpose="diagnose",
            weights=alpha,
        ).sensitivity
        studied[study].append([value, largest])
        work.progress(done, len(studies))
    (work.out / FILE).write_text(json.dumps({"rounds": by_round, "released_from": last} | studied))
    figures = by_round[last]
    return {
        "largest_seen": figures["running"][-1],
        **({} if figures["tail"] is None else {"at_horizon": figures["tail"]["expected"]}),
        "fit_gap": figures["train_log_likelihood"] - figures["test_log_likelihood"],
        **({} if figures["coverage"] is None else {"coverage_at_95": figures["coverage"]["directions"][3]}),
        "share_without_variance": figures["share_without_variance"],
    }


def _alpha(name: str, tensors: Mapping[str, Tensor]) -> Tensor:
    """Returns the weights of the round's fit: ones in the base round, whose file holds those of the next."""
    return torch.ones_like(tensors["alpha"]) if name == "base" else tensors["alpha"]


def _round(
    name: str,
    parameters: RetrainParameters,
    settings: DiagnoseParameters,
    post: swag.Posterior,
    tensors: Mapping[str, Tensor],
    labels: Tensor,
) -> dict[str, Any]:
    maxima, alpha = tensors["draw_maxima"], _alpha(name, tensors)
    delta = alpha * tensors["risk"]
    tail = coverage = None
    if checks.FEWEST_DRAWS <= len(maxima) < settings.horizon:
        tail = dataclasses.asdict(checks.extrapolate(maxima, draws=settings.horizon, seed=parameters.fit.seed))
    if post.rank >= checks.FEWEST_ITERATES:
        coverage = dataclasses.asdict(checks.coverage(post, seed=parameters.fit.seed))
    return {
        "running": maxima.cummax(0).values.tolist(),
        "tail": tail,
        "coverage": coverage,
        "delta_quantiles": torch.quantile(delta, torch.linspace(0, 1, 201)).tolist(),
        **checks.weights_by_class_size(alpha, labels),
        "share_without_variance": float((post.diag_std == 0).float().mean()),
    }


def leave_out(parameters: RetrainParameters, settings: DiagnoseParameters, made: Chain) -> Step:
    """Declares refits of the released round without each of some records, to compare draws and densities."""
    last = parameters.rounds[-1]
    return Step(
        name="leave-one-out",
        label="leave one out",
        config={
            "fit": parameters.fit.model_dump(mode="json"),
            "model": parameters.model.model_dump(mode="json"),
            "records": settings.leave_out,
            "round": last,
        },
        inputs={"dataset": made.dataset, "prepared": made.prepared, "measured": made.measured[last]},
        body=partial(_leave_out, parameters=parameters, count=settings.leave_out),
        modules=("tasks.diagnosing.stages",),
    )


def _leave_out(work: Work, *, parameters: RetrainParameters, count: int) -> Mapping[str, Any]:
    fit = parameters.fit
    trained = build(work.context, parameters.model, work.inputs["dataset"], seed=fit.seed)
    records, labels = load_inputs(work.inputs["prepared"], "train")
    features = cast(FeatureInputs, records)
    tensors = checkpoint.load(work.inputs["measured"] / "weights.safetensors")[0]
    alpha = tensors["alpha"]
    chosen = leave_one_out.records_to_leave_out(alpha * tensors["risk"], count=count, seed=fit.seed)

    def posteriors(weights: Tensor, done: int) -> list[swag.Posterior]:
        return leave_one_out.refit(
            trained,
            features,
            labels,
            weights=weights,
            adamw=fit.adamw,
            sgd=fit.sgd,
            rank=fit.swag.rank,
            std_scale=fit.swag.std_scale,
            seed=fit.seed,
            progress=lambda step, steps: work.progress(done * steps + len(weights) * step, (1 + len(chosen)) * steps),
        )

    full = FullFit(posteriors(alpha[None], 0)[0], seed=fit.seed, fields=trained.fields)
    rows: list[list[float]] = []
    for start in range(0, len(chosen), _GROUP):
        group = chosen[start : start + _GROUP]
        file = work.scratch / f"group_{start:05d}.safetensors"
        if not file.exists():
            refits = posteriors(leave_one_out.trial_weights(alpha, group, records=len(labels)), 1 + start)
            effects = [
                dataclasses.astuple(full.effect(features.features[i], labels[i], without=without))
                for i, without in zip(group.tolist(), refits, strict=True)
            ]
            checkpoint.save(file, {"rows": torch.tensor(effects, dtype=torch.float64)}, {})
        rows += checkpoint.load(file)[0]["rows"].tolist()
    columns = {field.name: [row[place] for row in rows] for place, field in enumerate(dataclasses.fields(Effect))}
    (work.out / FILE).write_text(json.dumps(columns | {"riskiest": (count + 1) // 2}))
    return {
        "records": len(rows),
        "median_own_loss": median(columns["own_loss"]),
        "largest_own_loss": max(columns["own_loss"]),
        "median_density_loss": median(columns["density_loss"]),
    }


def read(folder: Path) -> dict[str, Any]:
    """Reads the output of one of these stages."""
    return json.loads((folder / FILE).read_text())
