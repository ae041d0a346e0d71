#!/usr/bin/env python
"""What each ingredient of the formally private head gives, by cross-validation within the training half alone.

    python scripts/formal_ablation.py WORKSPACE --codelist oiics201_nature.csv --out docs/formal/ablation.json

WORKSPACE is one in which `retrain` has prepared features of a mean-pooled encoder. A fifth of the training half is held
out, in folds of their own; the test half is never read. Noise has no seed: a figure comes out again within its
spread. A run that was stopped goes on from `--out`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mechanisms.mechanism import Plan, Records, Run, Task, kinds
from mechanisms.model import checkpoint, classifier, inputs, metrics, prior
from mechanisms.model.classifier import Classifier, ModelConfig
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.seeding import generator
from storage.codelist import read_codelist, told, told_in_place
from storage.durable import write_atomically

DESCENT = {"kind": "prior-descent"}
VARIANTS: Mapping[str, dict[str, Any]] = {
    "all of it": DESCENT,
    "without the map": DESCENT | {"align_share": 0.0},
    "the map alone": DESCENT | {"align_share": 0.9},
    "without titles": DESCENT | {"align_share": 0.0, "prior": "none"},
    "titles alone, not in their hierarchy": DESCENT | {"kinds": 1},
    "wider map (k 256)": DESCENT | {"directions": 256},
    "narrower map (k 16)": DESCENT | {"directions": 16},
    "twice the noise of a weight": DESCENT | {"weight_noise": 0.8},
    "half the scale of the prior": DESCENT | {"prior_scale": 0.5},
    "formal-head (class sums, LDA start)": {"kind": "formal-head", "prior": "none"},
    "formal-head settings, DP-SGD from titles": {
        "kind": "dp-sgd", "optimiser": "sgd", "learning_rate": 10.0, "momentum": 0.9, "epochs": 20,
        "sampling_prob": 1.0,
    },
}  # fmt: skip
"""By name: settings of a mechanism, and of the prior (`prior`, `kinds` of text, `prior_scale` as a multiple)."""
OF_THE_PRIOR = ("prior", "kinds", "prior_scale")


class Study:
    """Features, labels and titles, and the folds."""

    def __init__(self, workspace: Path, codelist: Path, *, encoder: str) -> None:
        folder = next((workspace / "private" / "stages" / "features").iterdir())
        loaded = inputs.load(folder / "train.safetensors")
        assert isinstance(loaded, FeatureInputs)
        self.features = loaded.features
        self.labels = checkpoint.load(folder / "train_labels.safetensors")[0]["labels"]
        codes = read_codelist(codelist)
        self.model = ModelConfig(encoder=encoder, trainable="head", pooling="mean")
        self.codes, texts = len(codes), [told(codes), told_in_place(codes)]
        self.known = torch.tensor([bool(text) for text in texts[0]])
        self.embeddings = torch.stack([prior.embed(self.model, kind, device="cpu") for kind in texts])
        self._plans: dict[str, Plan] = {}

    def untrained(self, setting: Mapping[str, Any]) -> Classifier:
        """A head at this setting's prior."""
        wanted = setting.get("prior", "titles")
        scale = ModelConfig.model_fields["prior_scale"].default * setting.get("prior_scale", 1.0)
        config = self.model.model_copy(update={"prior": wanted, "prior_scale": scale})
        head = ModelConfig(pooling="none")  # one linear layer: the encoder is not needed for every fit
        made = classifier.build(head, num_labels=self.codes, seed=0, width=self.features.shape[1])
        made.config = config
        if wanted == "titles":
            prior.start(made, self.embeddings[: setting.get("kinds", 2)], self.known)
        return made

    def score(self, setting: Mapping[str, Any], *, epsilon: float, delta: float, fold: int) -> tuple[float, float]:
        """Weighted and macro F1 on the held-out fifth of a fold."""
        order = torch.randperm(len(self.labels), generator=generator(0, "fold", fold))
        held, kept = order[: len(order) // 5], order[len(order) // 5 :]
        own = {name: value for name, value in setting.items() if name not in OF_THE_PRIOR}
        key = json.dumps([own, epsilon], sort_keys=True)
        if key not in self._plans:
            task = Task(records=len(kept), classes=self.codes, target_epsilon=epsilon, delta=delta)
            self._plans[key] = kinds()[own["kind"]].model_validate(own).plan(task)
        run = Run(classes=self.codes, seed=fold, classifier=lambda: self.untrained(setting))
        fitted = self._plans[key].fit(Records(FeatureInputs(self.features[kept]), self.labels[kept]), run)
        predicted = fitted.model.log_probabilities(FeatureInputs(self.features[held])).argmax(-1)
        scores = metrics.classification(self.labels[held].numpy(), predicted.numpy())
        return scores.weighted_f1, scores.macro_f1


def main() -> None:
    """Score every variant at every epsilon; print each as it is scored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--codelist", type=Path, required=True)
    parser.add_argument("--encoder", default="packaged-minilm")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.5, 1.0, 2.0, 5.0, 8.0])
    parser.add_argument("--delta", type=float, default=1e-4)
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    study = Study(given.workspace, given.codelist, encoder=given.encoder)
    done: list[dict[str, Any]] = json.loads(given.out.read_text())["tried"] if given.out.is_file() else []
    for name, setting in VARIANTS.items():
        for epsilon in given.epsilons:
            if any(row["variant"] == name and row["epsilon"] == epsilon for row in done):
                continue
            scores = torch.tensor(
                [study.score(setting, epsilon=epsilon, delta=given.delta, fold=fold) for fold in range(given.folds)]
            )
            weighted, macro = (round(value, 4) for value in scores.mean(0).tolist())
            spread = [round(value, 4) for value in scores.std(0).tolist()]
            row = {"variant": name, "epsilon": epsilon, "weighted_f1": weighted, "macro_f1": macro, "spread": spread}
            done.append(row | {"setting": setting})
            head = {"delta": given.delta, "folds": given.folds, "scored_on": "a held-out fifth of the training half"}
            given.out.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(given.out, json.dumps(head | {"tried": done}, indent=1).encode() + b"\n")
            print(f"{name:42} ε {epsilon:<4} {weighted:.3f} / {macro:.3f}", flush=True)


if __name__ == "__main__":
    main()
