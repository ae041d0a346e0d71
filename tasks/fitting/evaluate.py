"""Computes internal figures on the test half, from private records. They are not part of a release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from mechanisms.model import calibration, metrics
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig
from mechanisms.posterior import risks, swag
from storage.artifacts import ArtifactRef
from tasks.fitting.model_inputs import build, load_inputs
from tasks.parameters import FitParameters
from tasks.running.stage import Step, Work


def evaluate(
    model: ModelConfig,
    fit: FitParameters,
    *,
    dataset: ArtifactRef | None,
    prepared: ArtifactRef | None,
    posteriors: Mapping[str, ArtifactRef | None],
) -> Step:
    """Scores the base fit and one seeded draw (not the released one) of each later posterior."""

    def body(work: Work) -> Mapping[str, Any]:
        trained = build(work.context, model, work.inputs["dataset"], seed=fit.seed)
        records, labels = load_inputs(work.inputs["prepared"], "test")
        work.sized(len(labels) * len(posteriors))
        figures: dict[str, Any] = {}
        for done, name in enumerate(posteriors, start=1):
            posterior = swag.load(work.inputs[f"posterior_{name}"], std_scale=fit.swag.std_scale)
            if name == "base":
                trained.flat.copy_(posterior.mean)
            else:
                risks.load_draw(trained, posterior, seed=fit.seed, purpose="evaluate", draw=0)
            figures |= {
                f"{name}_{key}": value for key, value in scores(trained, records, labels).items()
            }
            work.progress(done, len(posteriors))
        return figures

    return Step(
        name="evaluate",
        label="evaluate",
        config={
            "model": model.model_dump(mode="json"),
            "seed": fit.seed,
            "std_scale": fit.swag.std_scale,
            "rounds": list(posteriors),
        },
        inputs={"dataset": dataset, "prepared": prepared}
        | {f"posterior_{k}": ref for k, ref in posteriors.items()},
        body=body,
    )


def scores(trained: Classifier, records: Any, labels: torch.Tensor) -> dict[str, float]:
    """Returns weighted and macro F1, accuracy, and what it could code alone, at the current
    parameters.
    """
    predicted = trained.predict(records)
    figures = asdict(metrics.classification(labels.numpy(), predicted.argmax(-1).numpy()))
    return figures | calibration.coded_alone(predicted, labels)
