"""Tabulates a suite's cells: figures with spread, ranks next to published ones, tests of orderings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import rankdata

from tasks.branches.branch import Branch
from tasks.imbalance.cell import METRICS, Cell
from tasks.pages.render import Table

NAMES = {
    "auc": "AUC",
    "f1": "F1",
    "balanced_accuracy": "balanced accuracy",
    "recall": "recall",
    "worst_class_accuracy": "worst class",
    "average_precision": "average precision",
}
At = tuple[str, float | None]
"""Set and epsilon."""


@dataclass(frozen=True)
class Cells:
    """Holds the cells of a run, by branch and place."""

    all: Sequence[Cell]

    @property
    def seeds(self) -> int:
        """Returns the number of seeds of all branches together."""
        return len({cell.seed for cell in self.all})

    def of(self, branch: str, at: At) -> list[Cell]:
        """Returns the cells of a branch over seeds; without protection the same at every epsilon."""
        name, epsilon = at
        cells = [cell for cell in self.all if cell.branch == branch and cell.set == name]
        return [cell for cell in cells if cell.epsilon in (None, epsilon)]

    def mean(self, branch: str, at: At, metric: str) -> float | None:
        """Returns the mean of a metric over seeds; None without cells."""
        values = [getattr(cell, metric) for cell in self.of(branch, at)]
        return float(np.mean(values)) if values else None


def spread(values: Sequence[float]) -> str:
    """Formats mean ± sample standard deviation."""
    if not values:
        return "–"
    std = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{std}"


def by_set(cells: Cells, titles: Mapping[str, str], name: str, epsilon: float) -> Table:
    """Tabulates all figures of one set at one epsilon, for branches by their titles."""
    metrics = (*METRICS, "average_precision")
    rows = []
    for branch, title in titles.items():
        over_seeds = cells.of(branch, (name, epsilon))
        if over_seeds:
            figures = [spread([getattr(cell, metric) for cell in over_seeds]) for metric in metrics]
            seconds = f"{np.mean([cell.seconds for cell in over_seeds]):.2f}"
            rows.append([title, replaced(over_seeds), relation(over_seeds[0]), *figures, seconds])
    return ["system", "ε, one replaced", "δ, and the claim", *(NAMES[metric] for metric in metrics), "seconds"], rows


def relation(cell: Cell) -> str:
    """Names delta and, where the claim is for another relation than one record replaced, its neighbours and epsilon."""
    if cell.kind == "none":
        return "none: not private"
    own = "" if cell.relation == "replace-one" else f" ({cell.relation}: ε {cell.claimed:.2g})"
    return f"δ {'0' if not cell.delta else '1/n²'}{own}"


def replaced(cells: Sequence[Cell]) -> str:
    """Formats the epsilon of one record replaced that these cells cost at most; a dash without protection."""
    costs = [cell.replaced for cell in cells if cell.replaced is not None]
    return f"{max(costs):.3g}" if costs else "–"


def ranks(cells: Cells, branches: Sequence[str], metric: str, places: Iterable[At]) -> dict[str, float] | None:
    """Returns the mean rank of each branch over the places that all have, 1 the best, ties averaged; None: no place."""
    each = []
    for at in places:
        means = [cells.mean(branch, at, metric) for branch in branches]
        if None not in means:
            each.append(rankdata([-round(mean, 12) for mean in means if mean is not None]))
    return dict(zip(branches, np.mean(each, axis=0).tolist(), strict=True)) if each else None


def common(cells: Cells, branches: Iterable[str], places: Iterable[At]) -> int:
    """Counts the places that all of these branches have."""
    names = list(branches)
    return sum(all(cells.of(branch, at) for branch in names) for at in places)


def rank_table(
    cells: Cells,
    branches: Mapping[str, Branch],
    places: Sequence[At],
    *,
    published: Mapping[str, Mapping[str, float]] | None = None,
) -> Table:
    """Tabulates mean ranks, with the published ones in brackets, and the sum of each column."""
    by_metric = {metric: ranks(cells, list(branches), metric, places) for metric in METRICS}
    rows = []
    for name, branch in branches.items():
        row = [branch.title]
        for metric in METRICS:
            means = by_metric[metric]
            rank = "–" if means is None else f"{means[name]:.2f}"
            other = (published or {}).get(name, {}).get(metric)
            row.append(rank if published is None else f"{rank} ({'–' if other is None else f'{other:.2f}'})")
        rows.append(row)
    sums = [f"{sum(means.values()):.2f}" if (means := by_metric[metric]) else "–" for metric in METRICS]
    return ["system", *(NAMES[metric] for metric in METRICS)], [*rows, ["sum", *sums]]


def gap(cells: Cells, first: str, second: str, metric: str, places: Sequence[At]) -> list[float]:
    """Returns by seed the mean of first minus second over the places that both have; leaves out seeds with fewer places
    than the most, whose mean is not comparable."""
    gaps: list[tuple[int, float]] = []
    for seed in sorted({cell.seed for cell in cells.all}):
        of_seed = Cells([cell for cell in cells.all if cell.seed == seed])
        pairs = [(of_seed.mean(first, at, metric), of_seed.mean(second, at, metric)) for at in places]
        both = [a - b for a, b in pairs if a is not None and b is not None]
        if both:
            gaps.append((len(both), float(np.mean(both))))
    most = max((count for count, _ in gaps), default=0)
    return [mean for count, mean in gaps if count == most]


def answer(gaps: Sequence[float]) -> str:
    """Answers *holds*, *within the spread* or *does not hold*: a mean gap counts if it exceeds two standard errors."""
    if len(gaps) < 2:
        return "not answered: fewer than two seeds"
    mean, error = float(np.mean(gaps)), float(np.std(gaps, ddof=1)) / len(gaps) ** 0.5
    figures = f"{mean:+.3f} ± {error:.3f}"
    if abs(mean) <= 2 * error:
        return f"within the spread ({figures})"
    return f"holds ({figures})" if mean > 0 else f"does not hold ({figures})"


@dataclass(frozen=True)
class Point:
    """Holds one ordering of the paper: the first is above the second in these metrics."""

    text: str
    first: str
    second: str
    metrics: tuple[str, ...]


POINTS = (
    Point("GEM + XGBoost above DP logistic regression", "gem", "objective", METRICS),
    Point(
        "GEM + XGBoost above weighted DP logistic regression but for recall",
        "gem",
        "weighted-objective-paper",
        tuple(metric for metric in METRICS if metric != "recall"),
    ),
    Point("weighted above plain DP logistic regression where classes count alike", "weighted-objective-paper",
          "objective", ("balanced_accuracy", "recall", "worst_class_accuracy")),
    Point("… and below it in AUC", "objective", "weighted-objective-paper", ("auc",)),
    Point("weighted DP logistic regression above FTTransformer", "weighted-objective-paper", "ft-transformer",
          ("f1", "balanced_accuracy")),
    Point("GEM above PrivBayes before XGBoost", "gem", "privbayes", METRICS),
    Point("one DP logistic regression above bags of it", "objective", "bagging", ("f1", "auc")),
)  # fmt: skip


def points(cells: Cells, branches: Mapping[str, Branch], places: Sequence[At]) -> Table:
    """Tabulates every ordering whose two systems have cells, metric by metric."""
    rows = [
        [point.text, NAMES[metric], answer(gap(cells, point.first, point.second, metric, places))]
        for point in POINTS
        if point.first in branches and point.second in branches
        for metric in point.metrics
    ]
    return ["the paper's ordering", "in", "here"], rows


def sanity(cells: Cells, published: Mapping[str, float], epsilon: float) -> Table:
    """Tabulates F1 of plain XGBoost next to the paper's."""
    means = {name: cells.mean("plain-trees", (name, epsilon), "f1") for name in published}
    rows = [[name, f"{mean:.3f}", f"{published[name]:.2f}"] for name, mean in means.items() if mean is not None]
    return ["set", "here", "paper"], rows


def over_epsilon(cells: Cells, titles: Mapping[str, str], sets: Sequence[str], epsilons: Sequence[float],
                 metric: str) -> Table:  # fmt: skip
    """Tabulates the mean over all sets at each epsilon."""
    rows = []
    for name, title in titles.items():
        row = [title]
        for epsilon in epsilons:
            means = [cells.mean(name, (data, epsilon), metric) for data in sets]
            row.append("–" if None in means else f"{np.mean([m for m in means if m is not None]):.3f}")
        rows.append(row)
    return [NAMES[metric], *(f"ε {epsilon:g}" for epsilon in epsilons)], rows
