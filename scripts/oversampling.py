#!/usr/bin/env python
"""Measures the cost of oversampling before a private learner: docs/imbalance/oversampling.md, its
figure, and the figures behind it.

    python scripts/oversampling.py FOLDER --out docs/imbalance/oversampling.md

FOLDER holds the eight data sets as CSV, the label 0/1 in the last column (`label`). In-degrees and AUCs are computed
from these public records. Noise has no seed: an AUC comes out again within its spread. A run that was stopped goes on
from `oversampling.json` beside the page.
"""

from __future__ import annotations

import argparse
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.neighbors import NearestNeighbors

from mechanisms.dp_sgd import DpSgd
from mechanisms.mechanism import Plan, Records, Run, Task
from mechanisms.model import classifier
from mechanisms.model.config import ModelConfig
from mechanisms.model.inputs import FeatureInputs
from mechanisms.privacy import oversampling as cost
from storage.durable import write_atomically
from tasks.pages.render import Table, notes_beside, render
from tasks.pages.svg import BLACK, BLUE, GREEN, ORANGE, figure_of, svg
from tasks.running.provenance import provenance

K, TAIL, SEEDS, DELTA = 5, 1e-6, 5, 1e-5
EPSILONS = (1.0, 5.0)
SETS = ("ecoli", "yeast_me2", "solar_flare_m0", "abalone", "car_eval_34", "car_eval_4", "mammography", "abalone_19")


def neighbours(points: np.ndarray, k: int) -> np.ndarray:
    """Places of the k nearest others of every point, int64 [n, k]."""
    return NearestNeighbors(n_neighbors=k).fit(points).kneighbors()[1]


def smote(points: np.ndarray, ids: np.ndarray, lists: np.ndarray, *, rounds: int, seed: int) -> np.ndarray:
    """Rows between a record and one of its neighbours, [n, rounds, d] (Chawla et al. 2002).

    The randomness of a base is its own, by its id, and the number of rounds is public: no other record decides about
    it.
    """
    rows = np.empty((len(points), rounds, points.shape[1]))
    for at, record in enumerate(ids):
        rng = np.random.default_rng([seed, int(record)])
        slots, share = rng.integers(0, lists.shape[1], rounds), rng.random((rounds, 1))
        chosen = points[lists[at, slots]]
        rows[at] = points[at] + share * (chosen - points[at])
    return rows


def scaled(frame: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Features in [0, 1] by the file's own range (not protected: a study of public records), and labels."""
    values = frame.drop(columns="label").to_numpy(dtype=np.float64)
    low, high = values.min(0), values.max(0)
    return (values - low) / np.where(high > low, high - low, 1), frame["label"].to_numpy()


@cache
def _for_one_row(epsilon: float) -> Plan:
    mechanism = DpSgd(optimiser="sgd", learning_rate=1.0, momentum=0.9, epochs=40, sampling_prob=1.0)
    return mechanism.plan(Task(records=1000, classes=2, target_epsilon=epsilon, delta=DELTA))


def planned(epsilon: float, *, records: int, rows: float) -> Plan:
    """Full-batch descent that costs `epsilon` of a record which decides so many rows.

    Every row is in every step, so the whole is one Gaussian mechanism: its noise does not depend on how many rows there
    are, and for a group of m it is m times that for one.
    """
    plan = _for_one_row(epsilon)
    return Plan(
        mechanism=plan.mechanism.model_copy(update={"batch_size": records}),
        task=plan.task.model_copy(update={"records": records}),
        noise=rows * plan.noise,
    )


def auc(
    features: np.ndarray, labels: np.ndarray, *, epsilon: float | None, rounds: int, rows: float, seed: int
) -> float:
    """AUC of logistic regression after `rounds` of SMOTE, on a held-out fifth: by DP gradient descent on every row.

    Args:
        epsilon: of one record; None for scikit-learn's fit without noise.
        rows: of the learner's input that one record decides, by which the noise is multiplied.
    """
    train, test = train_test_split(np.arange(len(labels)), test_size=0.2, stratify=labels, random_state=seed)
    x, y = features[train], labels[train]
    if rounds:
        minority = x[y == 1]
        lists = neighbours(minority, K)
        more = smote(minority, np.flatnonzero(y == 1), lists, rounds=rounds, seed=seed).reshape(-1, x.shape[1])
        x, y = np.concatenate([x, more]), np.concatenate([y, np.ones(len(more), dtype=y.dtype)])
    if epsilon is None:
        scores = LogisticRegression(C=100, max_iter=2000).fit(x, y).decision_function(features[test])
        return float(roc_auc_score(labels[test], scores))
    records = Records(FeatureInputs(torch.from_numpy(x).float()), torch.from_numpy(y).long())
    model = ModelConfig(pooling="none")
    run = Run(
        classes=2,
        seed=seed,
        classifier=lambda: classifier.build(model, num_labels=2, seed=seed, width=x.shape[1]),
    )
    fitted = planned(epsilon, records=len(records), rows=rows).fit(records, run)
    scores = fitted.model.log_probabilities(FeatureInputs(torch.from_numpy(features[test]).float()))
    return float(roc_auc_score(labels[test], (scores[:, 1] - scores[:, 0]).numpy()))


def studied(name: str, frame: pd.DataFrame) -> dict[str, Any]:
    """One data set: its shape, its largest in-degree, what SMOTE costs, and AUC with and without it."""
    features, labels = scaled(frame)
    minority = features[labels == 1]
    dimension = features.shape[1]
    rounds = max(1, round((len(labels) - 2 * len(minority)) / len(minority)))
    bound = int(cost.most_neighbours_of(dimension, K, minority_at_most=len(minority)))
    pure = cost.smote(1.0, 0.0, neighbours=bound, rounds=rounds).rows
    variants = {
        "non-private": (None, 0, 1),
        "non-private, SMOTE": (None, rounds, 1),
        **{f"ε {epsilon:g}": (epsilon, 0, 1) for epsilon in EPSILONS},
        **{f"ε {epsilon:g}, SMOTE": (epsilon, rounds, pure) for epsilon in EPSILONS},
        **{f"ε {epsilon:g} claimed, SMOTE not paid for": (epsilon, rounds, 1) for epsilon in EPSILONS},
    }
    scores = {
        what: [auc(features, labels, epsilon=e, rounds=r, rows=m, seed=seed) for seed in range(SEEDS)]
        for what, (e, r, m) in variants.items()
    }
    return {
        "set": name,
        "records": len(labels),
        "minority": len(minority),
        "equal_to_another": len(minority) - len(np.unique(minority, axis=0)),
        "features": dimension,
        "rounds": rounds,
        "in_degree": int(np.bincount(neighbours(minority, K).ravel(), minlength=len(minority)).max()),
        "neighbours": bound,
        "printed_rows": cost.printed_smote(1.0, dimension=dimension, rounds=rounds).rows,
        "rows": pure,
        "rows_with_tail": cost.smote_with_tail(1.0, 0.0, neighbours=bound, rounds=rounds, k=K, tail=TAIL).rows,
        "auc": {what: [round(float(np.mean(v)), 4), round(float(np.std(v, ddof=1)), 4)] for what, v in scores.items()},
    }


def growth() -> str:
    """Rows that one record decides, against features and against k: printed, corrected, and with a tail."""
    figure, axes = figure_of("Rows of the learner's input that one record decides (R = 10)", height=4.2)
    dimensions = range(1, 41)
    for k, colour in ((1, BLUE), (5, ORANGE), (10, GREEN)):
        pure = [cost.smote(1, 0, neighbours=int(cost.most_neighbours_of(d, k)), rounds=10).rows for d in dimensions]
        axes.plot(dimensions, pure, color=colour, label=f"corrected, k = {k}")
        tail = [
            cost.smote_with_tail(1, 0, neighbours=int(cost.most_neighbours_of(d, k)), rounds=10, k=k, tail=TAIL).rows
            for d in dimensions
        ]
        if k > 1:
            axes.plot(dimensions, tail, color=colour, linestyle=":", label=f"… but for an event of {TAIL:g}, k = {k}")
    printed = [cost.printed_smote(1, dimension=d, rounds=10).rows for d in dimensions]
    axes.plot(dimensions, printed, color=BLACK, linestyle="--", label="as printed, every k")
    axes.axhline(
        1 + 10 + 2 * 10 * 260, color="#999999", linewidth=0.8, label="260 minority records at most (mammography)"
    )
    axes.set_yscale("log")
    axes.set_xlabel("features d")
    axes.set_ylabel("rows m: ε is m times the learner's")
    axes.legend(fontsize=7)
    return svg(figure)


def _costs(rows: list[dict[str, Any]]) -> Table:
    head = ["set", "minority records (equal to another)", "d", "R", "largest in-degree", "l", "rows, as printed"]
    head += ["rows m", f"m but for an event of {TAIL:g}", "learner's ε for a record's ε 1"]
    return head, [
        [
            row["set"],
            f"{row['minority']} ({row['equal_to_another']})",
            str(row["features"]),
            str(row["rounds"]),
            str(row["in_degree"]),
            str(row["neighbours"]),
            f"{row['printed_rows']:,.0f}",
            f"{row['rows']:,.0f}",
            f"{row['rows_with_tail']:,.0f}",
            f"{1 / row['rows']:.2g}",
        ]
        for row in rows
    ]


def _scores(rows: list[dict[str, Any]]) -> Table:
    names = list(rows[0]["auc"])
    cells = [[f"{mean:.3f} ± {spread:.3f}" for mean, spread in row["auc"].values()] for row in rows]
    return ["set", *names], [[row["set"], *line] for row, line in zip(rows, cells, strict=True)]


def main() -> None:
    """Studies the eight sets; writes the page, its figure and its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.parent.mkdir(parents=True, exist_ok=True)
    results = given.out.with_suffix(".json")
    rows: list[dict[str, Any]] = json.loads(results.read_text())["sets"] if results.is_file() else []
    for name in SETS:
        if any(row["set"] == name for row in rows):
            continue
        file = given.folder / f"{name}.csv"
        if not file.is_file():
            raise SystemExit(f"{file} is not there: FOLDER holds the eight sets, {', '.join(SETS)}")
        rows.append(studied(name, pd.read_csv(file)))
        write_atomically(
            results, json.dumps({"k": K, "tail": TAIL, "delta": DELTA, "sets": rows}, indent=1).encode() + b"\n"
        )
        print(f"{name}: {rows[-1]['rows']:.0f} rows", flush=True)
    write_atomically(given.out.with_suffix(".svg"), growth().encode())
    growing = [
        [str(d), f"{2 ** (0.4042 * d):.4g}", *(f"{cost.most_neighbours_of(d, k):,.0f}" for k in (1, 5, 10))]
        for d in (1, 2, 3, 6, 7, 8, 10, 21, 24, 32)
    ]
    text = render(
        "oversampling.md",
        growing=(["features d", "2^(0.4042 d), as printed", "l, k = 1", "l, k = 5", "l, k = 10"], growing),
        costs=_costs(rows),
        scores=_scores(rows),
        k=K,
        tail=TAIL,
        seeds=SEEDS,
        delta=DELTA,
        picture=f"{given.out.stem}.svg",
        source=provenance(),
        notes=notes_beside(given.out),
    )
    write_atomically(given.out, text.encode())


if __name__ == "__main__":
    main()
