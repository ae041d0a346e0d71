#!/usr/bin/env python
"""How the learning rates of profile `osha-head` were chosen: on the training half alone, never on the test half.

A fifth of the training half is held out three times; each pair of rates runs the base fit (AdamW, SGD) on the rest.

    python scripts/choose_head_rates.py WORKSPACE      # a workspace in which `retrain --profile osha-head` has run
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import torch

from mechanisms.model import checkpoint, classifier, inputs, metrics, training
from mechanisms.model.classifier import ModelConfig
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.seeding import generator
from mechanisms.model.training import OptimiserPhase


def validation_f1(features: torch.Tensor, labels: torch.Tensor, *, adamw: float, sgd: float, fold: int) -> float:
    """Weighted F1 on a held-out fifth of the training half."""
    order = torch.randperm(len(labels), generator=generator(0, "fold", fold))
    held, kept = order[: len(order) // 5], order[len(order) // 5 :]
    model = classifier.build(
        ModelConfig(encoder="packaged-minilm", trainable="head", pooling="mean"),
        num_labels=int(labels.max()) + 1,
        seed=0,
    )
    phases = [
        OptimiserPhase(optimiser="adamw", learning_rate=adamw, epochs=10),
        OptimiserPhase(optimiser="sgd", learning_rate=sgd, epochs=20),
    ]
    for phase in phases:
        training.train(
            model, FeatureInputs(features[kept]), labels[kept], phase=phase, seed=fold, purpose=phase.optimiser
        )
    predicted = model.predict(FeatureInputs(features[held])).argmax(-1)
    return metrics.classification(labels[held].numpy(), predicted.numpy()).weighted_f1


def main() -> None:
    """Print the grid as JSON, best last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspace", type=Path)
    folder = next((parser.parse_args().workspace / "private" / "stages" / "features").iterdir())
    features = inputs.load(folder / "train.safetensors")
    labels = checkpoint.load(folder / "train_labels.safetensors")[0]["labels"]
    assert isinstance(features, FeatureInputs)
    rows = []
    for adamw, sgd in itertools.product((3e-4, 1e-3, 3e-3, 1e-2), (3e-3, 1e-2, 3e-2)):
        scores = torch.tensor(
            [validation_f1(features.features, labels, adamw=adamw, sgd=sgd, fold=fold) for fold in range(3)]
        )
        rows.append(
            {"adamw": adamw, "sgd": sgd, "weighted_f1": round(float(scores.mean()), 4), "std": float(scores.std())}
        )
    print(json.dumps(sorted(rows, key=lambda row: row["weighted_f1"]), indent=1))


if __name__ == "__main__":
    main()
