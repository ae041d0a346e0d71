"""Internal figures on the test half. They are computed from private records and are no part of a release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch

from mechanisms.model import calibration, metrics
from mechanisms.model.classifier import Classifier, ModelConfig
from mechanisms.posterior import risks, swag
from storage.artifacts import ArtifactRef
from tasks.fitting.prepared import build, load_inputs
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
    """F1 and accuracy of the base fit and of one seeded draw (not the released one) of each later posterior."""

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
    """Weighted and macro F1, accuracy, and what it could code alone, at the classifier's present parameters.

    Of several fields the means, in which each field counts alike, of the records that have it.
    """
    given = trained.predict(records)
    if trained.fields is None:
        figures = asdict(metrics.classification(labels.numpy(), given.argmax(-1).numpy()))
        return figures | calibration.coded_alone(given, labels)
    each = []
    for span, own in zip(trained.fields.spans, trained.fields.columns(labels), strict=True):
        labelled, scored = own[own >= 0], given[:, span][own >= 0]
        figures = asdict(metrics.classification(labelled.numpy(), scored.argmax(-1).numpy()))
        each.append(figures | calibration.coded_alone(scored, labelled))
    return {name: sum(one[name] for one in each) / len(each) for name in each[0] if all(name in one for one in each)}
