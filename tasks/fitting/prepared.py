"""What preparation left, read back: inputs and labels of a half, the label space, and the untrained model over both.

Apart from how records are read and what an operator may set, so that a fit's key hangs on neither.
"""

from __future__ import annotations

from pathlib import Path

import torch

from mechanisms.model import checkpoint, classifier, inputs
from mechanisms.model.classifier import Classifier, ModelConfig
from mechanisms.model.fields import Fields
from mechanisms.model.schema import FeatureSchema
from storage.datasets import FEATURES, load_codes, load_fields
from tasks.fitting import prior
from tasks.running.stage import Context

SPLITS = ("train", "test")


def load_inputs(folder: Path, split: str) -> tuple[inputs.Inputs, torch.Tensor]:
    """What `prepare` wrote for one split: inputs, and labels int64 [n]; of several fields [n, fields]."""
    labels = checkpoint.load(folder / f"{split}_labels.safetensors")[0]["labels"]
    return inputs.load(folder / f"{split}.safetensors"), labels


def feature_schema(dataset: Path) -> FeatureSchema | None:
    """What ingest says of a table's or of images' columns; None of text."""
    path = dataset / FEATURES
    return FeatureSchema.load(path) if path.is_file() else None


def label_count(dataset: Path) -> int:
    """Size of the label space; of several fields, of all together."""
    several = fields_of(dataset)
    return len(load_codes(dataset)) if several is None else several.classes


def fields_of(dataset: Path) -> Fields | None:
    """The classes of each of several fields; None where there is one."""
    several = load_fields(dataset)
    return None if several is None else Fields(tuple(map(len, several.values())))


def build(context: Context, model: ModelConfig, dataset: Path, *, seed: int) -> Classifier:
    """The classifier over the data set's label space, untrained, on the run's device: at random, or at its prior."""
    device, schema = classifier.device_of(context.device), feature_schema(dataset)
    width, shape = (None, None) if schema is None else (len(schema.names), schema.shape)
    built = classifier.build(
        model,
        num_labels=label_count(dataset),
        seed=seed,
        device=device,
        width=width,
        shape=shape,
        fields=fields_of(dataset),
    )
    if model.prior != "none":
        prior.start(context, built, dataset)
    return built
