"""Few records of a class: on narratives by bins of training records a code, and on tables that are thinned in training.

Narratives are sampled as in Chew et al. (at most 200 a code, codes of one record dropped, halves by code) and encoded
once by the packaged encoder; every system is the product's `PrivateClassifier` on these features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import f1_score
from sklearn.model_selection import train_test_split

from mechanisms.dp_sgd import DpSgd
from mechanisms.errors import MechanismError
from mechanisms.estimator import PrivateClassifier
from mechanisms.mechanism import Mechanism
from mechanisms.model import prior
from mechanisms.model.config import ModelConfig, OptimiserPhase
from mechanisms.non_private import NonPrivate
from mechanisms.prior_descent import PriorDescent
from mechanisms.privacy.class_counts import ClassWeightsConfig
from mechanisms.privacy.schedules import SadSchedule
from studies import imbalance, results
from studies.results import Row

BINS = ((1, 4), (5, 9), (10, 19), (20, 49), (50, None))
SIZES = (5, 10, 20, 50)
"""Training records of label 1 that thinned tables keep."""
THINNED = ("mammography", "abalone", "car_eval_34")
DELTA, SENTENCE = 1e-4, "An employee suffered {}."
_TUNED: dict[str, Any] = {"optimiser": "sgd", "learning_rate": 3.0, "momentum": 0.9, "epochs": 40, "sampling_prob": 1.0}
_PLAIN = NonPrivate(phase=OptimiserPhase(optimiser="adamw", learning_rate=0.003, epochs=30, batch_size=8))
BRANCHES: dict[str, tuple[Mechanism, bool]] = {
    "non-private": (_PLAIN, False),
    "non-private-titles": (_PLAIN, True),
    "dp-sgd": (DpSgd.model_validate(_TUNED), False),
    "dp-sgd-class-weighted": (
        DpSgd.model_validate(_TUNED | {"class_weights": ClassWeightsConfig(power=0.5, apply="before-clip")}),
        False,
    ),
    "sad": (DpSgd.model_validate(_TUNED | {"schedule": SadSchedule()}), False),
    "prior-descent": (PriorDescent(), True),
}
"""Mechanism, and whether the head starts at the titles of the codes."""


def sampled(file: Path, codelist: Path, *, text: str, label: str) -> tuple[list[str], np.ndarray, dict[str, str]]:
    import pandas as pd

    for path in (file, codelist):
        if not path.is_file():
            raise MechanismError(f"{path} is not there. Give --records CSV and --codelist CSV (code, title)")
    frame = pd.read_csv(file, dtype=str).dropna(subset=[text, label])
    frame = frame.sample(frac=1, random_state=0).groupby(label).head(200)
    frame = frame[frame.groupby(label)[label].transform("size") >= 2]
    titles = dict(pd.read_csv(codelist, dtype=str)[["code", "title"]].itertuples(index=False))
    frame = frame[frame[label].isin(list(titles))]
    return frame[text].tolist(), frame[label].to_numpy(dtype=str), titles


def by_bin(truth: np.ndarray, said: np.ndarray, train: np.ndarray) -> dict[str, float]:
    """Mean F1 over the codes of each bin of training records, over those that occur in the test half."""
    codes, counts = np.unique(train, return_counts=True)
    found = np.unique(truth)
    size = dict(zip(codes.tolist(), counts.tolist(), strict=True))
    none: Any = 0
    each = dict(zip(found, f1_score(truth, said, labels=found, average=None, zero_division=none), strict=True))
    figures = {"macro_f1": float(np.mean(list(each.values())))}
    for low, high in BINS:
        own = [f1 for code, f1 in each.items() if low <= size.get(code, 0) <= (high or np.inf)]
        figures[f"f1_{low}_{high or 'up'}"] = float(np.mean(own)) if own else float("nan")
    return figures


def text(
    file: Path, codelist: Path, out: Path, *, epsilons: Sequence[float], seeds: int, columns: tuple[str, str]
) -> list[Row]:
    texts, codes, titles = sampled(file, codelist, text=columns[0], label=columns[1])
    known = np.unique(codes)
    config = ModelConfig(encoder="packaged-minilm", trainable="head", pooling="mean")
    features = prior.embed(config, texts, device="cpu").numpy()
    vectors = prior.embed(config, [SENTENCE.format(titles[code]) for code in known], device="cpu").numpy()

    def measure(cell: Mapping[str, Any]) -> Row:
        mechanism, from_titles = BRANCHES[cell["branch"]]
        halves = train_test_split(features, codes, test_size=0.5, stratify=codes, random_state=cell["seed"])
        model = PrivateClassifier(
            mechanism,
            epsilon=cell["epsilon"],
            delta=DELTA,
            classes=known,
            titles=vectors if from_titles else None,
            random_state=cell["seed"],
        )
        model.fit(halves[0], halves[2])
        return by_bin(halves[3], model.predict(halves[1]), halves[2]) | {"claimed": model.claim.epsilon}

    wanted = [
        {"branch": branch, "epsilon": epsilon, "seed": seed}
        for seed in range(seeds)
        for branch, (mechanism, _) in BRANCHES.items()
        for epsilon in (epsilons if mechanism.has_target else [None])
    ]
    return results.fill(out / "rare-codes.csv", wanted, measure)


def tables(folder: Path, out: Path, *, epsilons: Sequence[float], seeds: int) -> list[Row]:
    """Fits what `rare-tables.csv` lacks: systems of the imbalance study on sets with few records of label 1."""
    loaded = imbalance.read_sets(folder, THINNED)
    left_out = ("plain-logistic", "weighted-objective-paper", "ft-transformer")
    systems = [s for s in imbalance.SYSTEMS if s not in left_out and not s.startswith("bagging-")]

    def measure(cell: Mapping[str, Any]) -> Row:
        train, test = imbalance.split(loaded[cell["set"]], cell["set"], cell["seed"], minority=cell["minority"])
        return imbalance.measure(imbalance.SYSTEMS[cell["system"]][1], train, test, cell["epsilon"], cell["seed"])

    wanted = [
        {"set": name, "minority": size, "system": system, "epsilon": epsilon, "seed": seed}
        for seed in range(seeds)
        for name in THINNED
        for size in SIZES
        for system in systems
        for epsilon in ([None] if system in imbalance.PLAIN else epsilons)
    ]
    return results.fill(out / "rare-tables.csv", wanted, measure)


def show(narratives: Sequence[Row], thinned: Sequence[Row], epsilons: Sequence[float]) -> str:
    parts = []
    names = [f"f1_{low}_{high or 'up'}" for low, high in BINS]
    for epsilon in epsilons:
        rows = [row for row in narratives if row["epsilon"] in (None, epsilon)]
        lines = [
            [branch, *(results.figure([r[n] for r in rows if r["branch"] == branch]) for n in (*names, "macro_f1"))]
            for branch in dict.fromkeys(row["branch"] for row in rows)
        ]
        if lines:
            head = [f"{low} to {high}" if high else f"{low} and more" for low, high in BINS]
            parts.append(f"## Narratives, ε {epsilon:g}: F1 by training records a code\n")
            parts.append(results.show(["branch", *head, "all codes"], lines))
        own = [row for row in thinned if row["epsilon"] in (None, epsilon)]
        for metric in ("auc", "f1", "recall") if own else ():
            lines = [
                [imbalance.SYSTEMS[s][0], *(results.figure(_over_sets(own, s, size, metric)) for size in SIZES)]
                for s in dict.fromkeys(row["system"] for row in own)
            ]
            parts.append(f"## Tables, ε {epsilon:g}: {metric} by training records of the rare class\n")
            parts.append(results.show(["system", *map(str, SIZES)], lines))
    return "\n".join(parts)


def _over_sets(rows: Sequence[Row], system: str, size: int, metric: str) -> list[float]:
    """By seed the mean over sets."""
    return results.by_seed((r["seed"], r[metric]) for r in rows if (r["system"], r["minority"]) == (system, size))


def draw(thinned: Sequence[Row], file: Path, epsilon: float) -> None:
    own, lines = [row for row in thinned if row["epsilon"] in (None, epsilon)], {}
    for system in dict.fromkeys(row["system"] for row in own):
        over = [_over_sets(own, system, size, "auc") for size in SIZES]
        if all(len(values) > 1 for values in over):
            means, errors = [float(np.mean(v)) for v in over], [results.two_errors(v) for v in over]
            lines[imbalance.SYSTEMS[system][0]] = (SIZES, means, errors)
    title = f"AUC over three sets at ε {epsilon:g}, mean ± two standard errors"
    results.plot(file, lines, title=title, x="training records of the rare class", y="AUC")
