"""Loads the output of preparation: inputs and labels of a split, and the label space. Builds the
untrained model for it.

It is separate from ingest and from the parameters, so that a fit's key depends on neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mechanisms.model.config import ModelConfig
from storage.codelist import Code
from storage.coding_index import CodingIndex, load_index
from storage.datasets import load_codes
from tasks.fitting import prior
from tasks.fitting.prior import lexicon_of
from tasks.running.stage import Context

if TYPE_CHECKING:
    import torch

    from mechanisms.model import inputs
    from mechanisms.model.classifier import Classifier

SPLITS = ("train", "test")


def load_inputs(
    folder: Path, split: str
) -> tuple[inputs.FeatureInputs | inputs.TokenInputs, torch.Tensor]:
    """Loads one split written by `prepare`: inputs, and labels int64 [n]."""
    from mechanisms.model import checkpoint, inputs

    labels = checkpoint.load(folder / f"{split}_labels.safetensors")[0]["labels"]
    return inputs.load(folder / f"{split}.safetensors"), labels


def label_count(dataset: Path) -> int:
    return len(load_codes(dataset))


def build(context: Context, model: ModelConfig, dataset: Path, *, seed: int) -> Classifier:
    """Builds the untrained classifier over the data set's label space."""
    at_index = model.prior == "titles" and model.prior_examples
    index = load_index(dataset, model.prior_examples) if at_index else None
    return untrained(context, model, load_codes(dataset), seed=seed, index=index)


def untrained(
    context: Context,
    model: ModelConfig,
    codes: Sequence[Code],
    *,
    seed: int,
    index: CodingIndex | None = None,
) -> Classifier:
    """Builds the untrained classifier over these codes on the run's device, with
    random weights or at its prior.
    """
    from mechanisms.model import classifier

    words = lexicon_of(context, model, codes)
    built = classifier.build(
        model,
        num_labels=len(codes),
        seed=seed,
        device=classifier.device_of(context.device),
        lexicon=words,
    )
    if model.prior != "none":
        prior.start(context, built, codes, words)
    if index is not None:
        prior.start_at_index(context, built, codes, index)
    return built
