"""Stage: computes densities of a SWAG posterior with and without a record, at draws of both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from mechanisms.audit import leave_one_out
from mechanisms.model import checkpoint
from mechanisms.model.inputs import FeatureInputs
from mechanisms.swag_ppm import SwagPpm
from tasks.branches.experiment import Outcome, Study
from tasks.fitting.model_inputs import build, load_inputs
from tasks.running.stage import Step, Work

DRAWS = 200
"""Draws from each posterior."""


def applies(study: Study, outcome: Outcome) -> bool:
    """Checks that the candidate is a SWAG posterior that can be refitted without records, in one batch."""
    if not isinstance(outcome.mechanism, SwagPpm) or outcome.sensitivity is None:
        return False
    return study.parameters.model.linear_head and all(p.max_grad_norm is None for p in outcome.mechanism.phases)


def densities(study: Study, outcome: Outcome, *, records: int) -> Step:
    """Refits the candidate's round without each of some records, half of them its riskiest, weights held fixed."""
    parameters = study.at(outcome.branch, outcome.seed).parameters
    assert isinstance(outcome.mechanism, SwagPpm)
    fit = parameters.fit

    def body(work: Work) -> Mapping[str, Any]:
        features, labels = load_inputs(work.inputs["prepared"], "train")
        tensors = checkpoint.load(work.inputs["measured"] / "weights.safetensors")[0]
        alpha = tensors["alpha"]
        chosen = leave_one_out.records_to_leave_out(alpha * tensors["risk"], count=records, seed=fit.seed)
        fitted, *without = leave_one_out.refit(
            build(work.context, parameters.model, work.inputs["dataset"], seed=fit.seed),
            cast(FeatureInputs, features),
            labels,
            weights=torch.cat([alpha[None], leave_one_out.trial_weights(alpha, chosen, records=len(labels))]),
            adamw=fit.adamw,
            sgd=fit.sgd,
            rank=fit.swag.rank,
            std_scale=fit.swag.std_scale,
            seed=fit.seed,
            progress=work.progress,
        )
        losses = [leave_one_out.privacy_losses(fitted, other, draws=DRAWS, seed=fit.seed) for other in without]
        checkpoint.save(work.out / "losses.safetensors", {"losses": torch.stack(losses)}, {})
        return {"records": len(losses), "trained": len(labels)}

    return Step(
        name="audit-densities",
        label=f"densities without a record ({outcome.branch.name}, seed {outcome.seed})",
        config={
            "fit": fit.model_dump(mode="json"),
            "model": parameters.model.model_dump(mode="json"),
            "records": records,
            "draws": DRAWS,
        },
        inputs={"measured": outcome.sensitivity, **study.records},
        body=body,
        modules=("tasks.auditing.densities",),
    )


def losses_of(folder: Path) -> Tensor:
    """Loads privacy losses, float64 [records, 2, draws], from the stage's folder."""
    return checkpoint.load(folder / "losses.safetensors")[0]["losses"]
