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
            figures |= {f"{name}_{key}": value for key, value in scores(trained, records, labels).items()}
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
        inputs={"dataset": dataset, "prepared": prepared} | {f"posterior_{k}": ref for k, ref in posteriors.items()},
        body=body,
    )


def scores(trained: Classifier, records: Any, labels: torch.Tensor) -> dict[str, float]:
    """Returns weighted and macro F1, accuracy, and what it could code alone, at the current parameters.

    With several fields these are means over fields with equal weights, each over the records that have the field.
    """
    predicted = trained.predict(records)
    if trained.fields is None:
        figures = asdict(metrics.classification(labels.numpy(), predicted.argmax(-1).numpy()))
        return figures | calibration.coded_alone(predicted, labels)
    each = []
    for span, column in zip(trained.fields.spans, trained.fields.columns(labels), strict=True):
        labelled, scored = column[column >= 0], predicted[:, span][column >= 0]
        figures = asdict(metrics.classification(labelled.numpy(), scored.argmax(-1).numpy()))
        each.append(figures | calibration.coded_alone(scored, labelled))
    return {name: sum(one[name] for one in each) / len(each) for name in each[0] if all(name in one for one in each)}
