"""Tables of a suite's cells: figures with spread, ranks beside published ones, orderings answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """The cells of a run, by branch and place."""

    all: Sequence[Cell]

    @property
    def seeds(self) -> int:
        """The most seeds that any branch has."""
        return len({cell.seed for cell in self.all})

    def of(self, branch: str, at: At) -> list[Cell]:
        """Over seeds; a branch without protection has the same at every epsilon."""
        name, epsilon = at
        own = [cell for cell in self.all if cell.branch == branch and cell.set == name]
        return [cell for cell in own if cell.epsilon in (None, epsilon)]

    def mean(self, branch: str, at: At, metric: str) -> float | None:
        """Over seeds; None where there is none."""
        values = [getattr(cell, metric) for cell in self.of(branch, at)]
        return float(np.mean(values)) if values else None


def spread(values: Sequence[float]) -> str:
    """Mean ± sample standard deviation."""
    if not values:
        return "–"
    std = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{std}"


def by_set(cells: Cells, branches: Mapping[str, Branch], name: str, epsilon: float) -> Table:
    """All figures of one set at one epsilon."""
    metrics = (*METRICS, "average_precision")
    rows = []
    for branch, rival in branches.items():
        own = cells.of(branch, (name, epsilon))
        if own:
            figures = [spread([getattr(cell, metric) for cell in own]) for metric in metrics]
            rows.append([rival.title, relation(own[0]), *figures, f"{np.mean([cell.seconds for cell in own]):.2f}"])
    return ["system", "neighbours", *(NAMES[metric] for metric in metrics), "seconds"], rows


def relation(cell: Cell) -> str:
    """What neighbours are, and delta: a table that mixes them has to say so."""
    if cell.kind == "none":
        return "none: not private"
    return f"{cell.relation}, δ {'0' if not cell.delta else '1/n²'}"


def ranks(cells: Cells, branches: Sequence[str], metric: str, places: Iterable[At]) -> dict[str, float] | None:
    """Mean rank of each branch over the places that all have, 1 the best, ties averaged. None: no such place.

    Raises:
        AssertionError: ranks of a place do not sum to k (k + 1)/2.
    """
    k, each = len(branches), []
    for at in places:
        means = [cells.mean(branch, at, metric) for branch in branches]
        if None not in means:
            own = rankdata([-round(mean, 12) for mean in means if mean is not None])
            assert abs(own.sum() - k * (k + 1) / 2) < 1e-9
            each.append(own)
    return dict(zip(branches, np.mean(each, axis=0).tolist(), strict=True)) if each else None


def common(cells: Cells, branches: Iterable[str], places: Iterable[At]) -> int:
    """Places that all of these branches have."""
    own = list(branches)
    return sum(all(cells.of(branch, at) for branch in own) for at in places)


def rank_table(
    cells: Cells,
    branches: Mapping[str, Branch],
    places: Sequence[At],
    *,
    published: Mapping[str, Mapping[str, float]] | None = None,
) -> Table:
    """Mean ranks, with the published ones in brackets, and the sum of each column."""
    by_metric = {metric: ranks(cells, list(branches), metric, places) for metric in METRICS}
    rows = []
    for name, branch in branches.items():
        row = [branch.title]
        for metric in METRICS:
            own = by_metric[metric]
            said = "–" if own is None else f"{own[name]:.2f}"
            other = (published or {}).get(name, {}).get(metric)
            row.append(said if published is None else f"{said} ({'–' if other is None else f'{other:.2f}'})")
        rows.append(row)
    sums = [f"{sum(own.values()):.2f}" if (own := by_metric[metric]) else "–" for metric in METRICS]
    return ["system", *(NAMES[metric] for metric in METRICS)], [*rows, ["sum", *sums]]


def ahead(cells: Cells, branches: Mapping[str, Branch], places: Sequence[At], rival: str) -> list[str]:
    """Of each branch, the metrics in which its mean rank among all is better than the rival's."""
    by_metric = {metric: ranks(cells, list(branches), metric, places) for metric in METRICS}
    lines = []
    for name, branch in branches.items():
        better = [NAMES[m] for m in METRICS if (own := by_metric[m]) and name != rival and own[name] < own[rival]]
        if name != rival:
            lines.append(
                f"{branch.title}: {len(better)} of {len(METRICS)}" + (f" ({', '.join(better)})" if better else "")
            )
    return lines


def gap(cells: Cells, first: str, second: str, metric: str, places: Sequence[At]) -> list[float]:
    """By seed, the mean over the places that both have of first minus second; seeds with fewer places than the most
    are left out, since their mean is of something else."""
    gaps: list[tuple[int, float]] = []
    for seed in sorted({cell.seed for cell in cells.all}):
        own = Cells([cell for cell in cells.all if cell.seed == seed])
        pairs = [(own.mean(first, at, metric), own.mean(second, at, metric)) for at in places]
        both = [a - b for a, b in pairs if a is not None and b is not None]
        if both:
            gaps.append((len(both), float(np.mean(both))))
    most = max((count for count, _ in gaps), default=0)
    return [mean for count, mean in gaps if count == most]


def answer(gaps: Sequence[float], expect: Callable[[float], bool] = lambda mean: mean > 0) -> str:
    """*Holds*, *within the spread* or *does not hold*: a mean gap counts where it exceeds two standard errors."""
    if len(gaps) < 2:
        return "not answered: fewer than two seeds"
    mean, error = float(np.mean(gaps)), float(np.std(gaps, ddof=1)) / len(gaps) ** 0.5
    said = f"{mean:+.3f} ± {error:.3f}"
    if abs(mean) <= 2 * error:
        return f"within the spread ({said})"
    return f"holds ({said})" if expect(mean) else f"does not hold ({said})"


@dataclass(frozen=True)
class Point:
    """One thing that the paper says: the first is above the second in these metrics."""

    said: str
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
    """Every point that both systems of are there, metric by metric."""
    rows = [
        [point.said, NAMES[metric], answer(gap(cells, point.first, point.second, metric, places))]
        for point in POINTS
        if point.first in branches and point.second in branches
        for metric in point.metrics
    ]
    return ["the paper's ordering", "in", "here"], rows


def sanity(cells: Cells, published: Mapping[str, Mapping[str, float]], epsilon: float) -> Table:
    """F1 of plain XGBoost beside the paper's and a prototype's."""
    rows = []
    for name, figures in published.items():
        own = cells.mean("plain-trees", (name, epsilon), "f1")
        if own is not None:
            near = "yes" if abs(own - figures["ours"]) <= 0.05 else "**no**"
            rows.append([name, f"{own:.3f}", f"{figures['ours']:.3f}", f"{figures['paper']:.2f}", near])
    return ["set", "here", "prototype", "paper", "within 0.05 of the prototype"], rows


def beside_prototypes(
    cells: Cells, branches: Mapping[str, Branch], prototypes: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]
) -> Table:
    """AUC, F1 and worst class beside a prototype's, and whether they reach it: within two standard deviations over
    seeds, or above."""
    rows = []
    for name, by_epsilon in prototypes.items():
        for epsilon, by_branch in by_epsilon.items():
            for branch, figures in by_branch.items():
                own = cells.of(branch, (name, float(epsilon)))
                if not own or branch not in branches:
                    continue
                row = [name, str(epsilon), branches[branch].title, str(len(own))]
                for metric, figure in zip(("auc", "f1", "worst_class_accuracy"), figures, strict=True):
                    values = [getattr(cell, metric) for cell in own]
                    row.append(f"{spread(values)} ({figure:.3f}){reached(values, figure)}")
                rows.append(row)
    return ["set", "ε", "system", "seeds", "AUC", "F1", "worst class"], rows


def reached(values: Sequence[float], figure: float) -> str:
    """Nothing; *below* where the mean is more than two standard deviations under the figure; one seed says nothing."""
    if len(values) < 2:
        return ""
    return " **below**" if np.mean(values) < figure - 2 * np.std(values, ddof=1) else ""


def over_epsilon(cells: Cells, branches: Mapping[str, Branch], sets: Sequence[str], epsilons: Sequence[float],
                 metric: str) -> Table:  # fmt: skip
    """The mean over all sets at each epsilon."""
    rows = []
    for name, branch in branches.items():
        row = [branch.title]
        for epsilon in epsilons:
            means = [cells.mean(name, (data, epsilon), metric) for data in sets]
            row.append("–" if None in means else f"{np.mean([m for m in means if m is not None]):.3f}")
        rows.append(row)
    return [NAMES[metric], *(f"ε {epsilon:g}" for epsilon in epsilons)], rows
