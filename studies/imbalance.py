"""Private learning under class imbalance: every system on every set at every epsilon (Rosenblatt et al. 2025, tables 3,
4 to 9 and 13 to 20).

Epsilon is for one record *replaced*, whatever neighbours a claim is for; delta is 1/n^2 where it is not 0. Splits
follow from the seed, noise does not.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from scipy.stats import rankdata
from sklearn.metrics import average_precision_score, f1_score, precision_score, recall_score, roc_auc_score
from sklearn.model_selection import train_test_split

from mechanisms.errors import MechanismError
from mechanisms.model.seeding import derive_seed
from studies import results
from studies.linear import Bagging, Objective, PlainLogistic, WeightedDescent
from studies.results import Row
from studies.synthetic import BayesTable, Gem, PlainTrees, PrivBayes
from studies.tables import System, Table, read
from studies.transformer import FtTransformer

EPSILONS = (0.05, 0.1, 0.5, 1, 5)
TEST_SHARE = 0.2
NAMES = {
    "auc": "AUC",
    "f1": "F1",
    "balanced_accuracy": "balanced accuracy",
    "recall": "recall",
    "worst_class_accuracy": "worst class",
}
SYSTEMS: dict[str, tuple[str, System]] = {
    "plain-logistic": ("Logistic regression", PlainLogistic()),
    "plain-logistic-weighted": ("Weighted logistic regression", PlainLogistic(balanced=True)),
    "plain-trees": ("XGBoost", PlainTrees()),
    "plain-trees-weighted": ("Weighted XGBoost", PlainTrees(balance="weights")),
    "smote-trees": ("SMOTE + XGBoost", PlainTrees(balance="smote")),
    "objective": ("DP logistic regression", Objective()),
    "weighted-objective-paper": (
        "DP weighted logistic regression, paper's constants",
        Objective(weights="frequencies", constants="paper"),
    ),
    "weighted-objective": ("DP weighted logistic regression, tight constants", Objective(weights="frequencies")),
    "weighted-descent": ("Weighted DP gradient descent", WeightedDescent()),
    "bayes-table": ("DP naive Bayes table + XGBoost", BayesTable()),
    "privbayes": ("PrivBayes + XGBoost", PrivBayes()),
    "gem": ("GEM + XGBoost", Gem()),
    "bagging-subsamples": ("Bags of DP logistic regression, overlapping", Bagging(split="subsamples")),
    "bagging": ("Bags of DP logistic regression, disjoint", Bagging()),
    "bagging-hard": ("Bags of DP logistic regression, disjoint, majority vote", Bagging(vote="hard")),
    "bagging-stratified": ("Bags of DP logistic regression, stratified", Bagging(split="stratified")),
    "ft-transformer": ("FTTransformer by class-weighted DP-SGD", FtTransformer()),
}
PLAIN = tuple(name for name in SYSTEMS if name.startswith("plain") or name == "smote-trees")
LIMITS: dict[str, dict[str, Any]] = {
    **{name: {"epsilons": (0.5, 1, 5)} for name in SYSTEMS if name.startswith("bagging")},
    "ft-transformer": {"seeds": 2, "epsilons": (1, 5), "sets": ("car_eval_34",)},  # a minute a fit
}
"""Where a full run would take too long."""


def suite() -> dict[str, Any]:
    return yaml.safe_load((Path(__file__).parent / "suite.yaml").read_text(encoding="utf-8"))


def read_sets(folder: Path, names: Iterable[str]) -> dict[str, Table]:
    described = suite()["sets"]
    return {name: read(folder / f"{name}.csv", described[name]) for name in names}


def split(table: Table, name: str, seed: int, *, minority: int | None = None) -> tuple[Table, Table]:
    """Training and test records, a fifth, by label with the seed.

    Args:
        minority: training records of label 1 that stay, the first in the split's random order; None: all.
    """
    chosen = derive_seed(seed, "imbalance", name) % (1 << 32)
    halves = train_test_split(
        np.arange(len(table)), test_size=TEST_SHARE, stratify=table.labels.numpy(), random_state=chosen
    )
    train, test = (torch.from_numpy(np.asarray(half)) for half in halves)
    if minority is not None:
        rare = train[table.labels[train] == 1]
        if len(rare) < minority:
            raise MechanismError(f"{minority} training records of label 1 are asked for, and the split has {len(rare)}")
        train = train[~torch.isin(train, rare[minority:])]
    return table.take(train), table.take(test)


def measure(system: System, train: Table, test: Table, epsilon: float | None, seed: int) -> Row:
    delta, started = len(train) ** -2.0, time.perf_counter()
    fit = system(train, epsilon or 0.0, delta, seed)
    seconds, claim = time.perf_counter() - started, fit.claim
    return {
        **evaluate(test.labels.numpy(), fit.scores(test.features)),
        "seconds": round(seconds, 3),
        "relation": "" if claim.guarantee_kind == "none" else claim.neighbouring_relation,
        "claimed": claim.epsilon,
        "replaced": claim.epsilon_replaced,
        "delta": claim.delta,
    }


def evaluate(labels: np.ndarray, scores: torch.Tensor) -> dict[str, float]:
    """Metrics of log-probabilities [n, 2] at threshold one half, and two without a threshold."""
    predicted, probability = scores.argmax(1).numpy(), scores[:, 1].exp().numpy()
    none: Any = 0
    recall = float(recall_score(labels, predicted, zero_division=none))
    specificity = float(recall_score(1 - labels, 1 - predicted, zero_division=none))
    return {
        "auc": float(roc_auc_score(labels, probability)),
        "f1": float(f1_score(labels, predicted, zero_division=none)),
        "balanced_accuracy": (recall + specificity) / 2,
        "recall": recall,
        "worst_class_accuracy": min(recall, specificity),
        "precision": float(precision_score(labels, predicted, zero_division=none)),
        "average_precision": float(average_precision_score(labels, probability)),
    }


def places(sets: Sequence[str], systems: Sequence[str], epsilons: Sequence[float], seeds: int) -> list[Row]:
    cells = []
    for seed in range(seeds):
        for name in sets:
            for system in systems:
                limits = LIMITS.get(system, {})
                if seed >= limits.get("seeds", seeds) or name not in limits.get("sets", sets):
                    continue
                allowed = [e for e in epsilons if e in limits.get("epsilons", EPSILONS)]
                at: Sequence[float | None] = [None] if system in PLAIN else allowed
                cells += [{"set": name, "system": system, "epsilon": e, "seed": seed} for e in at]
    return cells


class Cells:
    """Rows of a run, by system and place (a set and an epsilon)."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._by: dict[tuple[str, str, Any], dict[int, Mapping[str, Any]]] = {}
        for row in rows:
            self._by.setdefault((row["system"], row["set"], row["epsilon"]), {})[row["seed"]] = row
        self.systems = tuple(dict.fromkeys(system for system, _, _ in self._by))
        self.sets = tuple(dict.fromkeys(name for _, name, _ in self._by))
        self.epsilons = tuple(sorted({e for _, _, e in self._by if e is not None})) or (1,)

    def of(self, system: str, name: str, epsilon: Any) -> dict[int, Mapping[str, Any]]:
        return self._by.get((system, name, epsilon)) or self._by.get((system, name, None), {})

    def mean(self, system: str, name: str, epsilon: Any, metric: str) -> float | None:
        """Over seeds; None without cells."""
        rows = self.of(system, name, epsilon)
        return float(np.mean([row[metric] for row in rows.values()])) if rows else None

    def pairs(self, systems: Iterable[str]) -> list[tuple[str, Any]]:
        chosen = list(systems)
        every = [(name, epsilon) for name in self.sets for epsilon in self.epsilons]
        return [place for place in every if all(self.of(system, *place) for system in chosen)]


def ranks(cells: Cells, systems: Sequence[str], metric: str) -> dict[str, float] | None:
    """Mean rank of each system over the places that all have, 1 the best, ties averaged; None: no place."""
    each = []
    for place in cells.pairs(systems):
        means = [cells.mean(system, *place, metric) for system in systems]
        each.append(rankdata([-round(mean, 12) for mean in means if mean is not None]))
    return dict(zip(systems, np.mean(each, axis=0).tolist(), strict=True)) if each else None


def gap(cells: Cells, first: str, second: str, metric: str) -> list[float]:
    """By seed the mean of first minus second over the places that both have."""
    places = [(cells.of(first, *place), cells.of(second, *place)) for place in cells.pairs((first, second))]
    return results.by_seed((s, a[s][metric] - b[s][metric]) for a, b in places for s in a.keys() & b.keys())


ORDERINGS = (
    ("GEM + XGBoost above DP logistic regression", "gem", "objective", tuple(NAMES)),
    (
        "GEM + XGBoost above weighted DP logistic regression except for recall",
        "gem",
        "weighted-objective-paper",
        tuple(name for name in NAMES if name != "recall"),
    ),
    (
        "weighted above plain DP logistic regression where classes count alike",
        "weighted-objective-paper",
        "objective",
        ("balanced_accuracy", "recall", "worst_class_accuracy"),
    ),
    ("… and below it in AUC", "objective", "weighted-objective-paper", ("auc",)),
    (
        "weighted DP logistic regression above FTTransformer",
        "weighted-objective-paper",
        "ft-transformer",
        ("f1", "balanced_accuracy"),
    ),
    ("GEM above PrivBayes before XGBoost", "gem", "privbayes", tuple(NAMES)),
    ("one DP logistic regression above bags of it", "objective", "bagging", ("f1", "auc")),
)
"""What the paper reports: the first is above the second in these metrics."""


def rank_table(cells: Cells, systems: Sequence[str], published: Mapping[str, Mapping[str, float]] | None = None) -> str:
    by_metric = {metric: ranks(cells, systems, metric) or {} for metric in NAMES}
    rows: list[list[str]] = []
    for system in systems:
        row = [SYSTEMS[system][0]]
        for metric, own in by_metric.items():
            other = "" if published is None else f" ({published.get(system, {}).get(metric, '–')})"
            row.append((f"{own[system]:.2f}" if own else "–") + other)
        rows.append(row)
    rows.append(["sum", *(f"{sum(own.values()):.2f}" for own in by_metric.values())])
    return results.show(["system", *NAMES.values()], rows)


def tables(cells: Cells) -> str:
    """All tables in Markdown: ranks, orderings, F1 of plain trees, means over sets, and every set."""
    published = suite()["published"]
    private = [system for system in cells.systems if system in SYSTEMS and system not in PLAIN]
    every = len(cells.sets) * len(cells.epsilons)
    ranked = [system for system in private if len(cells.pairs([system])) >= 2 / 3 * every]
    papers = [system for system in ranked if system in published["ranks"]]
    parts = [f"## Ranks over {len(cells.pairs(papers))} of {every} pairs, the paper's in brackets\n"]
    parts.append(rank_table(cells, papers, published["ranks"]))
    parts.append(f"## Ranks of all private systems over {len(cells.pairs(ranked))} pairs\n")
    parts.append(rank_table(cells, ranked))
    parts.append("## The paper's orderings: first minus second, ± two standard errors over seeds\n")
    answers = [
        (text, NAMES[metric], results.verdict(gap(cells, first, second, metric)))
        for text, first, second, metrics in ORDERINGS
        if {first, second} <= set(cells.systems)
        for metric in metrics
    ]
    parts.append(results.show(["the paper's ordering", "in", "here"], answers))
    trees = {name: cells.mean("plain-trees", name, None, "f1") for name in cells.sets}
    known = published["f1_of_plain_trees"]
    rows = [(name, f"{own:.3f}", known.get(name, "–")) for name, own in trees.items() if own is not None]
    parts.append("## F1 of plain XGBoost\n\n" + results.show(["set", "here", "paper"], rows))
    for metric, title in (*NAMES.items(), ("average_precision", "average precision")):
        parts.append(f"## {title}: means over all sets\n\n" + _over_epsilon(cells, metric))
    for name in cells.sets:
        for epsilon in cells.epsilons:
            parts.append(f"## {name}, ε {epsilon:g}: means ± two standard errors\n\n" + _of_set(cells, name, epsilon))
    return "\n".join(parts)


def _title(system: str) -> str:
    return SYSTEMS[system][0] if system in SYSTEMS else system


def _over_epsilon(cells: Cells, metric: str) -> str:
    rows = []
    for system in cells.systems:
        row = [_title(system)]
        for epsilon in cells.epsilons:
            means = [m for name in cells.sets if (m := cells.mean(system, name, epsilon, metric)) is not None]
            row.append(f"{np.mean(means):.3f}" if len(means) == len(cells.sets) else "–")
        rows.append(row)
    return results.show(["system", *(f"ε {e:g}" for e in cells.epsilons)], rows)


def _of_set(cells: Cells, name: str, epsilon: float) -> str:
    metrics, rows = (*NAMES, "average_precision"), []
    for system in cells.systems:
        over = list(cells.of(system, name, epsilon).values())
        if over:
            claim = "none" if not over[0]["relation"] else f"{over[0]['relation']}, ε {over[0]['claimed']:.2g}"
            rows.append([_title(system), claim, *(results.figure([row[m] for row in over]) for m in metrics)])
    return results.show(["system", "claim", *NAMES.values(), "average precision"], rows)


def draw(cells: Cells, file: Path) -> None:
    """Writes the plot: mean AUC over all sets against epsilon, by system that has them all."""
    lines = {}
    for system in cells.systems:
        means, errors = [], []
        for epsilon in cells.epsilons:
            rows = [cells.of(system, name, epsilon) for name in cells.sets]
            whole = (
                results.by_seed((seed, row["auc"]) for own in rows for seed, row in own.items()) if all(rows) else []
            )
            if whole:
                means.append(float(np.mean(whole)))
                errors.append(results.two_errors(whole) if len(whole) > 1 else 0.0)
        if len(means) == len(cells.epsilons):
            lines[_title(system)] = (cells.epsilons, means, errors)
    results.plot(file, lines, title="AUC, mean over sets ± two standard errors", x="ε of one record replaced", y="AUC")


def run(
    folder: Path, out: Path, *, sets: Sequence[str], systems: Sequence[str], epsilons: Sequence[float], seeds: int
) -> Path:
    """Fits what `imbalance.csv` lacks, and writes `imbalance-tables.md` and `imbalance.svg` of what was asked for."""
    loaded = read_sets(folder, sets)

    def fit(cell: Mapping[str, Any]) -> Row:
        train, test = split(loaded[cell["set"]], cell["set"], cell["seed"])
        return measure(SYSTEMS[cell["system"]][1], train, test, cell["epsilon"], cell["seed"])

    rows = results.fill(out / "imbalance.csv", places(sets, systems, epsilons, seeds), fit)
    cells, page = Cells(rows), out / "imbalance-tables.md"
    page.write_text(tables(cells), encoding="utf-8")
    draw(cells, out / "imbalance.svg")
    return page
