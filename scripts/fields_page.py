"""Compares one formal release of several fields with a release per field at the same total epsilon: docs/fields.md.

Of a workspace in which `autocoder compare --profile osha-fields` has prepared the records:

    python scripts/fields_page.py WORKSPACE --epsilons 1 5 --seeds 1 --out docs/fields.md

Both ways start at the same titles, train on the same half and are scored on the other. The separate releases get what
composition leaves them: F Gaussian mechanisms at rate mu / sqrt(F) cost together what one at mu costs. What a person
adds stands in `fields.notes.md` beside the page.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from studies import f1, prepared
from torch import Tensor

from flows.commands.profiles import load_profile
from mechanisms.mechanism import Mechanism, Records, Run, Task
from mechanisms.model import classifier
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig, OptimiserPhase
from mechanisms.model.fields import Fields
from mechanisms.model.inputs import FeatureInputs
from mechanisms.non_private import NonPrivate
from mechanisms.prior_descent import PriorDescent
from mechanisms.privacy import separately
from storage.datasets import load_fields
from storage.durable import write_atomically
from storage.errors import InputError
from tasks.fitting import model_inputs
from tasks.pages.render import notes_beside
from tasks.running.stage import Context

Scores = dict[str, tuple[float, float]]
"""Weighted and macro F1 by field."""
WAYS = {"joint": "one release", "separate": "a release per field", "non-private": "non-private"}


class Study:
    """Features, labels, and the head at the titles of each field's code list."""

    def __init__(self, workspace: Path, profile: str, chosen: Sequence[str]) -> None:
        content = load_profile(profile)
        self.features: dict[str, FeatureInputs] = {}
        self.labels: dict[str, Tensor] = {}
        self.model = ModelConfig.model_validate(content["model"])
        self.phase = OptimiserPhase.model_validate(content["fit"]["adamw"])
        dataset = next((workspace / "private" / "stages" / "ingest").iterdir())
        spaces = load_fields(dataset)
        if spaces is None:
            raise InputError(f"{workspace} holds one field; compare with --profile {profile} first")
        if unknown := [name for name in chosen if name not in spaces]:
            raise InputError(f"--fields: no field {unknown[0]}; there are {', '.join(spaces)}")
        self.names = tuple(name for name in spaces if name in chosen or not chosen)
        self.fields = Fields(tuple(len(spaces[name]) for name in self.names))
        start = model_inputs.build(Context(home=str(workspace), device="cpu"), self.model, dataset, seed=0)
        assert start.fields is not None
        place = {name: (at, span) for at, (name, span) in enumerate(zip(spaces, start.fields.spans, strict=True))}
        head: Any = start.part
        self.weight = torch.cat([head.weight.detach()[place[name][1]] for name in self.names])
        self.bias = torch.cat([head.bias.detach()[place[name][1]] for name in self.names])
        columns = [place[name][0] for name in self.names]
        for split in ("train", "test"):
            features, labels = prepared(workspace, split)
            labelled = (labels[:, columns] >= 0).any(1)
            self.features[split] = FeatureInputs(features[labelled])
            self.labels[split] = labels[labelled][:, columns]

    def untrained(self, rows: slice, fields: Fields | None) -> Classifier:
        """A linear head over these rows, at its titles."""
        config = ModelConfig(pooling="none")
        made = classifier.build(config, num_labels=len(self.bias[rows]), seed=0, width=self.weight.shape[1])
        head: Any = made.part
        with torch.no_grad():
            head.weight.copy_(self.weight[rows])
            head.bias.copy_(self.bias[rows])
        made.fields = fields
        return made

    def task(self, n: int, sizes: Sequence[int], epsilon: float | None, delta: float) -> Task:
        """Returns the task of a joint head, or of one field."""
        several = tuple(sizes) if len(sizes) > 1 else ()
        return Task(records=n, classes=sum(sizes), fields=several, target_epsilon=epsilon, delta=delta)

    def joint(self, mechanism: Mechanism, epsilon: float | None, delta: float, *, seed: int) -> Scores:
        """All fields by one fit."""
        rows = slice(0, self.fields.classes)
        plan = mechanism.plan(self.task(len(self.labels["train"]), self.fields.sizes, epsilon, delta))
        run = Run(self.fields.classes, seed, lambda: self.untrained(rows, self.fields), fields=self.fields)
        fitted = plan.fit(Records(self.features["train"], self.labels["train"]), run)
        predicted = self.fields.predicted(fitted.model.log_probabilities(self.features["test"]))
        return {name: self.score(at, predicted[:, at]) for at, name in enumerate(self.names)}

    def separate(self, each: float, delta: float, *, seed: int) -> Scores:
        """Each field by a fit of its own on the records that have it, at its share of the total epsilon."""
        scores = {}
        for at, (name, span) in enumerate(zip(self.names, self.fields.spans, strict=True)):
            labels = self.labels["train"][:, at]
            labelled = labels >= 0
            records = Records(FeatureInputs(self.features["train"].features[labelled]), labels[labelled])
            size = self.fields.sizes[at]
            plan = PriorDescent().plan(self.task(len(records), (size,), each, delta))
            fitted = plan.fit(records, Run(size, seed, lambda span=span: self.untrained(span, None)))
            scores[name] = self.score(at, fitted.model.log_probabilities(self.features["test"]).argmax(1))
        return scores

    def score(self, at: int, predicted: Tensor) -> tuple[float, float]:
        """Scores a field on the test records that have it."""
        truth = self.labels["test"][:, at]
        labelled = truth >= 0
        return f1(truth[labelled], predicted[labelled])


def page(facts: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], notes: str) -> str:
    """Markdown: weighted / macro F1 by field, joint beside separate."""
    names = list(facts["fields"])
    lines = [
        "# Several fields in one release",
        "",
        "<!-- Written by `python scripts/fields_page.py`; what a person adds is in fields.notes.md. -->",
        "",
        f"For agencies that code several fields: one formally private joint head (`prior-descent`) for "
        f"{', '.join(names)}, compared with a release per field at the same total ε, "
        f"δ {facts['delta']:g}. {facts['train']:,} training records, "
        f"{facts['test']:,} scored; classes: "
        + ", ".join(f"{name} {size}" for name, size in facts["fields"].items())
        + f". Weighted / macro F1{', mean ± standard deviation' if facts['seeds'] > 1 else ''} over {facts['seeds']} "
        f"{'seeds' if facts['seeds'] > 1 else 'seed, so no spread'}.",
        "",
        f"| total ε | releases | ε of each | {' | '.join(names)} | mean |",
        "|" + "---|" * (len(names) + 4),
    ]
    for row in rows:
        cells = [_cell([seed[name] for seed in row["scores"]]) for name in names]
        mean = [tuple(fmean(seed[name][k] for name in names) for k in (0, 1)) for seed in row["scores"]]
        total, each = (f"{row[key]:g}" if row[key] is not None else "–" for key in ("epsilon", "each"))
        lines.append(f"| {total} | {WAYS[row['way']]} | {each} | {' | '.join(cells)} | {_cell(mean)} |")
    return "\n".join(lines) + "\n" + (f"\n{notes}" if notes else "")


def _cell(pairs: Sequence[Sequence[float]]) -> str:
    columns = [[pair[k] for pair in pairs] for k in (0, 1)]
    return " / ".join(f"{fmean(c):.3f}" + (f" ± {stdev(c):.3f}" if len(c) > 1 else "") for c in columns)


def main() -> None:
    """Fits and score both ways; writes figures and page after each row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--profile", default="osha-fields")
    parser.add_argument("--fields", nargs="+", default=[], help="Some of them; all by default.")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 5.0])
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    study, seeds = Study(given.workspace, given.profile, given.fields), range(given.seeds)
    facts = {
        "fields": dict(zip(study.names, study.fields.sizes, strict=True)),
        "train": len(study.labels["train"]),
        "test": len(study.labels["test"]),
        "delta": given.delta,
        "seeds": given.seeds,
    }
    rows: list[dict[str, Any]] = []

    def keep(way: str, epsilon: float | None, each: float | None, scores: list[Scores]) -> None:
        rows.append({"way": way, "epsilon": epsilon, "each": each, "scores": scores})
        folder = given.out.with_suffix("")
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "figures.json", json.dumps(facts | {"rows": rows}, indent=1).encode() + b"\n")
        write_atomically(given.out, page(facts, rows, notes_beside(given.out)).encode())
        print(way, epsilon, scores, flush=True)

    for epsilon in given.epsilons:
        whole = PriorDescent().plan(study.task(facts["train"], study.fields.sizes, epsilon, given.delta))
        assert whole.event is not None
        apart = separately.composed_cost(whole.event, fields=len(study.names), delta=given.delta)
        assert apart is not None
        each = apart.each_epsilon
        joint = [study.joint(PriorDescent(), epsilon, given.delta, seed=seed) for seed in seeds]
        keep("joint", epsilon, round(epsilon, 2), joint)
        keep("separate", epsilon, round(each, 2), [study.separate(each, given.delta, seed=seed) for seed in seeds])
    plain = NonPrivate(phase=study.phase)
    keep("non-private", None, None, [study.joint(plain, None, given.delta, seed=seed) for seed in seeds])


if __name__ == "__main__":
    main()
