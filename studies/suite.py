"""The sets of the imbalance paper (Rosenblatt et al. 2025, table 11), each file checked against its
description, and the effect of logistic regression's penalty on them (tables 13 to 20, row 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from studies import imbalance, results
from studies.options import Data, Out, Seeds, Sets, names
from studies.tables import Table, frame_of

INVERSE_PENALTIES = (0.1, 1.0, 10.0, 1e6)
"""scikit-learn's C; 1 is its default."""
SCALES = {"as in the file": FunctionTransformer, "standardised": StandardScaler}


def described(data: Path, name: str) -> results.Row:
    """Reads a set and returns its row of table 11. Refuses a file that does not
    match its description.
    """
    expected = imbalance.suite()["sets"][name]
    table = imbalance.read_sets(data, [name])[name]
    rare = int(table.labels.sum())
    return {
        "set": name,
        "records": len(table),
        "minority": rare,
        "ratio": (len(table) - rare) / rare,
        "columns_of_the_file": frame_of(data / f"{name}.csv").shape[1] - 1,
        "attributes": len(table.columns),
        "ratio_published": expected["published"]["ratio"],
        "records_published": expected["published"]["records"],
        "features_published": expected["published"]["features"],
    }


def sets(data: Data, out: Out) -> Path:
    """The eight sets, each file checked against its description (2025, table 11).

    Example: python -m studies sets --data imblearn --out results
    """
    rows = [described(data, name) for name in imbalance.suite()["sets"]]
    results.save(out / "sets.csv", [row | {"commit": results.commit()} for row in rows])
    return out / "sets.csv"


def penalised(table: Table, name: str, *, inverse_penalty: float, scale: str, seed: int) -> Any:
    """Returns F1 and AUC of scikit-learn's logistic regression on the test fifth of a split."""
    train, test = imbalance.split(table, name, seed)
    model = make_pipeline(
        SCALES[scale](), LogisticRegression(C=inverse_penalty, max_iter=5000)
    ).fit(train.features.numpy(), train.labels.numpy())
    truth, features = test.labels.numpy(), test.features.numpy()
    none: Any = 0
    return {
        "f1": float(f1_score(truth, model.predict(features), zero_division=none)),
        "auc": float(roc_auc_score(truth, model.decision_function(features))),
    }


def regularisation(data: Data, out: Out, sets: Sets = "all", seeds: Seeds = 10) -> Path:
    """F1 of logistic regression by penalty, compared with the paper's (2025, tables 13 to 20).

    Features are as in the file, or standardised. C is scikit-learn's. With C = 1 and features as in
    the file, these are scikit-learn's defaults.

    Example: python -m studies regularisation --data imblearn --sets ecoli --out results
    """
    chosen = names(sets, imbalance.suite()["sets"], "--sets")
    imbalance.read_sets(data, chosen)
    loaded = {name: raw(data, name) for name in chosen}
    wanted: list[results.Row] = [
        {"set": name, "scale": scale, "C": value, "seed": seed}
        for name in chosen
        for scale in SCALES
        for value in INVERSE_PENALTIES
        for seed in range(seeds)
    ]

    def measure(cell: Mapping[str, Any]) -> results.Row:
        return penalised(
            loaded[cell["set"]],
            cell["set"],
            inverse_penalty=cell["C"],
            scale=cell["scale"],
            seed=cell["seed"],
        )

    rows = results.fill(out / "regularisation.csv", wanted, measure)
    published, lines = imbalance.suite()["published"]["f1_without_privacy"], []
    for name in chosen:
        set_rows = [row for row in rows if row["set"] == name]
        f1 = [
            results.figure([r["f1"] for r in set_rows if (r["scale"], r["C"]) == (scale, value)])
            for scale in SCALES
            for value in INVERSE_PENALTIES
        ]
        lines.append([name, f"{published[name][0]:.2f}", *f1])
    head = [f"C {value:g}, {scale}" for scale in SCALES for value in INVERSE_PENALTIES]
    page = out / "regularisation-tables.md"
    title = "## F1 of logistic regression, ± two standard errors over splits\n\n"
    page.write_text(title + results.show(["set", "paper", *head], lines), encoding="utf-8")
    return page


def raw(data: Path, name: str) -> Table:
    """Returns the columns of the file unchanged: they are not scaled by public bounds."""
    checked, frame = imbalance.read_sets(data, [name])[name], frame_of(data / f"{name}.csv")
    features = torch.from_numpy(frame.drop(columns="label").to_numpy(dtype=float))
    return Table(features, checked.labels, checked.columns)
