"""What preparation left, read back: inputs and labels of a half, the label space, and the untrained model over both.

Apart from how records are read and what an operator may set, so that a fit's key hangs on neither.
"""

from __future__ import annotations

from pathlib import Path

import torch

from mechanisms.model import checkpoint, classifier, inputs
from mechanisms.model.classifier import Classifier, ModelConfig
from mechanisms.model.schema import FeatureSchema
from storage.datasets import FEATURES, load_codes
from tasks.fitting import prior
from tasks.running.stage import Context

SPLITS = ("train", "test")


def load_inputs(folder: Path, split: str) -> tuple[inputs.Inputs, torch.Tensor]:
    """What `prepare` wrote for one split: inputs, and labels int64 [n]."""
    labels = checkpoint.load(folder / f"{split}_labels.safetensors")[0]["labels"]
    return inputs.load(folder / f"{split}.safetensors"), labels


def feature_schema(dataset: Path) -> FeatureSchema | None:
    """What ingest says of a table's or of images' columns; None of text."""
    path = dataset / FEATURES
    return FeatureSchema.load(path) if path.is_file() else None


def label_count(dataset: Path) -> int:
    """Size of the label space."""
    return len(load_codes(dataset))


def build(context: Context, model: ModelConfig, dataset: Path, *, seed: int) -> Classifier:
    """The classifier over the data set's label space, untrained, on the run's device: at random, or at its prior."""
    device, schema = classifier.device_of(context.device), feature_schema(dataset)
    width, shape = (None, None) if schema is None else (len(schema.names), schema.shape)
    built = classifier.build(model, num_labels=label_count(dataset), seed=seed, device=device, width=width, shape=shape)
    if model.prior != "none":
        prior.start(context, built, dataset)
    return built
