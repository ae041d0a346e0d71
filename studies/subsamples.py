"""Bags and SMOTE before private logistic regression on subsamples of mammography (Rosenblatt et al.
2025, tables 4 to 9, figures 2 and 3).

A subsample has n records, one in r + 1 of which is of the rare class; a fifth of it is the test
set. The set has 260 rare records, so only sizes up to 260 (r + 1) are possible: the paper's n =
5,000 at r = 8 would need 556. The paper does not say whether it drew records twice; here each is
drawn once.

Bags cost epsilon 1/2 for replacing one record, as in the paper. SMOTE's learner is the product's
full-batch DP-SGD for adding or removing one record, with noise multiplied by the number of rows
that depend on one record (`studies.oversampling`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from sklearn.metrics import f1_score, roc_auc_score

from mechanisms.model.seeding import derive_seed
from studies import imbalance, oversampling, results
from studies.linear import Bagging, Objective, PlainLogistic
from studies.options import Data, Out, Seeds, numbers
from studies.tables import System, Table, frame_of

SET = "mammography"
SIZES, RATIOS, BAGS = "500,1000,2000,5000,10000", "4,8,16,32", (5, 10, 20)
EPSILON = 0.5
SMOTE_EPSILONS = (0.5, 1.0, 5.0)
"""Three values, as in the paper, which does not name them."""
_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "overlapping-hard": ("overlapping, majority vote", {"split": "subsamples", "vote": "hard"}),
    "overlapping-soft": ("overlapping, mean probability", {"split": "subsamples", "vote": "soft"}),
    "disjoint": ("disjoint, majority vote", {"split": "disjoint", "vote": "hard"}),
    "stratified": ("disjoint by class, majority vote", {"split": "stratified", "vote": "hard"}),
}
SYSTEMS: dict[str, tuple[str, System]] = {
    "plain": ("Logistic regression", PlainLogistic()),
    "private": ("DP logistic regression", Objective()),
    **{
        f"{kind}-{bags}": (f"{bags} bags, {title}", Bagging(bags=bags, **how))
        for kind, (title, how) in _KINDS.items()
        for bags in BAGS
    },
}
DRAWN = ("plain", "private", "overlapping-hard-10", "disjoint-10", "stratified-10")
"""Systems with bags that the picture shows."""
SMOTE = ("non-private", "non-private, SMOTE", "private", "private, SMOTE paid for")
TABLES = {
    "4 and 5: bags of uniform disjoint parts": ("overlapping-hard", "disjoint"),
    "6 and 7: bags of disjoint parts by class": ("overlapping-hard", "stratified"),
    "8 and 9: votes of overlapping bags": ("overlapping-hard", "overlapping-soft"),
}


def rare_of(size: int, ratio: float) -> int:
    """Returns the number of rare records among `size` records at this ratio.

    >>> rare_of(500, 32), rare_of(5000, 8)
    (15, 556)
    """
    return round(size / (ratio + 1))


def chosen(labels: np.ndarray, *, size: int, ratio: float, seed: int) -> np.ndarray:
    """Returns the indices of a subsample, each record once, in random order."""
    rng = np.random.default_rng(derive_seed(seed, f"subsample {size} {ratio:g}"))
    rare = rare_of(size, ratio)
    parts = [
        rng.choice(np.flatnonzero(labels == label), count, replace=False)
        for label, count in ((1, rare), (0, size - rare))
    ]
    return rng.permutation(np.concatenate(parts))


def existing(labels: np.ndarray, sizes: Sequence[float], ratios: Sequence[float]) -> list[Any]:
    """Returns pairs of size and ratio for which the set has enough records of both classes."""
    rare, rest = int((labels == 1).sum()), int((labels == 0).sum())
    return [
        (int(size), ratio)
        for ratio in ratios
        for size in sizes
        if rare_of(int(size), ratio) <= rare and size - rare_of(int(size), ratio) <= rest
    ]


def oversampled(
    features: np.ndarray, labels: np.ndarray, *, variant: str, epsilon: float | None, seed: int
) -> dict[str, float]:
    """Returns F1 and AUC on the held-out fifth, and the number of the learner's input rows that
    depend on one record.
    """
    rare, dimension = int((labels == 1).sum()), features.shape[1]
    rounds = max(1, round((len(labels) - 2 * rare) / rare)) if "SMOTE" in variant else 0
    bound = int(oversampling.most_neighbours_of(dimension, oversampling.K, minority_at_most=rare))
    rows = oversampling.smote(1.0, 0.0, neighbours=bound, rounds=rounds).rows if rounds else 1
    truth, scores = oversampling.held_out(
        features, labels, epsilon=epsilon, rounds=rounds, rows=rows, seed=seed
    )
    none: Any = 0
    return {
        "f1": float(f1_score(truth, scores > 0, zero_division=none)),
        "auc": float(roc_auc_score(truth, scores)),
        "rows": rows,
    }


def tables(rows: Sequence[results.Row], ratios: Sequence[float], sizes: Sequence[int]) -> str:
    """Returns the paper's tables 4 to 9 in Markdown: F1 by size, ± two standard
    errors over subsamples.
    """
    parts = []
    for ratio in ratios:
        ratio_rows = [row for row in rows if row["ratio"] == ratio]
        for title, kinds in TABLES.items():
            names = ["plain", "private"]
            names += [f"{kind}-{bags}" for bags in BAGS for kind in kinds]
            lines = [
                [SYSTEMS[name][0], *(results.figure(of(ratio_rows, name, size)) for size in sizes)]
                for name in names
            ]
            parts.append(f"## Tables {title}, r = {ratio:g}: F1 at ε {EPSILON:g}\n")
            parts.append(results.show(["system", *(f"n = {size:,}" for size in sizes)], lines))
    return "\n".join(parts)


def of(rows: Sequence[results.Row], system: str, size: int) -> list[float]:
    return [row["f1"] for row in rows if (row["system"], row["size"]) == (system, size)]


def line_of(row: results.Row) -> str:
    """Returns the name of a line with or without SMOTE, with its epsilon at the end
    if it has one.
    """
    return row["system"] + (f", ε {row['epsilon']:g}" if row["epsilon"] else "")


def draw(rows: Sequence[results.Row], file: Path, *, title: str, metric: str) -> None:
    """Plots a metric against the size of the subsample, one panel per ratio (figures 2 and 3)."""
    parts = {}
    for ratio in dict.fromkeys(row["ratio"] for row in rows):
        ratio_rows = [row for row in rows if row["ratio"] == ratio]
        sizes = sorted({row["size"] for row in ratio_rows})
        parts[f"r = {ratio:g}"] = {
            line: (
                sizes,
                [
                    [
                        row[metric]
                        for row in ratio_rows
                        if (row["line"], row["size"]) == (line, size)
                    ]
                    for size in sizes
                ],
            )
            for line in dict.fromkeys(row["line"] for row in ratio_rows)
        }
    made_at = results.commits(row.get("commit") for row in rows)
    x = "records of the subsample"
    results.panels(file, parts, title=title, x=x, log=True, made_at=made_at)


def run(
    data: Data,
    out: Out,
    sizes: Annotated[str, typer.Option(help="records per subsample, by comma")] = SIZES,
    ratios: Annotated[str, typer.Option(help="ratios majority/minority, by comma")] = RATIOS,
    seeds: Seeds = 10,
    smote_seeds: Annotated[int, typer.Option(help="number of subsamples with SMOTE")] = 5,
) -> Path:
    """Bags and SMOTE on subsamples of mammography (2025, tables 4 to 9, figures 2 and 3).

    Example: python -m studies subsamples --data imblearn --sizes 500,1000 --ratios 8 --out results
    """
    mammography: Table = imbalance.read_sets(data, [SET])[SET]
    frame = frame_of(data / f"{SET}.csv")
    labels, features = mammography.labels.numpy(), frame.drop(columns="label").to_numpy()
    low, high = features.min(0), features.max(0)
    places = existing(labels, numbers(sizes), numbers(ratios))
    bags: list[results.Row] = [
        {"size": size, "ratio": ratio, "system": system, "epsilon": EPSILON, "seed": seed}
        for seed in range(seeds)
        for size, ratio in places
        for system in SYSTEMS
    ]

    def bag(cell: Mapping[str, Any]) -> results.Row:
        size, ratio, seed = cell["size"], cell["ratio"], cell["seed"]
        rows = torch.from_numpy(chosen(labels, size=size, ratio=ratio, seed=seed))
        train, test = imbalance.split(mammography.take(rows), SET, seed)
        system = SYSTEMS[cell["system"]][1]
        return imbalance.measure(system, train, test, cell["epsilon"], seed)

    found = results.fill(out / "subsamples.csv", bags, bag)
    shown = sorted({size for size, _ in places})
    text = tables(found, numbers(ratios), shown)
    (out / "subsamples-tables.md").write_text(text, encoding="utf-8")
    bags_drawn = [
        row | {"line": SYSTEMS[row["system"]][0]} for row in found if row["system"] in DRAWN
    ]
    title = f"Bags at ε {EPSILON:g}: F1, mean ± two standard errors"
    draw(bags_drawn, out / "subsamples-bags.svg", title=title, metric="f1")
    smote: list[results.Row] = [
        {"size": size, "ratio": ratio, "system": system, "epsilon": epsilon, "seed": seed}
        for seed in range(smote_seeds)
        for size, ratio in places
        for system in SMOTE
        for epsilon in ([None] if system.startswith("non-private") else SMOTE_EPSILONS)
    ]

    def paid(cell: Mapping[str, Any]) -> results.Row:
        size, ratio, seed = cell["size"], cell["ratio"], cell["seed"]
        rows = chosen(labels, size=size, ratio=ratio, seed=seed)
        scaled = (features[rows] - low) / (high - low)
        return oversampled(
            scaled, labels[rows], variant=cell["system"], epsilon=cell["epsilon"], seed=seed
        )

    found = results.fill(out / "subsamples-smote.csv", smote, paid)
    labelled_rows = [row | {"line": line_of(row)} for row in found]
    for metric, what in (("f1", "F1"), ("auc", "AUC")):
        title = f"SMOTE, paid for by its learner: {what}, mean ± two standard errors"
        draw(labelled_rows, out / f"subsamples-smote-{metric}.svg", title=title, metric=metric)
    return out / "subsamples-tables.md"
