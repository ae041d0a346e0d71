#!/usr/bin/env python
"""Chooses the rate and length of DP-SGD on images: on the training images alone, never on test images.

    python scripts/choose_image_settings.py WORKSPACE --out docs/images/tuning.json

WORKSPACE is one in which `compare --profile digits` has run. A fifth of the training images is held out; constant
DP-SGD is fitted on the rest three times, with folds and noise of their own, at epsilon 3. The winner by balanced
accuracy is what every branch of the profile has: schedules and clips take it and are not searched. A search that was
stopped goes on from `--out`.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path
from typing import Any

import torch
from studies import fold_of, prepared, tried, write

from mechanisms.dp_sgd import DpSgd
from mechanisms.errors import MechanismError
from mechanisms.mechanism import Plan, Records, Run, Task
from mechanisms.model import classifier, metrics
from mechanisms.model.config import Layers, ModelConfig
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.schema import FeatureSchema

FOLDS = 3
GRID: dict[Layers, dict[str, list[Any]]] = {
    "linear": {"learning_rate": [0.1, 0.3, 1.0, 3.0, 10.0], "momentum": [0.9], "epochs": [20, 40]},
    "convolutional": {"learning_rate": [0.1, 0.3, 1.0, 3.0], "momentum": [0.9], "epochs": [20, 40]},
}


class Search:
    """Training images, folds, and what was tried."""

    def __init__(self, workspace: Path, *, epsilon: float, delta: float) -> None:
        self.features, self.labels = prepared(workspace)
        folder = next((workspace / "private" / "stages" / "features").iterdir())
        self.shape = FeatureSchema.load(folder / "schema.json").shape
        self.classes, self.epsilon, self.delta = int(self.labels.max()) + 1, epsilon, delta
        self._plans: dict[int, Plan] = {}

    def score(self, layers: Layers, setting: dict[str, Any], fold: int) -> float:
        """Balanced accuracy on the held-out fifth of a fold; 0 where training diverged."""
        held, training = fold_of(self.labels, fold)
        model = ModelConfig(pooling="none", layers=layers)
        run = Run(
            classes=self.classes,
            seed=fold,
            classifier=lambda: classifier.build(
                model, num_labels=self.classes, seed=fold, width=self.features.shape[1], shape=self.shape
            ),
        )
        records = Records(FeatureInputs(self.features[training]), self.labels[training])
        try:
            fitted = self._plan(setting, len(training)).fit(records, run)
        except MechanismError:
            return 0.0
        predicted = fitted.model.log_probabilities(FeatureInputs(self.features[held])).argmax(-1)
        return metrics.per_code(self.labels[held].numpy(), predicted.numpy()).balanced_accuracy

    def _plan(self, setting: dict[str, Any], records: int) -> Plan:
        """The noise depends on the number of steps, not on rate and momentum."""
        mechanism, epochs = DpSgd(optimiser="sgd", sampling_prob=1.0, **setting), setting["epochs"]
        if epochs not in self._plans:
            task = Task(records=records, classes=self.classes, target_epsilon=self.epsilon, delta=self.delta)
            self._plans[epochs] = mechanism.plan(task)
        plan = self._plans[epochs]
        rates = {name: setting[name] for name in ("learning_rate", "momentum")}
        return plan.model_copy(update={"mechanism": plan.mechanism.model_copy(update=rates)})


def main() -> None:
    """Tries every setting of both models; prints each as it is scored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--delta", type=float, default=1e-4)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    search = Search(given.workspace, epsilon=given.epsilon, delta=given.delta)
    rows = tried(given.out)
    head = {"target_epsilon": given.epsilon, "delta": given.delta, "folds": FOLDS}
    head["scored_on"] = "a held-out fifth of the training images"
    for layers, choices in GRID.items():
        for values in itertools.product(*choices.values()):
            setting = dict(zip(choices, values, strict=True))
            if any((row["layers"], row["setting"]) == (layers, setting) for row in rows):
                continue
            scores = torch.tensor([search.score(layers, setting, fold) for fold in range(FOLDS)])
            mean, spread = round(float(scores.mean()), 4), round(float(scores.std()), 4)
            rows.append({"layers": layers, "setting": setting, "balanced_accuracy": mean, "std": spread})
            write(given.out, head, rows)
            print(f"{layers:14} {mean:.3f} ± {spread:.3f}  {json.dumps(setting)}", flush=True)


if __name__ == "__main__":
    main()
