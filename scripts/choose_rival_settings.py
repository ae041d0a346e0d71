#!/usr/bin/env python
"""How the tuned rivals' settings were chosen: on the training half alone, never on the test half.

A fifth of the training half is held out; each setting is fitted on the rest, three times with folds and noise of their
own, at the target epsilon. Families are searched one after another, the class weights with the DP-SGD setting
that won; noise and clip schedules take that setting too and are not searched.

    python scripts/choose_rival_settings.py WORKSPACE --out docs/results/tuning.json

WORKSPACE is one in which `retrain --profile osha-head` has run. A search that was stopped goes on from `--out`.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from mechanisms.mechanism import Mechanism, Plan, Records, Run, Task, kinds
from mechanisms.model import checkpoint, classifier, inputs, metrics
from mechanisms.model.classifier import Classifier, ModelConfig
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.seeding import generator
from storage.datasets import load_codes
from storage.durable import write_atomically

FOLDS = 3
_KIND = {"dp-sgd-class-weighted": "dp-sgd"}
MODEL = ModelConfig(encoder="packaged-minilm", trainable="head", pooling="mean")


class Search:
    """Scores settings, remembers them in a file, and keeps solved noise."""

    def __init__(self, workspace: Path, *, epsilon: float, delta: float, out: Path) -> None:
        stages = workspace / "private" / "stages"
        folder = next((stages / "features").iterdir())
        loaded = inputs.load(folder / "train.safetensors")
        assert isinstance(loaded, FeatureInputs)
        self.features = loaded.features
        self.labels = checkpoint.load(folder / "train_labels.safetensors")[0]["labels"]
        self.num_labels = len(load_codes(next((stages / "ingest").iterdir())))
        self.epsilon, self.delta, self.out = epsilon, delta, out
        self.rows: list[dict[str, Any]] = json.loads(out.read_text())["tried"] if out.is_file() else []
        self._plans: dict[str, Plan] = {}

    def try_all(self, family: str, settings: list[dict[str, Any]]) -> dict[str, Any]:
        """Score each setting; return the best one: by weighted F1, class weights by what they are for, macro F1."""
        for setting in settings:
            if not any(row["family"] == family and row["setting"] == setting for row in self.rows):
                scores = torch.tensor([self._score(family, setting, fold) for fold in range(FOLDS)])
                means, stds = scores.mean(0).tolist(), scores.std(0).tolist()
                row: dict[str, Any] = {"family": family, "setting": setting}
                for name, mean, std in zip(("weighted_f1", "macro_f1"), means, stds, strict=True):
                    row |= {name: round(mean, 4), f"{name}_std": round(std, 4)}
                self.rows.append(row)
                self._write()
                print(f"{family:24} {means[0]:.3f} ± {stds[0]:.3f}  {json.dumps(setting)}", flush=True)
        mine = [row for row in self.rows if row["family"] == family]
        by = "macro_f1" if family == "dp-sgd-class-weighted" else "weighted_f1"
        return max(mine, key=lambda row: row[by])["setting"]

    def _write(self) -> None:
        content = {
            "target_epsilon": self.epsilon,
            "delta": self.delta,
            "folds": FOLDS,
            "scored_on": "a held-out fifth of the training half",
            "tried": self.rows,
        }
        write_atomically(self.out, json.dumps(content, indent=1).encode() + b"\n")

    def _score(self, family: str, setting: dict[str, Any], fold: int) -> tuple[float, float]:
        order = torch.randperm(len(self.labels), generator=generator(0, "fold", fold))
        held, kept = order[: len(order) // 5], order[len(order) // 5 :]
        mechanism = kinds()[_KIND.get(family, family)].model_validate(setting)
        run = Run(classes=self.num_labels, seed=fold, classifier=self._untrained)
        records = Records(FeatureInputs(self.features[kept]), self.labels[kept])
        fitted = self._plan(mechanism, len(kept)).fit(records, run)
        predicted = fitted.model.log_probabilities(FeatureInputs(self.features[held])).argmax(-1)
        scores = metrics.classification(self.labels[held].numpy(), predicted.numpy())
        return scores.weighted_f1, scores.macro_f1

    def _untrained(self) -> Classifier:
        return classifier.build(MODEL, num_labels=self.num_labels, seed=0)

    def _plan(self, mechanism: Mechanism, records: int) -> Plan:
        """Solved once for what the noise depends on; rates, momentum and prior do not change it."""
        free = {"learning_rate", "momentum", "optimiser", "temperature", "prior_std"}
        key = json.dumps(mechanism.model_dump(exclude=free, mode="json"), sort_keys=True)
        if key not in self._plans:
            task = Task(records=records, classes=self.num_labels, target_epsilon=self.epsilon, delta=self.delta)
            self._plans[key] = mechanism.plan(task)
        plan = self._plans[key]
        rates = {name: getattr(mechanism, name) for name in free & set(type(mechanism).model_fields)}
        return plan.model_copy(update={"mechanism": plan.mechanism.model_copy(update=rates)})


def grid(**choices: list[Any]) -> list[dict[str, Any]]:
    """Every combination."""

    def combinations() -> Iterator[dict[str, Any]]:
        for values in itertools.product(*choices.values()):
            yield dict(zip(choices, values, strict=True))

    return list(combinations())


def main() -> None:
    """Search each family in turn; print every setting as it is scored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--epsilon", type=float, default=5.0)
    parser.add_argument("--delta", type=float, default=1e-4)
    parser.add_argument("--out", type=Path, required=True, help="JSON of every setting tried; a search goes on from it")
    given = parser.parse_args()
    search = Search(given.workspace, epsilon=given.epsilon, delta=given.delta, out=given.out)
    rates = grid(
        optimiser=["sgd"],
        momentum=[0.9],
        sampling_prob=[0.2, 0.4, 1.0],
        epochs=[10, 20, 40],
        learning_rate=[1.0, 3.0, 10.0],
    )
    rates += grid(optimiser=["sgd"], momentum=[0.9], sampling_prob=[1.0], epochs=[10, 20], learning_rate=[30.0])
    adam = grid(optimiser=["adamw"], sampling_prob=[0.4], epochs=[10, 20], learning_rate=[3e-3, 1e-2, 3e-2])
    best = search.try_all("dp-sgd", rates + adam)
    weights = grid(power=[0.1, 0.25, 0.5], apply=["before-clip", "after-clip"])
    weighted = search.try_all("dp-sgd-class-weighted", [best | {"class_weights": w} for w in weights])
    start = search.try_all("formal-head", grid(steps=[20, 40, 80], learning_rate=[3.0, 10.0, 30.0]))
    start = search.try_all(
        "formal-head",
        [start | s for s in grid(release_share=[0.02, 0.05, 0.1, 0.3], temperature=[0.0, 0.03, 0.1, 0.3])],
    )
    search.try_all(
        "private-posterior",
        grid(prior_std=[0.1, 0.3, 1.0], l2_clip_norm=[1.5, 2.5, 5.0], steps=[50, 100]),
    )
    near = grid(prior_std=[0.4, 0.55, 0.7], l2_clip_norm=[2.5, 3.5, 5.0], steps=[100])
    langevin = search.try_all("private-posterior", near)
    found = {"dp-sgd": best, "dp-sgd-class-weighted": weighted, "formal-head": start, "private-posterior": langevin}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
