"""Stage: how well predictions code the test half. A metric more or less recomputes this and no fit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mechanisms.model import calibration, metrics
from mechanisms.model.fields import Fields
from storage.artifacts import ArtifactRef
from storage.codelist import Code
from storage.datasets import load_codes, load_fields
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
    several = load_fields(work.inputs["dataset"])
    if several is None:
        figures, rows = _of_field(labels, trained_on, predicted, probabilities, load_codes(work.inputs["dataset"]))
        _write_codes(work.out / "codes.json", rows)
        return figures | calibration.coded_alone(given["log_probabilities"], torch.from_numpy(labels))
    found: dict[str, Any] = {}
    written: list[dict[str, Any]] = []
    spans = Fields(tuple(map(len, several.values()))).spans
    for at, ((name, codes), span) in enumerate(zip(several.items(), spans, strict=True)):
        there, here = labels[:, at] >= 0, trained_on[:, at] >= 0
        figures, rows = _of_field(
            labels[there, at], trained_on[here, at], predicted[there, at], probabilities[there, span], codes
        )
        scored = given["log_probabilities"][:, span][torch.from_numpy(there)]
        alone = calibration.coded_alone(scored, torch.from_numpy(labels[there, at]))
        found |= {f"{name}.{key}": value for key, value in (figures | alone).items()}
        written += [row | {"code": f"{name} {row['code']}"} for row in rows]
    _write_codes(work.out / "codes.json", written)
    told = [key.partition(".")[2] for key in found if key.partition(".")[2].startswith(ALONE)]
    every = [key for key in dict.fromkeys(told) if all(f"{name}.{key}" in found for name in several)]
    over = {key: float(np.mean([found[f"{name}.{key}"] for name in several])) for key in (*OVER_FIELDS, *every)}
    return over | found


ALONE = ("alone_at_", "surest_")
"""How the figures of what could be coded without a person begin."""
OVER_FIELDS = ("weighted_f1", "macro_f1", "accuracy", "ece")
"""What is told of several fields together too: the mean, in which each field counts alike."""


def _of_field(
    labels: np.ndarray,
    trained_on: np.ndarray,
    predicted: np.ndarray,
    probabilities: np.ndarray,
    space: Sequence[Code],
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Figures of one field, and its F1 by code, of the records that have it."""
    classes = probabilities.shape[1]
    codes = metrics.per_code(labels, predicted)
    top, bottom = metrics.quartiles(codes)
    rows = [
        {"code": space[int(code)].code, "size": int(size), "f1": float(f1)}
        for code, size, f1 in zip(codes.code, codes.size, codes.f1, strict=True)
    ]
    support = metrics.by_support(codes, np.bincount(trained_on, minlength=classes))
    coverage = {t: metrics.coverage_at(labels, probabilities, threshold=t) for t in THRESHOLDS}
    figures = {
        **asdict(metrics.classification(labels, predicted)),
        "balanced_accuracy": codes.balanced_accuracy,
        "ece": metrics.expected_calibration_error(labels, probabilities),
        **{f"top_{k}": metrics.top_k_accuracy(labels, probabilities, k=k) for k in (3, 5) if k < classes},
        **{f"top_quartile_{name}": value for name, value in asdict(top).items()},
        **{f"bottom_quartile_{name}": value for name, value in asdict(bottom).items()},
        **{f"support_{b}_{name}": value for b, one in support.items() for name, value in asdict(one).items()},
        **{f"coverage_{threshold}": share for threshold, (share, _) in coverage.items()},
        **{f"accuracy_at_{threshold}": accuracy for threshold, (_, accuracy) in coverage.items()},
    }
    return figures, rows


def _write_codes(file: Path, rows: list[dict[str, Any]]) -> None:
    file.write_text(json.dumps(rows))


def codes_of(context: Context, measured: ArtifactRef) -> list[dict[str, Any]]:
    """F1 by code of a scored branch: code (of several fields after the field's name), test size, F1. Internal."""
    return json.loads((context.store.open(measured) / "codes.json").read_text())
