"""Regions that eight classifiers label positive (Rosenblatt et al. 2025, figure 4; 2024, figure 2).

Two Gaussians of `studies.mixture`, 1,000 records, a tenth of them positive. The plane is restricted
to [-8, 12] in both coordinates, which is public and contains nearly all records. The upper row is
without privacy, the lower one at epsilon 1 for replacing one record and delta 1e-5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from scipy.stats import multivariate_normal
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from studies import imbalance, mixture, results
from studies.options import Out, Seeds, names
from studies.tables import Columns, Fit, Table

LOW, HIGH, CELLS, EPSILON, DELTA = -8.0, 12.0, 80, 1.0, 1e-5
TEST = 4000
SYSTEMS = (
    "plain-logistic",
    "smote-trees",
    "plain-trees-weighted",
    "plain-ft-transformer",
    "objective",
    "weighted-objective-paper",
    "gem",
    "ft-transformer",
)
"""The paper's systems, by their names in `imbalance`."""


def drawn(records: int, seed: int) -> Table:
    """Returns records of the mixture, scaled to [0, 1] by the public bounds of the plane."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(records) < mixture.SHARE).astype(np.int64)
    points = np.array(mixture.MEANS)[labels] + mixture.SPREAD * rng.standard_normal((records, 2))
    scaled = ((points - LOW) / (HIGH - LOW)).clip(0, 1)
    return Table(torch.from_numpy(scaled), torch.from_numpy(labels), Columns((1, 1)))


def grid() -> tuple[np.ndarray, torch.Tensor]:
    """Returns the centres of the cells along one side, and all points in [0, 1], row by row."""
    side = (np.arange(CELLS) + 0.5) / CELLS
    points = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    return side, torch.from_numpy(points)


def fitted(name: str, *, seed: int) -> Fit:
    system = imbalance.SYSTEMS[name][1]
    return system(drawn(mixture.RECORDS, seed), EPSILON, DELTA, seed)


def figures(fit: Fit) -> dict[str, float | None]:
    """Returns AUC and balanced accuracy on records that no fit has seen, and the
    share labelled positive.
    """
    test = drawn(TEST, 10_000)
    scores = fit.scores(test.features)
    truth, said = test.labels.numpy(), scores.argmax(1).numpy()
    return {
        "auc": float(roc_auc_score(truth, scores[:, 1].exp().numpy())),
        "balanced_accuracy": float(balanced_accuracy_score(truth, said)),
        "called_positive": float(said.mean()),
        "replaced": fit.claim.epsilon_replaced,
    }


def draw(fits: Mapping[str, Fit], rows: Sequence[results.Row], file: Path) -> None:
    """Draws the areas labelled positive, some of the records, and both Gaussians at
    two standard deviations.
    """
    drawing = results.empty(12.0, 6.4)
    side, points = grid()
    place = side * (HIGH - LOW) + LOW
    sample = drawn(mixture.RECORDS, 0).take(torch.arange(150))
    xy = sample.features.numpy() * (HIGH - LOW) + LOW
    for number, (name, fit) in enumerate(fits.items(), start=1):
        axes = drawing.add_subplot(2, -(-len(fits) // 2), number)
        positive = fit.scores(points).argmax(1).reshape(CELLS, CELLS).numpy()
        axes.contourf(place, place, positive, [-0.5, 0.5, 1.5], colors=["#cfe2f3", "#f9d5d3"])
        for label, colour in enumerate(("#0072B2", "#D55E00")):
            class_points = xy[sample.labels.numpy() == label]
            axes.plot(class_points[:, 0], class_points[:, 1], ".", color=colour, markersize=2)
            middle = np.array(mixture.MEANS[label])
            density = multivariate_normal(middle, mixture.SPREAD**2 * np.eye(2))
            at = density.pdf(np.stack(np.meshgrid(place, place), axis=-1))
            level = density.pdf(middle + np.array([2 * mixture.SPREAD, 0]))
            axes.contour(place, place, at, [level], colors="black", linestyles=":", linewidths=0.8)
        auc = [row["auc"] for row in rows if row["system"] == name]
        axes.set_title(f"{imbalance.SYSTEMS[name][0]}\nAUC {results.figure(auc)}", fontsize=7)
        axes.tick_params(labelsize=6)
    results.write_svg(drawing, file)


def run(
    out: Out,
    systems: Annotated[str, typer.Option(help="names from `imbalance`, by comma")] = "all",
    seeds: Seeds = 5,
) -> Path:
    """Regions that eight classifiers label positive (2025, figure 4).

    The picture shows the first seed, its AUC is over all seeds.

    Example: python -m studies boundaries --systems objective,plain-logistic --out results
    """
    chosen = names(systems, SYSTEMS, "--systems")
    fits: dict[tuple[str, int], Fit] = {}

    def measure(cell: Mapping[str, Any]) -> results.Row:
        fit = fits[cell["system"], cell["seed"]] = fitted(cell["system"], seed=cell["seed"])
        return figures(fit)

    wanted: list[results.Row] = [
        {"system": name, "seed": seed} for seed in range(seeds) for name in chosen
    ]
    rows = results.fill(out / "boundaries.csv", wanted, measure)
    first = {name: fits.get((name, 0)) or fitted(name, seed=0) for name in chosen}
    draw(first, rows, out / "boundaries.svg")
    lines = [
        [
            imbalance.SYSTEMS[name][0],
            *(
                results.figure([row[metric] for row in rows if row["system"] == name])
                for metric in ("auc", "balanced_accuracy", "called_positive")
            ),
        ]
        for name in chosen
    ]
    head = ["system", "AUC", "balanced accuracy", "share called positive"]
    page = out / "boundaries-tables.md"
    title = f"## At ε {EPSILON:g}, δ {DELTA:g}: means ± two standard errors\n\n"
    page.write_text(title + results.show(head, lines), encoding="utf-8")
    return page
