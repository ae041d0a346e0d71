"""Holds what the studies share: prepared features, folds, F1, and files of results that a stopped run goes on from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mechanisms.model import checkpoint, inputs, metrics
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.seeding import generator
from storage.durable import write_atomically

HELD_OUT = "a held-out fifth of the training half"


def prepared(workspace: Path, split: str = "train") -> tuple[Tensor, Tensor]:
    """Returns the features and labels of a split that a run in the workspace has prepared."""
    folder = next((workspace / "private" / "stages" / "features").iterdir())
    loaded = inputs.load(folder / f"{split}.safetensors")
    assert isinstance(loaded, FeatureInputs)
    return loaded.features, checkpoint.load(folder / f"{split}_labels.safetensors")[0]["labels"]


def fold_of(labels: Tensor, fold: int) -> tuple[Tensor, Tensor]:
    """Returns the places of the records that a fold holds out, a fifth, and of those that it trains on."""
    order = torch.randperm(len(labels), generator=generator(0, "fold", fold))
    return order[: len(order) // 5], order[len(order) // 5 :]


def f1(truth: Tensor, predicted: Tensor) -> tuple[float, float]:
    """Returns weighted and macro F1."""
    scores = metrics.classification(truth.numpy(), predicted.numpy())
    return scores.weighted_f1, scores.macro_f1


def tried(out: Path) -> list[dict[str, Any]]:
    """Returns the rows that an earlier run has written."""
    return json.loads(out.read_text())["tried"] if out.is_file() else []


def write(out: Path, head: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes all rows tried so far, with what holds for all of them."""
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, json.dumps({**head, "tried": rows}, indent=1).encode() + b"\n")
