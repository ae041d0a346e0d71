"""Classes with few records: narratives by bins of training records per code, and tables with
thinned training data.

Narratives are sampled as in Chew et al. (at most 200 per code, codes with one record dropped,
halves within each code) and encoded once by the packaged encoder. Every system is the product's
`PrivateClassifier` on these features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import pandas as pd
import typer
from sklearn.metrics import f1_score
from sklearn.model_selection import train_test_split
from torch import Tensor

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
from studies.options import (
    FOLDER,
    CodeList,
    Epsilons,
    Label,
    NarrativeFile,
    Out,
    Seeds,
    Text,
    numbers,
)
from studies.results import Row

BINS = ((1, 4), (5, 9), (10, 19), (20, 49), (50, None))
SIZES = (5, 10, 20, 50)
"""Training records of label 1 that thinned tables keep."""
THINNED = ("mammography", "abalone", "car_eval_34")
DELTA = 1e-4
_LEFT_OUT = (
    "plain-logistic",
    "smote-logistic",
    "smote-logistic-weighted",
    "smote-trees-weighted",
    "plain-ft-transformer",
    "weighted-objective-paper",
    "ft-transformer",
)
"""Systems of the imbalance study that are skipped for thinned tables."""
_TUNED: dict[str, Any] = {
    "optimiser": "sgd",
    "learning_rate": 3.0,
    "momentum": 0.9,
    "epochs": 40,
    "sampling_prob": 1.0,
}
_PLAIN = NonPrivate(
    phase=OptimiserPhase(optimiser="adamw", learning_rate=0.003, epochs=30, batch_size=8)
)
BRANCHES: dict[str, tuple[Mechanism, bool]] = {
    "non-private": (_PLAIN, False),
    "non-private-titles": (_PLAIN, True),
    "dp-sgd": (DpSgd.model_validate(_TUNED), False),
    "dp-sgd-class-weighted": (
        DpSgd.model_validate(
            _TUNED | {"class_weights": ClassWeightsConfig(power=0.5, apply="before-clip")}
        ),
        False,
    ),
    "sad": (DpSgd.model_validate(_TUNED | {"schedule": SadSchedule()}), False),
    "prior-descent": (PriorDescent(), True),
}
"""Mechanism, and whether the head starts at the titles of the codes."""


def sampled(
    records: Path | None, codelist: Path | None, text: str, label: str
) -> tuple[Tensor, np.ndarray, np.ndarray, Tensor]:
    """Returns features of narratives, their codes, the distinct codes, and the
    features of the titles.
    """
    if records is None or codelist is None:
        raise MechanismError("pass --records and --codelist", kind="no-records")
    for path in (records, codelist):
        if not path.is_file():
            raise MechanismError(
                f"{path} does not exist. Pass --records CSV and --codelist CSV (code, title)",
                kind="no-file",
            )
    frame = pd.read_csv(records, dtype=str).dropna(subset=[text, label])
    frame = frame.sample(frac=1, random_state=0).groupby(label).head(200)
    frame = frame[frame.groupby(label)[label].transform("size") >= 2]
    titles = pd.read_csv(codelist, dtype=str).set_index("code")["title"].to_dict()
    frame = frame[frame[label].isin(list(titles))]
    codes = frame[label].to_numpy(dtype=str)
    code_names = np.unique(codes)
    encoder = ModelConfig(encoder="packaged-minilm", trainable="head", pooling="mean")
    sentences = [f"An employee suffered {titles[code]}." for code in code_names]
    features, vectors = (
        prior.embed(encoder, texts, device="cpu") for texts in (frame[text].tolist(), sentences)
    )
    return features, codes, code_names, vectors


def by_bin(truth: np.ndarray, said: np.ndarray, train: np.ndarray) -> dict[str, float]:
    """Returns mean F1 over the codes in each bin of training records, for codes
    that occur in the held-out records.
    """
    found, none = np.unique(truth), cast(Any, 0)
    f1_by_code = f1_score(truth, said, labels=found, average=None, zero_division=none)
    sizes = pd.Series(train).value_counts().reindex(found, fill_value=0)
    bins = {
        f"f1_{low}_{high or 'up'}": sizes.between(low, high or np.inf).to_numpy()
        for low, high in BINS
    }
    return {"macro_f1": f1_by_code.mean()} | {
        name: pd.Series(f1_by_code[in_bin]).mean() for name, in_bin in bins.items()
    }


def narratives(
    given: tuple[Tensor, np.ndarray, np.ndarray, Tensor],
    out: Path,
    *,
    epsilons: Sequence[float],
    seeds: int,
) -> list[Row]:
    features, codes, code_names, titles = given

    def measure(cell: Mapping[str, Any]) -> Row:
        mechanism, from_titles = BRANCHES[cell["branch"]]
        halves = train_test_split(
            features.numpy(), codes, test_size=0.5, stratify=codes, random_state=cell["seed"]
        )
        model = PrivateClassifier(
            mechanism,
            epsilon=cell["epsilon"],
            delta=DELTA,
            classes=code_names,
            titles=titles.numpy() if from_titles else None,
            random_state=cell["seed"],
        )
        model.fit(halves[0], halves[2])
        return by_bin(halves[3], model.predict(halves[1]), halves[2]) | {
            "claimed": model.claim.epsilon
        }

    plain = [
        branch for branch, (mechanism, _) in BRANCHES.items() if not mechanism.needs_target_epsilon
    ]
    wanted = results.grid({"branch": BRANCHES}, epsilons, seeds, plain=plain)
    return results.fill(out / "rare-codes.csv", wanted, measure)


def tables(folder: Path, out: Path, *, epsilons: Sequence[float], seeds: int) -> list[Row]:
    """Fits the missing rows of `rare-tables.csv`: systems of the imbalance study on
    sets with few records of label 1.
    """
    loaded = imbalance.read_sets(folder, THINNED)
    systems = [s for s in imbalance.SYSTEMS if s not in _LEFT_OUT and not s.startswith("bagging-")]

    def measure(cell: Mapping[str, Any]) -> Row:
        name, minority = cell["set"], cell["minority"]
        train, test = imbalance.split(
            loaded[name], f"{name}_{minority}", cell["seed"], minority=minority
        )
        return imbalance.measure(
            imbalance.SYSTEMS[cell["system"]][1], train, test, cell["epsilon"], cell["seed"]
        )

    axes = {"set": THINNED, "minority": SIZES, "system": systems}
    wanted = results.grid(axes, epsilons, seeds, plain=imbalance.PLAIN)
    return results.fill(out / "rare-tables.csv", wanted, measure)


def show(narratives: Sequence[Row], thinned: Sequence[Row], epsilons: Sequence[float]) -> str:
    parts = []
    names = [f"f1_{low}_{high or 'up'}" for low, high in BINS]
    for epsilon in epsilons:
        rows = pd.DataFrame(row for row in narratives if row["epsilon"] in (None, epsilon))
        lines = [
            [branch, *(results.figure(branch_rows[name]) for name in (*names, "macro_f1"))]
            for branch, branch_rows in (rows.groupby("branch", sort=False) if narratives else ())
        ]
        if lines:
            head = [f"{low} to {high}" if high else f"{low} and more" for low, high in BINS]
            parts.append(f"## Narratives, ε {epsilon:g}: F1 by training records per code\n")
            parts.append(results.show(["branch", *head, "all codes"], lines))
        for metric in ("auc", "f1", "recall") if thinned else ():
            lines = [
                [system, *map(results.figure, branch_rows)]
                for system, branch_rows in by_size(thinned, epsilon, metric).items()
            ]
            parts.append(
                f"## Tables, ε {epsilon:g}: {metric} by training records of the rare class\n"
            )
            parts.append(results.show(["system", *map(str, SIZES)], lines))
    return "\n".join(parts)


def by_size(thinned: Sequence[Row], epsilon: float, metric: str) -> dict[str, list[list[float]]]:
    """Returns means over sets, by system, by size of the rare class, and by seed."""
    epsilon_rows = [row for row in thinned if row["epsilon"] in (None, epsilon)]
    return {
        imbalance.SYSTEMS[system][0]: [
            results.by_seed(
                (r["seed"], r[metric])
                for r in epsilon_rows
                if (r["system"], r["minority"]) == (system, size)
            )
            for size in SIZES
        ]
        for system in dict.fromkeys(row["system"] for row in epsilon_rows)
    }


def run(
    out: Out,
    records: NarrativeFile = None,
    codelist: CodeList = None,
    data: Annotated[
        Path | None, typer.Option(help=f"{FOLDER}; without it, only narratives")
    ] = None,
    text: Text = "Final Narrative",
    label: Label = "Nature",
    epsilons: Epsilons = "1,5",
    seeds: Seeds = 5,
) -> Path:
    """How well classes with few records are learned, on narratives and on thinned tables.

    Example: python -m studies rare-codes --records osha.csv --codelist nature.csv --data imblearn
    --out results
    """
    chosen = numbers(epsilons)
    sample = sampled(records, codelist, text, label) if records or not data else None
    of_codes = narratives(sample, out, epsilons=chosen, seeds=seeds) if sample else []
    thinned = tables(data, out, epsilons=chosen, seeds=seeds) if data else []
    (out / "rare-codes-tables.md").write_text(show(of_codes, thinned, chosen), encoding="utf-8")
    if thinned:
        title = f"AUC over three sets at ε {chosen[0]:g}, mean ± two standard errors"
        lines = {
            system: (SIZES, values) for system, values in by_size(thinned, chosen[0], "auc").items()
        }
        results.plot(
            out / "rare-codes.svg",
            lines,
            title=title,
            x="training records of the rare class",
            y="AUC",
        )
    return out / "rare-codes-tables.md"
