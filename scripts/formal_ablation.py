#!/usr/bin/env python
"""Measures the ingredients of prior descent by cross-validation within the training half alone.

    python scripts/formal_ablation.py WORKSPACE --codelist oiics201_nature.csv --out docs/formal/ablation.json

WORKSPACE is one in which `retrain` has prepared features of a mean-pooled encoder. A fifth of the training half is held
out, in folds of their own; the test half is never read. Noise has no seed: a figure comes out again within its
spread. A run that was stopped goes on from `--out`. `--search` scores equal terms instead: nine settings each of prior
descent and of DP gradient descent, which both start at the titles, on the same folds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from studies import HELD_OUT, f1, fold_of, prepared, tried, write

from mechanisms.mechanism import Plan, Records, Run, Task, kinds
from mechanisms.model import classifier, prior
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.seeding import generator
from storage.codelist import describe, describe_in_sentence, describe_with_levels, read_codelist

DESCENT = {"kind": "prior-descent"}
VARIANTS: Mapping[str, dict[str, Any]] = {
    "all of it": DESCENT,
    "without the map": DESCENT | {"align_share": 0.0},
    "nine tenths on the map": DESCENT | {"align_share": 0.9},
    "without the sentence": DESCENT | {"kinds": 2},
    "without tempering": DESCENT | {"tempering": 0.0},
    "without titles": DESCENT | {"align_share": 0.0, "prior": "none"},
    "titles alone, not in their hierarchy": DESCENT | {"kinds": 1},
    "formal-head (class sums, LDA start)": {"kind": "formal-head", "prior": "none"},
    "dppl-mean": {"kind": "dppl-mean", "prior": "none"},
    "dppl-public": {"kind": "dppl-public"},
}
"""By name: settings of a mechanism, and of the prior (`prior`, `kinds` of text, `prior_scale` as a multiple)."""
_DP_SGD = {"kind": "dp-sgd", "optimiser": "sgd", "momentum": 0.9, "sampling_prob": 1.0}
SEARCH: Mapping[str, dict[str, Any]] = {
    **{
        f"prior-descent, noise {noise}, {steps} steps": DESCENT | {"weight_noise": noise, "steps": steps}
        for noise in (0.3, 0.5, 0.8)
        for steps in (30, 60, 120)
    },
    **{
        f"dp-sgd from titles, rate {rate:g}, {steps} steps": _DP_SGD | {"learning_rate": rate, "epochs": steps}
        for rate in (3.0, 10.0, 30.0)
        for steps in (20, 60, 120)
    },
}
UNSEEN = ("all of it", "without the map", "without titles")
"""Variants of which it is measured too how they code codes that were held out of training."""
OF_THE_PRIOR = ("prior", "kinds", "prior_scale")


class Study:
    """Features, labels and titles, and the folds."""

    def __init__(self, workspace: Path, codelist: Path, *, encoder: str, sentence: str) -> None:
        self.features, self.labels = prepared(workspace)
        codes = read_codelist(codelist)
        self.model = ModelConfig(encoder=encoder, trainable="head", pooling="mean")
        self.codes = len(codes)
        texts = [describe(codes), describe_with_levels(codes), describe_in_sentence(codes, sentence)]
        self.known = torch.tensor([bool(text) for text in texts[0]])
        self.embeddings = torch.stack([prior.embed(self.model, kind, device="cpu") for kind in texts])
        self._plans: dict[str, Plan] = {}

    def untrained(self, setting: Mapping[str, Any]) -> Classifier:
        """A head at this setting's prior."""
        config = setting.get("prior", "titles")
        scale = ModelConfig.model_fields["prior_scale"].default * setting.get("prior_scale", 1.0)
        config = self.model.model_copy(update={"prior": config, "prior_scale": scale})
        head = ModelConfig(pooling="none")  # one linear layer: the encoder is not needed for every fit
        made = classifier.build(head, num_labels=self.codes, seed=0, width=self.features.shape[1])
        made.config = config
        if config == "titles":
            prior.start(made, self.embeddings[: setting.get("kinds", 3)], self.known)
        return made

    def score(self, setting: Mapping[str, Any], *, epsilon: float, delta: float, fold: int) -> tuple[float, float]:
        """Weighted and macro F1 on the held-out fifth of a fold."""
        held, training = fold_of(self.labels, fold)
        scored = self._fitted(setting, training, epsilon=epsilon, delta=delta, fold=fold)(held)
        return f1(self.labels[held], scored.argmax(-1))

    def unseen(self, setting: Mapping[str, Any], *, epsilon: float, delta: float, fold: int) -> tuple[float, float]:
        """Share of records whose code is among the 5 and the 20 most probable, of a fifth of the observed codes, none
        of whose records was trained on: their rank is by what is public, and by the map."""
        observed = self.labels.unique()
        order = observed[torch.randperm(len(observed), generator=generator(0, "codes", fold))]
        out = torch.isin(self.labels, order[: len(order) // 5])
        held, training = out.nonzero()[:, 0], (~out).nonzero()[:, 0]
        scored = self._fitted(setting, training, epsilon=epsilon, delta=delta, fold=fold)(held)
        rank = (scored > scored.gather(1, self.labels[held][:, None])).sum(1)
        return float((rank < 5).double().mean()), float((rank < 20).double().mean())

    def _fitted(
        self, setting: Mapping[str, Any], training: torch.Tensor, *, epsilon: float, delta: float, fold: int
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        """Log-probabilities of records by index, after a fit on `training`."""
        own = {name: value for name, value in setting.items() if name not in OF_THE_PRIOR}
        key = json.dumps([own, epsilon], sort_keys=True)
        if key not in self._plans:
            task = Task(records=len(training), classes=self.codes, target_epsilon=epsilon, delta=delta)
            self._plans[key] = kinds()[own["kind"]].model_validate(own).plan(task)
        run = Run(classes=self.codes, seed=fold, classifier=lambda: self.untrained(setting))
        # every record is in every step: the noise depends on epsilon and delta alone, and not on their number
        plan = self._plans[key]
        plan = plan.model_copy(update={"task": plan.task.model_copy(update={"records": len(training)})})
        fitted = plan.fit(Records(FeatureInputs(self.features[training]), self.labels[training]), run)
        return lambda index: fitted.model.log_probabilities(FeatureInputs(self.features[index]))


def arguments(description: str | None, *, epsilons: list[float], delta: float, folds: int) -> argparse.ArgumentParser:
    """Returns the options of a study, with its defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--codelist", type=Path, required=True)
    parser.add_argument("--encoder", default="packaged-minilm")
    parser.add_argument("--sentence", default="An employee suffered {}.", help="model.prior_sentence of the profile")
    parser.add_argument("--epsilons", type=float, nargs="+", default=epsilons)
    parser.add_argument("--delta", type=float, default=delta)
    parser.add_argument("--folds", type=int, default=folds)
    parser.add_argument("--out", type=Path, required=True)
    return parser


def main() -> None:
    """Scores every variant at every epsilon; prints each as it is scored."""
    parser = arguments(__doc__, epsilons=[0.5, 1.0, 2.0, 5.0, 8.0], delta=1e-4, folds=3)
    parser.add_argument("--search", action="store_true", help="score settings of two mechanisms on equal terms")
    given = parser.parse_args()
    study = Study(given.workspace, given.codelist, encoder=given.encoder, sentence=given.sentence)
    head = {"delta": given.delta, "folds": given.folds, "scored_on": HELD_OUT}
    done = tried(given.out)
    for name, setting in (SEARCH if given.search else VARIANTS).items():
        for epsilon in given.epsilons:
            if any(row["variant"] == name and row["epsilon"] == epsilon for row in done):
                continue
            scores = torch.tensor(
                [study.score(setting, epsilon=epsilon, delta=given.delta, fold=fold) for fold in range(given.folds)]
            )
            weighted, macro = (round(value, 4) for value in scores.mean(0).tolist())
            spread = [round(value, 4) for value in scores.std(0).tolist()]
            row = {"variant": name, "epsilon": epsilon, "weighted_f1": weighted, "macro_f1": macro, "spread": spread}
            if name in UNSEEN:
                shares = [study.unseen(setting, epsilon=epsilon, delta=given.delta, fold=f) for f in range(given.folds)]
                five, twenty = torch.tensor(shares).mean(0).tolist()
                row["codes_held_out"] = {"in_top_5": round(five, 4), "in_top_20": round(twenty, 4)}
            done.append(row | {"setting": setting})
            write(given.out, head, done)
            print(f"{name:42} ε {epsilon:<4} {weighted:.3f} / {macro:.3f}", flush=True)


if __name__ == "__main__":
    main()
