"""Stage: how well predictions code the test half. A metric more or less recomputes this and no fit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mechanisms.model import metrics
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
        modules=("tasks.fitting.scores",),
    )


def _score(work: Work) -> Mapping[str, Any]:
    labels = load_inputs(work.inputs["prepared"], "test")[1].numpy()
    given = read(work.inputs["predictions"], "test")
    predicted, probabilities = given["predicted"].numpy(), given["log_probabilities"].double().exp().numpy()
    classes = probabilities.shape[1]
    whole, codes = metrics.classification(labels, predicted), metrics.per_code(labels, predicted)
    top, bottom = metrics.quartiles(codes)
    _write_codes(work.out / "codes.json", codes, [code.code for code in load_codes(work.inputs["dataset"])])
    coverage = [metrics.coverage_at(labels, probabilities, threshold=t) for t in THRESHOLDS]
    return {
        "weighted_f1": whole.weighted_f1,
        "macro_f1": whole.macro_f1,
        "accuracy": whole.accuracy,
        "ece": metrics.expected_calibration_error(labels, probabilities),
        **{f"top_{k}": metrics.top_k_accuracy(labels, probabilities, k=k) for k in (3, 5) if k < classes},
        **{f"top_quartile_{n}": getattr(top, n) for n in ("weighted_f1", "macro_f1")},
        **{f"bottom_quartile_{n}": getattr(bottom, n) for n in ("weighted_f1", "macro_f1")},
        **{f"coverage_{c.threshold}": c.coverage for c in coverage},
        # where no score reaches the threshold there is no accuracy; JSON has no nan
        **{f"accuracy_at_{c.threshold}": None if np.isnan(c.accuracy) else c.accuracy for c in coverage},
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
