#!/usr/bin/env python
"""Chooses the settings of the rivals: on the training half alone, never on the test half.

A fifth of the training half is held out; each setting is fitted on the rest, three times with folds and noise of their
own, at the target epsilon. Every family reads the same features, words of the code list included. Families from titles
start where prior descent starts. The class weights go with the DP-SGD setting that won; noise and clip schedules take
that setting too and are not searched. The fit without privacy is searched on the same folds.

    python scripts/choose_rival_settings.py WORKSPACE --profile PROFILE --out docs/results/tuning-words.json

WORKSPACE is one in which `compare` with that profile has prepared the features. A search that was stopped goes on from
`--out`.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from studies import HELD_OUT, f1, fold_of, prepared, tried, write

from flows.commands.profiles import load_profile
from mechanisms.mechanism import Mechanism, Plan, Records, Run, Task, kinds
from mechanisms.model import classifier, training
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig, OptimiserPhase
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.prior import head_of
from storage.datasets import load_codes
from tasks.fitting import model_inputs
from tasks.running.stage import Context

FOLDS = 3
_KIND = {
    "dp-sgd-class-weighted": "dp-sgd",
    "dp-sgd-titles": "dp-sgd",
    "non-private-titles": "non-private",
}
_FROM_TITLES = {"dp-sgd-titles", "non-private-titles", "prior-descent", "dppl-mean"}


class Search:
    """Scores settings, remembers them in a file, and keeps solved noise."""

    def __init__(self, workspace: Path, model: ModelConfig, *, epsilon: float, delta: float, out: Path) -> None:
        self.features, self.labels = prepared(workspace)
        dataset = next((workspace / "private" / "stages" / "ingest").iterdir())
        self.num_labels = len(load_codes(dataset))
        context = Context(home=str(workspace), device="cpu")
        self.model = model
        self.titles = model_inputs.build(context, model.model_copy(update={"prior": "titles"}), dataset, seed=0)
        self.epsilon, self.delta, self.out, self.rows = epsilon, delta, out, tried(out)
        self.head = {"target_epsilon": epsilon, "delta": delta, "folds": FOLDS, "scored_on": HELD_OUT}
        self._plans: dict[str, Plan] = {}

    def try_all(self, family: str, settings: list[dict[str, Any]]) -> dict[str, Any]:
        """Scores each setting; returns the best one: by weighted F1, class weights by what they are for, macro F1."""
        for setting in settings:
            if not any(row["family"] == family and row["setting"] == setting for row in self.rows):
                scores = torch.tensor([self._score(family, setting, fold) for fold in range(FOLDS)])
                means, stds = scores.mean(0).tolist(), scores.std(0).tolist()
                row: dict[str, Any] = {"family": family, "setting": setting}
                for name, mean, std in zip(("weighted_f1", "macro_f1"), means, stds, strict=True):
                    row |= {name: round(mean, 4), f"{name}_std": round(std, 4)}
                self.rows.append(row)
                write(self.out, self.head, self.rows)
                print(f"{family:24} {means[0]:.3f} ± {stds[0]:.3f}  {json.dumps(setting)}", flush=True)
        mine = [row for row in self.rows if row["family"] == family]
        by = "macro_f1" if family == "dp-sgd-class-weighted" else "weighted_f1"
        return max(mine, key=lambda row: row[by])["setting"]

    def _score(self, family: str, setting: dict[str, Any], fold: int) -> tuple[float, float]:
        held, rest = fold_of(self.labels, fold)
        if family == "swag":
            return self._swag_base(setting, held, rest, fold)
        mechanism = kinds()[_KIND.get(family, family)].model_validate(setting)
        run = Run(classes=self.num_labels, seed=fold, classifier=lambda: self._untrained(family))
        records = Records(FeatureInputs(self.features[rest]), self.labels[rest])
        fitted = self._plan(mechanism, len(rest)).fit(records, run)
        return f1(self.labels[held], fitted.model.log_probabilities(FeatureInputs(self.features[held])).argmax(-1))

    def _swag_base(
        self, setting: Mapping[str, Any], held: torch.Tensor, rest: torch.Tensor, fold: int
    ) -> tuple[float, float]:
        """Returns the scores of SWAG-PPM's base fit: AdamW, then SGD."""
        model = self._untrained("swag")
        phases = [
            OptimiserPhase(optimiser="adamw", learning_rate=setting["adamw"], epochs=10),
            OptimiserPhase(optimiser="sgd", learning_rate=setting["sgd"], epochs=20),
        ]
        for phase in phases:
            records = FeatureInputs(self.features[rest])
            training.train(model, records, self.labels[rest], phase=phase, seed=fold, purpose=phase.optimiser)
        return f1(self.labels[held], model.predict(FeatureInputs(self.features[held])).argmax(-1))

    def _untrained(self, family: str) -> Classifier:
        """Returns a linear head over the features: at the titles, or random."""
        config = ModelConfig(pooling="none")
        built = classifier.build(config, num_labels=self.num_labels, seed=0, width=self.features.shape[1])
        if family in _FROM_TITLES:
            built.config = self.titles.config
            head_of(built).load_state_dict(head_of(self.titles).state_dict())
        return built

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
    """Searches each family in turn; prints every setting as it is scored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--profile", default="osha-head", help="name or file: its model, and so its features")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE of the profile's model")
    parser.add_argument("--epsilon", type=float, default=5.0)
    parser.add_argument("--delta", type=float, default=1e-4)
    parser.add_argument("--out", type=Path, required=True, help="JSON of every setting tried; a search goes on from it")
    given = parser.parse_args()
    model = load_profile(given.profile)["model"] | dict(pair.split("=", 1) for pair in given.set)
    workspace, out = given.workspace.resolve(), given.out
    search = Search(workspace, ModelConfig.model_validate(model), epsilon=given.epsilon, delta=given.delta, out=out)
    best = search_all(search)
    print(json.dumps(best))


def search_all(search: Search) -> dict[str, dict[str, Any]]:
    """Returns the best setting of each family."""
    sgd = {"optimiser": ["sgd"], "momentum": [0.9]}
    rates = grid(**sgd, sampling_prob=[0.2, 0.4, 1.0], epochs=[10, 20, 40], learning_rate=[1.0, 3.0, 10.0])
    rates += grid(**sgd, sampling_prob=[1.0], epochs=[10, 20], learning_rate=[30.0])
    adam = grid(optimiser=["adamw"], sampling_prob=[0.4], epochs=[10, 20], learning_rate=[3e-3, 1e-2, 3e-2])
    best = {"dp-sgd": search.try_all("dp-sgd", rates + adam)}
    titles = grid(**sgd, sampling_prob=[0.4, 1.0], epochs=[20, 60, 120], learning_rate=[0.3, 1.0, 3.0, 10.0, 30.0])
    best["dp-sgd-titles"] = search.try_all("dp-sgd-titles", titles)
    steps = grid(weight_noise=[0.3, 0.5, 0.8], steps=[30, 60, 120])
    best["prior-descent"] = search.try_all("prior-descent", [{}, *steps])
    weights = grid(power=[0.1, 0.25, 0.5], apply=["before-clip", "after-clip"])
    weighted = [best["dp-sgd"] | {"class_weights": w} for w in weights]
    best["dp-sgd-class-weighted"] = search.try_all("dp-sgd-class-weighted", weighted)
    start = search.try_all("formal-head", grid(steps=[20, 40, 80], learning_rate=[3.0, 10.0, 30.0]))
    shares = grid(release_share=[0.02, 0.05, 0.1, 0.3], temperature=[0.0, 0.03, 0.1, 0.3])
    best["formal-head"] = search.try_all("formal-head", [start | share for share in shares])
    phases = grid(epochs=[3, 5, 10, 30], learning_rate=[1e-3, 3e-3, 1e-2, 3e-2], schedule=["constant", "linear"])
    phases = [{"phase": {"optimiser": "adamw", "batch_size": 8} | phase} for phase in phases]
    for family in ("non-private", "non-private-titles"):
        best[family] = search.try_all(family, phases)
    best["swag"] = search.try_all("swag", grid(adamw=[3e-4, 1e-3, 3e-3, 1e-2], sgd=[3e-3, 1e-2, 3e-2]))
    search.try_all("private-posterior", grid(prior_std=[0.1, 0.3, 1.0], l2_clip_norm=[1.5, 2.5, 5.0], steps=[50, 100]))
    near = grid(prior_std=[0.4, 0.55, 0.7], l2_clip_norm=[2.5, 3.5, 5.0], steps=[100])
    best["private-posterior"] = search.try_all("private-posterior", near)
    return best


if __name__ == "__main__":
    main()
