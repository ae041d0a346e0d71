"""Loads what preparation wrote: inputs and labels of a split, the label space, and the untrained model over both.

Separate from ingest and from the parameters, so that a fit's key depends on neither.
"""

from __future__ import annotations

from pathlib import Path

import torch

from mechanisms.model import checkpoint, classifier, inputs
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig
from mechanisms.model.fields import Fields
from storage.datasets import load_codes, load_fields
from tasks.fitting import prior
from tasks.fitting.prior import lexicon_of
from tasks.running.stage import Context

SPLITS = ("train", "test")


def load_inputs(folder: Path, split: str) -> tuple[inputs.Inputs, torch.Tensor]:
    """Loads one split that `prepare` wrote: inputs, and labels int64 [n]; of several fields [n, fields]."""
    labels = checkpoint.load(folder / f"{split}_labels.safetensors")[0]["labels"]
    return inputs.load(folder / f"{split}.safetensors"), labels


def label_count(dataset: Path) -> int:
    """Returns the size of the label space; of several fields, of all together."""
    several = fields_of(dataset)
    return len(load_codes(dataset)) if several is None else several.classes


def fields_of(dataset: Path) -> Fields | None:
    """Returns the classes of each of several fields; None for a single field."""
    several = load_fields(dataset)
    return None if several is None else Fields(tuple(map(len, several.values())))


def build(context: Context, model: ModelConfig, dataset: Path, *, seed: int) -> Classifier:
    """Builds the untrained classifier over the data set's label space, on the run's device: random, or at its prior."""
    device = classifier.device_of(context.device)
    words = lexicon_of(context, model, dataset)
    built = classifier.build(
        model,
        num_labels=label_count(dataset),
        seed=seed,
        device=device,
        fields=fields_of(dataset),
        lexicon=words,
    )
    if model.prior != "none":
        prior.start(context, built, dataset, words)
    return built
