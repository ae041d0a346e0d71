"""Scores predictions on the held-out records. A change to the metrics recomputes this stage and no
fit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TypedDict, cast

import numpy as np

from mechanisms.model import calibration, metrics
from mechanisms.model.resampling import resampled_f1
from storage.artifacts import ArtifactRef, Store
from storage.codelist import Code
from storage.datasets import load_codes
from storage.json_values import Figures
from tasks.fitting.fits import predictions as read
from tasks.fitting.model_inputs import load_inputs
from tasks.running.stage import Context, Step, Work

_RESAMPLED = "resampled.safetensors"
THRESHOLDS = (0.3, 0.5, 0.7, 0.9)


def score(
    name: str, *, seed: int, dataset: ArtifactRef, prepared: ArtifactRef, predictions: ArtifactRef
) -> Step:
    """Computes metrics on the held-out records. Aggregates are figures. F1 by code and on
    resamples are private files.
    """
    return Step(
        name="scores",
        label=f"scores of {name}, seed {seed}",
        config={},
        inputs={"dataset": dataset, "prepared": prepared, "predictions": predictions},
        body=_score,
    )


class CodeScore(TypedDict):
    """F1 of a code. Internal, because it depends on the records."""

    code: str
    size: int
    """Number of held-out records with the code."""
    f1: float


def _score(work: Work) -> Figures:
    import torch

    from mechanisms.model import checkpoint

    labels = load_inputs(work.inputs["prepared"], "test")[1].numpy()
    trained_on = load_inputs(work.inputs["prepared"], "train")[1].numpy()
    scored = read(work.inputs["predictions"], "test")
    predicted = scored.predicted.numpy()
    resampled = {name: torch.from_numpy(f1) for name, f1 in resampled_f1(labels, predicted).items()}
    checkpoint.save(work.out / _RESAMPLED, resampled, {})
    parts, first = [], 0
    size = metrics.records_at_once(scored.log_probabilities.features.shape[1])
    for block in scored.log_probabilities.blocks(size):
        of_block = labels[first : first + len(block)]
        parts.append(metrics.Ranked.of(of_block, block.double().exp().numpy()))
        first += len(block)
    ranked = metrics.Ranked.joined(parts)
    figures, rows = _figures(
        labels, trained_on, predicted, ranked, load_codes(work.inputs["dataset"])
    )
    (work.out / "codes.json").write_text(json.dumps(rows))
    return figures | calibration.autocoded_shares(
        scored.log_probabilities, torch.from_numpy(labels)
    )


def _figures(
    labels: np.ndarray,
    trained_on: np.ndarray,
    predicted: np.ndarray,
    ranked: metrics.Ranked,
    space: Sequence[Code],
) -> tuple[dict[str, float | None], list[CodeScore]]:
    codes = metrics.per_code(labels, predicted)
    rows: list[CodeScore] = [
        {"code": space[int(code)].code, "size": int(size), "f1": float(f1)}
        for code, size, f1 in zip(codes.code, codes.size, codes.f1, strict=True)
    ]
    figures: dict[str, float | None] = {**asdict(metrics.classification(labels, predicted))}
    figures["balanced_accuracy"] = codes.balanced_accuracy
    figures["ece"] = metrics.expected_calibration_error(ranked)
    for k in (3, 5):
        if k < ranked.classes:
            figures[f"top_{k}"] = metrics.top_k_accuracy(ranked, k=k)
    top, bottom = metrics.quartiles(codes)
    figures |= _named("top_quartile", asdict(top))
    figures |= _named("bottom_quartile", asdict(bottom))
    support = metrics.by_support(codes, np.bincount(trained_on, minlength=ranked.classes))
    for bounds, counts in support.items():
        figures |= _named(f"support_{bounds}", asdict(counts))
    coverage = {t: metrics.coverage_at(ranked, threshold=t) for t in THRESHOLDS}
    for threshold, (share, _) in coverage.items():
        figures[f"coverage_{threshold}"] = share
    for threshold, (_, accuracy) in coverage.items():
        figures[f"accuracy_at_{threshold}"] = accuracy
    return figures, rows


def _named(group: str, figures: Mapping[str, float | None]) -> dict[str, float | None]:
    return {f"{group}_{name}": value for name, value in figures.items()}


def figures_of(store: Store, measured: ArtifactRef) -> Mapping[str, float | None]:
    """Returns the aggregate metrics of a scored branch by name; None where one is undefined."""
    return cast("Mapping[str, float | None]", store.figures(measured))


def codes_of(context: Context, measured: ArtifactRef) -> list[CodeScore]:
    """Loads F1 by code of a scored branch: code, test size, F1. Internal."""
    return json.loads((context.store.open(measured) / "codes.json").read_text())


def resampled_of(context: Context, measured: ArtifactRef) -> dict[str, np.ndarray]:
    """Loads weighted and macro F1 of a scored branch on resamples of the held-out records, which
    are the same for every branch.
    """
    from mechanisms.model import checkpoint

    tensors = checkpoint.load(context.store.open(measured) / _RESAMPLED)[0]
    return {name: tensor.numpy() for name, tensor in tensors.items()}
