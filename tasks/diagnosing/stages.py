"""Stages that look at a finished retrain: is Delta settled, does SWAG cover its iterates, what does one record do.

Nothing here claims or releases. What the stages write holds per-record figures and stays private; their figures are
aggregates.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from mechanisms.audit import leave_one_out
from mechanisms.model import checkpoint
from mechanisms.model.bounded import BoundedLikelihood
from mechanisms.model.classifier import Classifier
from mechanisms.model.inputs import FeatureInputs, Inputs
from mechanisms.model.seeding import generator
from mechanisms.posterior import checks, risks, swag
from mechanisms.posterior.checks import Density
from storage.artifacts import ArtifactRef
from tasks.fitting.data import load_inputs
from tasks.fitting.train import build
from tasks.parameters import RetrainParameters
from tasks.running.stage import Step, Work

FILE = "diagnostics.json"
_SCALES = (0.5, 1.0, 2.0, 5.0)
_GROUP = 5
"""Records left out side by side: as many fits as stay in a core's cache."""
_DENSITY_DRAWS, _LOGIT_DRAWS = 10, 1000


class DiagnoseParameters(BaseModel):
    """How closely to look."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Diagnose")

    leave_out: int = Field(default=50, ge=0, le=10_000, title="Records left out", description="Each is one refit.")
    refits: bool = Field(default=True, title="Refits", description="Other learning rates and seeds: four more chains.")
    study_draws: int = Field(default=100, ge=10, le=100_000, title="Draws of each study")
    horizon: int = Field(default=50_000, ge=1000, le=10**9, title="Draws to extrapolate to")


def look(
    parameters: RetrainParameters,
    settings: DiagnoseParameters,
    *,
    dataset: ArtifactRef,
    prepared: ArtifactRef,
    posteriors: Mapping[str, ArtifactRef],
    measured: Mapping[str, ArtifactRef],
) -> Step:
    """Everything that needs no refit."""
    inputs: dict[str, ArtifactRef | None] = {"dataset": dataset, "prepared": prepared}
    inputs |= {f"posterior_{name}": ref for name, ref in posteriors.items()}
    inputs |= {f"measured_{name}": ref for name, ref in measured.items()}
    return Step(
        name="diagnose",
        label="diagnostics",
        config={
            "rounds": list(posteriors),
            "fit": parameters.fit.model_dump(mode="json", include={"seed", "swag"}),
            "model": parameters.model.model_dump(mode="json"),
            "bound": None if parameters.pseudo_posterior.bounded is None else parameters.pseudo_posterior.bounded.bound,
            "draws": settings.study_draws,
            "horizon": settings.horizon,
        },
        inputs=inputs,
        body=partial(_look, parameters=parameters, settings=settings, rounds=tuple(posteriors)),
        modules=("tasks.diagnosing.stages",),
    )


def _look(
    work: Work, *, parameters: RetrainParameters, settings: DiagnoseParameters, rounds: tuple[str, ...]
) -> Mapping[str, Any]:
    trained = build(work.context, parameters.model, work.inputs["dataset"], seed=parameters.fit.seed)
    halves = {name: load_inputs(work.inputs["prepared"], name) for name in ("train", "test")}
    quartile = checks.quartiles_of_class_size(halves["train"][1])
    seen: dict[str, Any] = {}
    for name in rounds:
        post = swag.load(work.inputs[f"posterior_{name}"], std_scale=parameters.fit.swag.std_scale)
        tensors = checkpoint.load(work.inputs[f"measured_{name}"] / "weights.safetensors")[0]
        trained.flat.copy_(post.mean)
        seen[name] = _round(name, parameters, settings, post, tensors, quartile) | {
            f"{half}_log_likelihood": _mean_log_likelihood(trained, *halves[half]) for half in halves
        }
    last = rounds[-1]
    seen_last = {"scales": [], "ranks": []}
    post = swag.load(work.inputs[f"posterior_{last}"], std_scale=parameters.fit.swag.std_scale)
    alpha = _alpha(last, checkpoint.load(work.inputs[f"measured_{last}"] / "weights.safetensors")[0])
    studies = [("scales", s, dataclasses.replace(post, std_scale=post.std_scale * s)) for s in _SCALES]
    ranks = sorted({max(2, post.rank // 4), max(2, post.rank // 2), post.rank})
    studies += [("ranks", k, dataclasses.replace(post, deviations=post.deviations[-k:])) for k in ranks]
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
        seen_last[study].append([value, _bounded(parameters, last, largest)])
        work.progress(done, len(studies))
    (work.out / FILE).write_text(json.dumps({"rounds": seen, "released_from": last} | seen_last))
    figures = seen[last]
    return {
        "largest_seen": figures["running"][-1],
        **({} if figures["tail"] is None else {"at_horizon": figures["tail"]["expected"]}),
        "fit_gap": figures["train_log_likelihood"] - figures["test_log_likelihood"],
        **({} if figures["coverage"] is None else {"coverage_at_95": figures["coverage"]["directions"][3]}),
        "share_without_variance": figures["share_without_variance"],
    }


def _alpha(name: str, tensors: Mapping[str, Tensor]) -> Tensor:
    """Weights that the round was fitted with: none in the base round, whose file holds the next one's."""
    return torch.ones_like(tensors["alpha"]) if name == "base" else tensors["alpha"]


def _bounded(parameters: RetrainParameters, name: str, loss: float) -> float:
    bound = parameters.bounded(name)
    return loss if bound is None else bound.at(loss)


def _round(
    name: str,
    parameters: RetrainParameters,
    settings: DiagnoseParameters,
    post: swag.Posterior,
    tensors: Mapping[str, Tensor],
    quartile: Tensor,
) -> dict[str, Any]:
    maxima, alpha = tensors["draw_maxima"], _alpha(name, tensors)
    delta = alpha * tensors["risk"]
    bound = parameters.bounded(name)
    if bound is not None:
        delta = bound(-delta).abs()
    tail = None
    if 50 <= len(maxima) < settings.horizon:
        tail = checks.extrapolate(maxima, draws=settings.horizon, seed=parameters.fit.seed)
    covered = None
    if post.rank >= 6:
        covered = checks.coverage(post, seed=parameters.fit.seed)
    steps = torch.linspace(0, 1, 201)
    return {
        "running": maxima.cummax(0).values.tolist(),
        "tail": None if tail is None else dataclasses.asdict(tail),
        "coverage": None if covered is None else dataclasses.asdict(covered),
        "delta_quantiles": torch.quantile(delta, steps).tolist(),
        "share_at_one": [float((alpha[quartile == q] >= 1).float().mean()) for q in range(4)],
        "mean_weight": [float(alpha[quartile == q].mean()) for q in range(4)],
        "bound": None if bound is None else bound.bound,
        "share_without_variance": float((post.diag_std == 0).float().mean()),
    }


def _mean_log_likelihood(trained: Classifier, records: Inputs, labels: Tensor) -> float:
    scores = trained.predict(records).log_softmax(-1)
    return float(scores.gather(1, labels[:, None]).mean())


def leave_out(
    parameters: RetrainParameters,
    settings: DiagnoseParameters,
    *,
    dataset: ArtifactRef,
    prepared: ArtifactRef,
    measured: ArtifactRef,
) -> Step:
    """Refit the released round without each of some records; compare what a draw says of it, and the densities."""
    last, bound = parameters.rounds[-1], parameters.bounded(parameters.rounds[-1])
    return Step(
        name="leave-one-out",
        label="leave one out",
        config={
            "fit": parameters.fit.model_dump(mode="json"),
            "model": parameters.model.model_dump(mode="json"),
            "records": settings.leave_out,
            "round": last,
            "bound": None if bound is None else bound.bound,
        },
        inputs={"dataset": dataset, "prepared": prepared, "measured": measured},
        body=partial(_leave_out, parameters=parameters, count=settings.leave_out, bound=bound),
        modules=("tasks.diagnosing.stages",),
    )


def _leave_out(
    work: Work, *, parameters: RetrainParameters, count: int, bound: BoundedLikelihood | None
) -> Mapping[str, Any]:
    fit = parameters.fit
    trained = build(work.context, parameters.model, work.inputs["dataset"], seed=fit.seed)
    records, labels = load_inputs(work.inputs["prepared"], "train")
    features = cast(FeatureInputs, records)
    tensors = checkpoint.load(work.inputs["measured"] / "weights.safetensors")[0]
    alpha = tensors["alpha"]
    chosen = _chosen(alpha * tensors["risk"], count=count, seed=fit.seed)

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
            bounded=bound,
            progress=lambda step, steps: work.progress(done * steps + len(weights) * step, (1 + len(chosen)) * steps),
        )

    whole = posteriors(alpha[None], 0)[0]
    within = Density(whole)
    draws = [
        swag.sample(whole, normal=swag.seeded_normal(generator(fit.seed, "leave-one-out", number)))
        for number in range(_DENSITY_DRAWS)
    ]
    at_draws = [within.log(theta) for theta in draws]
    rows: list[list[float]] = []
    for start in range(0, len(chosen), _GROUP):
        group = chosen[start : start + _GROUP]
        file = work.scratch / f"group_{start:05d}.safetensors"
        if not file.exists():
            found = [
                _compare(whole, without, features.features[i], labels[i], at_draws, draws, seed=fit.seed)
                for i, without in zip(
                    group.tolist(),
                    posteriors(leave_one_out.trial_weights(alpha, group, records=len(labels)), 1 + start),
                    strict=True,
                )
            ]
            checkpoint.save(file, {"rows": torch.tensor(found, dtype=torch.float64)}, {})
        rows += checkpoint.load(file)[0]["rows"].tolist()
    names = ("with_mean", "with_std", "without_mean", "without_std", "own_loss", "density_loss")
    columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    (work.out / FILE).write_text(json.dumps(columns | {"riskiest": (count + 1) // 2}))
    return {
        "records": len(rows),
        "median_own_loss": median(columns["own_loss"]),
        "largest_own_loss": max(columns["own_loss"]),
        "median_density_loss": median(columns["density_loss"]),
    }


def _chosen(delta: Tensor, *, count: int, seed: int) -> Tensor:
    """Half of them those with the largest Delta_i, half at random from the others."""
    count = min(count, len(delta))
    order = delta.argsort(descending=True, stable=True)
    riskiest, others = order[: (count + 1) // 2], order[(count + 1) // 2 :]
    pick = torch.randperm(len(others), generator=generator(seed, "leave-one-out"))[: count // 2]
    return torch.cat([riskiest, others[pick]])


def _compare(
    whole: swag.Posterior,
    without: swag.Posterior,
    features: Tensor,
    label: Tensor,
    at_draws: Sequence[float],
    draws: Sequence[Tensor],
    *,
    seed: int,
) -> list[float]:
    """What draws say of the record with and without it, and the privacy losses in nats.

    own_loss: the loss of somebody who sees only the record's own l at a draw, both sides taken as Gaussian; the median
    over draws with the record in. density_loss: of one who sees all parameters, the same.
    """
    ell = {}
    for name, post in (("with", whole), ("without", without)):
        noise = generator(seed, "logits", name)
        ell[name] = _log_likelihood_draws(post, features, int(label), noise)
    (a, s), (b, t) = ((x.mean(), x.std().clamp(min=1e-6)) for x in (ell["with"], ell["without"]))
    losses = ((ell["with"] - b) / t).square() / 2 + t.log() - ((ell["with"] - a) / s).square() / 2 - s.log()
    outside = Density(without)
    density = torch.tensor([x - outside.log(theta) for x, theta in zip(at_draws, draws, strict=True)])
    return [float(v) for v in (a, s, b, t, losses.median(), density.median())]


def _log_likelihood_draws(post: swag.Posterior, features: Tensor, label: int, noise: torch.Generator) -> Tensor:
    """l of one record at many draws, float64: its logits are Gaussian, so they are drawn and not the parameters."""
    width = len(features)
    classes = len(post.mean) // (width + 1)
    x = features.double()

    def logits(theta: Tensor) -> Tensor:
        theta = theta.double()
        return theta[: classes * width].view(classes, width) @ x + theta[classes * width :]

    variance = post.diag_std.double().square()
    diagonal = (variance[: classes * width].view(classes, width) @ x.square() + variance[classes * width :]) / 2
    columns = torch.stack([logits(d) for d in post.deviations]) / math.sqrt(2 * (post.rank - 1))
    z1 = torch.randn(_LOGIT_DRAWS, classes, generator=noise, dtype=torch.float64)
    z2 = torch.randn(_LOGIT_DRAWS, post.rank, generator=noise, dtype=torch.float64)
    drawn = logits(post.mean) + post.std_scale * (z1 * diagonal.sqrt() + z2 @ columns)
    return drawn.log_softmax(1)[:, label]


def read(folder: Path) -> dict[str, Any]:
    """What one of these stages wrote."""
    return json.loads((folder / FILE).read_text())
