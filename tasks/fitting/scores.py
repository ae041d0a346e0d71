"""Stage: how well predictions code the test half. A metric more or less recomputes this and no fit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mechanisms.model import calibration, metrics
from storage.artifacts import ArtifactRef
from storage.datasets import load_codes
from tasks.fitting.fits import predictions as read
from tasks.fitting.prepared import load_inputs
from tasks.running.stage import Context, Step, Work

THRESHOLDS = (0.3, 0.5, 0.7, 0.9)


def score(name: str, *, seed: int, dataset: ArtifactRef, prepared: ArtifactRef, predictions: ArtifactRef) -> Step:
    """Metrics on the test half: aggregates as figures, F1 by code as a private file."""
    return Step(
        name="scores",
        label=f"scores of {name}, seed {seed}",
        config={},
        inputs={"dataset": dataset, "prepared": prepared, "predictions": predictions},
        body=_score,
    )


def _score(work: Work) -> Mapping[str, Any]:
    labels = load_inputs(work.inputs["prepared"], "test")[1].numpy()
    trained_on = load_inputs(work.inputs["prepared"], "train")[1].numpy()
    given = read(work.inputs["predictions"], "test")
    predicted, probabilities = given["predicted"].numpy(), given["log_probabilities"].double().exp().numpy()
    classes = probabilities.shape[1]
    codes = metrics.per_code(labels, predicted)
    top, bottom = metrics.quartiles(codes)
    _write_codes(work.out / "codes.json", codes, [code.code for code in load_codes(work.inputs["dataset"])])
    support = metrics.by_support(codes, np.bincount(trained_on, minlength=classes))
    coverage = {t: metrics.coverage_at(labels, probabilities, threshold=t) for t in THRESHOLDS}
    return {
        **asdict(metrics.classification(labels, predicted)),
        **calibration.coded_alone(given["log_probabilities"], torch.from_numpy(labels)),
        "balanced_accuracy": codes.balanced_accuracy,
        "ece": metrics.expected_calibration_error(labels, probabilities),
        **{f"top_{k}": metrics.top_k_accuracy(labels, probabilities, k=k) for k in (3, 5) if k < classes},
        **{f"top_quartile_{name}": value for name, value in asdict(top).items()},
        **{f"bottom_quartile_{name}": value for name, value in asdict(bottom).items()},
        **{f"support_{b}_{name}": value for b, one in support.items() for name, value in asdict(one).items()},
        **{f"coverage_{threshold}": share for threshold, (share, _) in coverage.items()},
        **{f"accuracy_at_{threshold}": accuracy for threshold, (_, accuracy) in coverage.items()},
    }


def _write_codes(file: Path, codes: metrics.PerCode, names: list[str]) -> None:
    rows = [
        {"code": names[int(code)], "size": int(size), "f1": float(f1)}
        for code, size, f1 in zip(codes.code, codes.size, codes.f1, strict=True)
    ]
    file.write_text(json.dumps(rows))


def codes_of(context: Context, measured: ArtifactRef) -> list[dict[str, Any]]:
    """F1 by code of a scored branch: code, test size, F1. Internal."""
    return json.loads((context.store.open(measured) / "codes.json").read_text())
