#!/usr/bin/env python
"""Fits diffprivlib's LogisticRegression and GaussianNB on the splits of a suite, for the page of `autocoder imbalance`.

    python scripts/diffprivlib_cells.py --data FOLDER --results docs/imbalance.md [--seeds 10]

diffprivlib 0.6.6 cannot be imported beside scikit-learn 1.9 (its trees take a name that is gone), so that it runs in an
environment of its own, which uv makes. Features are in [0, 1]: their norm is at most the root of their number. C is 1,
the library's default, or by the rule of this project's objective perturbation, lambda = d / (8 n epsilon), C = 1 / (n
lambda).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tasks.imbalance import suite as suites
from tasks.imbalance.cell import Cell, evaluate, split
from tasks.imbalance.page import references_beside
from tasks.imbalance.run import save_cells

_PACKAGES = ("diffprivlib==0.6.6", "scikit-learn==1.6.1", "numpy==2.2.6", "scipy==1.15.3", "setuptools==80.9.0")
_UV = Path(sys.executable).with_name("uv")
_WORKER = """
import json, sys, time, warnings
import numpy as np
from diffprivlib.models import GaussianNB, LogisticRegression
from diffprivlib.utils import PrivacyLeakWarning

warnings.simplefilter("ignore")
warnings.simplefilter("error", PrivacyLeakWarning)
given = json.loads(sys.argv[1])
for name in given["sets"]:
    data = np.load(f"{given['folder']}/{name}.npz")
    x, y = data["features"], data["labels"]
    d = x.shape[1]
    for epsilon in given["epsilons"]:
        for seed in range(given["seeds"]):
            train, test = data[f"train{seed}"], data[f"test{seed}"]
            models = {
                "logistic": LogisticRegression(epsilon=epsilon, data_norm=d**0.5, C=1.0, max_iter=1000),
                "logistic-rule": LogisticRegression(epsilon=epsilon, data_norm=d**0.5, C=8 * epsilon / d, max_iter=999),
                "naive-bayes": GaussianNB(epsilon=epsilon, bounds=(np.zeros(d), np.ones(d))),
            }
            for branch, model in models.items():
                started = time.perf_counter()
                model.fit(x[train], y[train])
                row = {"set": name, "branch": branch, "epsilon": epsilon, "seed": seed}
                row["seconds"] = time.perf_counter() - started
                row["probability"] = model.predict_proba(x[test])[:, list(model.classes_).index(1)].tolist()
                print(json.dumps(row))
"""


def main() -> None:
    """Writes the splits, fits in the other environment, and scores as the suite does."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the sets of the suite")
    parser.add_argument("--results", type=Path, required=True, help="the page beside which the cells are written")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    suite = suites.load(suites.STANDARD)
    tables = suites.read_sets(suite, options.data, tuple(suite.sets))
    splits = {
        name: [split(table, seed, suite.test_share) for seed in range(options.seeds)] for name, table in tables.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, table in tables.items():
            rows: dict[str, Any] = {f"train{seed}": train for seed, (train, _) in enumerate(splits[name])}
            rows |= {f"test{seed}": test for seed, (_, test) in enumerate(splits[name])}
            features, labels = table.features.double().numpy(), table.labels.numpy()
            np.savez(Path(folder) / f"{name}.npz", features=features, labels=labels, **rows)
        given = {"folder": folder, "sets": list(tables), "epsilons": suite.epsilons, "seeds": options.seeds}
        packages = [word for package in _PACKAGES for word in ("--with", package)]
        command = [str(_UV), "run", "--isolated", "--no-project", *packages, "python", "-c", _WORKER, json.dumps(given)]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    cells: list[Cell] = []
    for line in printed.splitlines():
        row = json.loads(line)
        p = torch.tensor(row.pop("probability"), dtype=torch.float64)
        scores = torch.stack([1 - p, p], 1).clamp_min(1e-300).log()
        row["branch"] = f"diffprivlib-{row['branch']}"
        key = f"{row['set']} {row['branch']} {row['epsilon']} {row['seed']}"
        labels = tables[row["set"]].labels[splits[row["set"]][row["seed"]][1]].numpy()
        stated = {"kind": "formal", "relation": "replace-one", "claimed": row["epsilon"], "delta": 0.0}
        cells.append(Cell.model_validate({"key": key, **row, **stated, **evaluate(labels, scores)}))
    save_cells(references_beside(options.results), cells)


if __name__ == "__main__":
    main()
