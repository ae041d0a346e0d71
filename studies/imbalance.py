"""Private learning under class imbalance: every system on every set at every epsilon (Rosenblatt et
al. 2025, tables 3 and 13 to 20, figures 1 and 5 to 13).

Epsilon is for *replacing* one record, whatever neighbours a claim is for. delta is 1/n^2 unless it
is 0. Splits are determined by the seed; noise is not.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
import typer
import yaml
from sklearn.metrics import (
    average_precision_score,
    f1_score,
    matthews_corrcoef,
    precision_score,
    recall_score,
    roc_auc_score,
)
from sklearn.model_selection import train_test_split

from mechanisms.errors import MechanismError
from mechanisms.model.seeding import derive_seed
from studies import results
from studies.linear import Bagging, Objective, PlainLogistic, WeightedDescent
from studies.options import Data, Epsilons, Out, Seeds, Sets, names, numbers
from studies.results import Row
from studies.synthetic import BayesTable, Gem, PlainTrees, PrivBayes
from studies.tables import System, Table, read
from studies.transformer import FtTransformer, PlainTransformer

TEST_SHARE = 0.2
NAMES = {
    "auc": "AUC",
    "f1": "F1",
    "balanced_accuracy": "balanced accuracy",
    "recall": "recall",
    "worst_class_accuracy": "worst class",
}
DRAWN = NAMES | {"precision": "precision", "g_mean": "geometric mean of both recalls"}
"""Metrics of figures 1 and 6 to 13. The paper's macro average of accuracies is
balanced accuracy.
"""
SYNTHETIC = ("gem", "privbayes")
"""Systems of figure 5."""
SYSTEMS: dict[str, tuple[str, System]] = {
    "plain-logistic": ("Logistic regression", PlainLogistic()),
    "plain-logistic-weighted": ("Weighted logistic regression", PlainLogistic(balance="weights")),
    "plain-trees": ("XGBoost", PlainTrees()),
    "plain-trees-weighted": ("Weighted XGBoost", PlainTrees(balance="weights")),
    "smote-logistic": ("SMOTE + logistic regression", PlainLogistic(balance="smote")),
    "smote-logistic-weighted": (
        "SMOTE + weighted logistic regression",
        PlainLogistic(balance="smote-weights"),
    ),
    "smote-trees-weighted": ("SMOTE + weighted XGBoost", PlainTrees(balance="smote-weights")),
    "smote-trees": ("SMOTE + XGBoost", PlainTrees(balance="smote")),
    "plain-ft-transformer": ("Weighted FTTransformer", PlainTransformer()),
    "objective": ("DP logistic regression", Objective()),
    "weighted-objective-paper": (
        "DP weighted logistic regression, paper's constants",
        Objective(weights="frequencies", constants="paper"),
    ),
    "weighted-objective": (
        "DP weighted logistic regression, tight constants",
        Objective(weights="frequencies"),
    ),
    "weighted-descent": ("Weighted DP gradient descent", WeightedDescent()),
    "bayes-table": ("DP naive Bayes table + XGBoost", BayesTable()),
    "privbayes": ("PrivBayes + XGBoost", PrivBayes()),
    "gem": ("GEM + XGBoost", Gem()),
    "bagging-subsamples": (
        "Bags of DP logistic regression, overlapping",
        Bagging(split="subsamples"),
    ),
    "bagging": ("Bags of DP logistic regression, disjoint", Bagging()),
    "bagging-hard": (
        "Bags of DP logistic regression, disjoint, majority vote",
        Bagging(vote="hard"),
    ),
    "bagging-stratified": (
        "Bags of DP logistic regression, stratified",
        Bagging(split="stratified"),
    ),
    "ft-transformer": ("FTTransformer by class-weighted DP-SGD", FtTransformer()),
}
PLAIN = tuple(name for name in SYSTEMS if name.startswith(("plain", "smote")))
"""The nine rows of the paper's tables 13 to 20, in their order."""
DRAWN_OF_SETS = (
    "plain-trees-weighted",
    "objective",
    "weighted-objective-paper",
    "weighted-objective",
    "bayes-table",
    "privbayes",
    "gem",
)
LIMITS: dict[str, dict[str, Any]] = {
    **{name: {"epsilons": (0.5, 1, 5)} for name in SYSTEMS if name.startswith("bagging")},
    "plain-ft-transformer": {"seeds": 2},  # about 40 seconds a fit
    "ft-transformer": {"seeds": 2, "epsilons": (1, 5), "sets": ("car_eval_34",)},  # a minute a fit
}
"""Restrictions of fits that would take too long in a full run. Other sets or epsilons than the
default lift their own, and so does another number of seeds if systems are named.
"""
ALL_EPSILONS, SPLITS = "0.05,0.1,0.5,1,5", 10


def suite() -> dict[str, Any]:
    return yaml.safe_load((Path(__file__).parent / "suite.yaml").read_text(encoding="utf-8"))


def read_sets(folder: Path, names: Iterable[str]) -> dict[str, Table]:
    described = suite()["sets"]
    return {name: read(folder / f"{name}.csv", described[name]) for name in names}


def split(
    table: Table, name: str, seed: int, *, minority: int | None = None
) -> tuple[Table, Table]:
    """Returns training and held-out records (a fifth), split by label with the seed.

    Args:
        minority: number of training records of label 1 to keep, the first in the split's random
            order; None for all.
    """
    chosen = derive_seed(seed, "imbalance", name) % (1 << 32)
    halves = train_test_split(
        np.arange(len(table)),
        test_size=TEST_SHARE,
        stratify=table.labels.numpy(),
        random_state=chosen,
    )
    train, test = (torch.from_numpy(np.asarray(half)) for half in halves)
    if minority is not None:
        rare = train[table.labels[train] == 1]
        if len(rare) < minority:
            raise MechanismError(
                f"{minority} training records of label 1 were requested, but the "
                f"split has {len(rare)}",
                kind="too-few-minority-records",
            )
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
    """Returns metrics of log-probabilities [n, 2] at threshold one half, and two
    without a threshold.
    """
    predicted, probability = scores.argmax(1).numpy(), scores[:, 1].exp().numpy()
    none: Any = 0
    specificity, recall = recall_score(
        labels, predicted, average=None, labels=[0, 1], zero_division=none
    ).tolist()
    return {
        "auc": float(roc_auc_score(labels, probability)),
        "f1": float(f1_score(labels, predicted, zero_division=none)),
        "balanced_accuracy": (recall + specificity) / 2,
        "recall": recall,
        "worst_class_accuracy": min(recall, specificity),
        "precision": float(precision_score(labels, predicted, zero_division=none)),
        "average_precision": float(average_precision_score(labels, probability)),
        "g_mean": math.sqrt(recall * specificity),
        "mcc": float(matthews_corrcoef(labels, predicted)),
    }


def places(
    sets: Sequence[str],
    systems: Sequence[str],
    epsilons: Sequence[float],
    seeds: int,
    *,
    lifted: Collection[str] = (),
) -> list[Row]:
    """Returns the cells to measure.

    Args:
        lifted: names of restrictions that do not apply.
    """

    def within_limits(cell: Row) -> bool:
        limits = {
            name: most
            for name, most in LIMITS.get(cell["system"], {}).items()
            if name not in lifted
        }
        return (
            cell["seed"] < limits.get("seeds", seeds)
            and cell["set"] in limits.get("sets", sets)
            and cell["epsilon"] in limits.get("epsilons", (None, *epsilons))
        )

    cells = results.grid({"set": sets, "system": systems}, epsilons, seeds, plain=PLAIN)
    return list(filter(within_limits, cells))


def cells_of(rows: Sequence[Row]) -> pd.DataFrame:
    """Returns one row per fit. A fit that takes no epsilon has a row for every epsilon."""
    cells = pd.DataFrame(rows)
    epsilons = sorted(cells["epsilon"].dropna().unique()) or [1]
    cells["epsilon"] = [epsilons if pd.isna(epsilon) else [epsilon] for epsilon in cells["epsilon"]]
    return cells.explode("epsilon").astype({"epsilon": float})


def means(cells: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Returns means over seeds, by set and epsilon (rows) and system (columns)."""
    systems = cells["system"].unique().tolist()
    return cells.groupby(["set", "epsilon", "system"])[metric].mean().unstack()[systems]


def ranks(cells: pd.DataFrame, systems: Sequence[str], metric: str) -> dict[Any, float]:
    """Returns each system's mean rank over the cells that all systems have, 1 for the best, with
    ties averaged. Empty if there is no such cell.
    """
    complete = means(cells, metric)[list(systems)].dropna()
    return (-complete.round(12)).rank(axis=1).mean().to_dict() if len(complete) else {}


def gap(cells: pd.DataFrame, first: str, second: str, metric: str) -> list[float]:
    """Returns by seed the mean of first minus second over the cells that both have."""
    scores = cells.set_index(["set", "epsilon", "seed", "system"])[metric].unstack()
    both = (scores[first] - scores[second]).dropna()
    return results.by_seed(zip(both.index.get_level_values("seed"), both, strict=True))


def rank_table(
    cells: pd.DataFrame,
    systems: Sequence[str],
    published: Mapping[str, Mapping[str, float]] | None = None,
) -> str:
    by_metric = {metric: ranks(cells, systems, metric) for metric in NAMES}
    rows: list[list[str]] = []
    for system in systems:
        row = [SYSTEMS[system][0]]
        for metric, mean_ranks in by_metric.items():
            published_rank = (
                "" if published is None else f" ({published.get(system, {}).get(metric, '–')})"
            )
            row.append((f"{mean_ranks[system]:.2f}" if mean_ranks else "–") + published_rank)
        rows.append(row)
    rows.append(["sum", *(f"{sum(mean_ranks.values()):.2f}" for mean_ranks in by_metric.values())])
    return results.show(["system", *NAMES.values()], rows)


def tables(cells: pd.DataFrame) -> str:
    """Returns all tables in Markdown: ranks, orderings, F1 of plain trees, means
    over sets, and every set.
    """
    published, aucs = suite()["published"], means(cells, "auc")
    sets, epsilons = cells["set"].unique(), sorted(cells["epsilon"].unique())
    pairs = len(sets) * len(epsilons)
    ranked = [
        system
        for system in aucs.columns.tolist()
        if system not in PLAIN and aucs[system].count() >= 2 / 3 * pairs
    ]
    papers = [system for system in ranked if system in published["ranks"]]
    parts = [
        f"## Ranks over {len(aucs[papers].dropna())} of {pairs} pairs, the paper's in brackets\n"
    ]
    parts.append(rank_table(cells, papers, published["ranks"]))
    parts.append(f"## Ranks of all private systems over {len(aucs[ranked].dropna())} pairs\n")
    parts.append(rank_table(cells, ranked))
    parts.append("## The paper's orderings: first minus second, ± two standard errors over seeds\n")
    answers = [
        (text, NAMES[metric], results.verdict(gap(cells, first, second, metric)))
        for text, (first, second, of) in published["orderings"].items()
        if {first, second} <= set(aucs)
        for metric in of
    ]
    parts.append(results.show(["the paper's ordering", "in", "here"], answers))
    parts.append("## F1 without privacy, the paper's in brackets (tables 13 to 20)\n")
    parts.append(plain_table(cells, published["f1_without_privacy"]))
    metrics = NAMES | {"average_precision": "average precision"}
    for metric, title in metrics.items():
        over = (
            means(cells, metric).unstack("set").T.groupby("system", sort=False).mean(skipna=False)
        )
        rows = [
            [SYSTEMS[system][0], *(results.figure([mean]) for mean in system_cells)]
            for system, *system_cells in over.reset_index().to_numpy().tolist()
        ]
        parts.append(f"## {title}: means over all sets\n")
        parts.append(results.show(["system", *(f"ε {e:g}" for e in epsilons)], rows))
    for name, epsilon in product(sets, epsilons):
        rows = []
        for system, system_cells in cells[
            (cells["set"] == name) & (cells["epsilon"] == epsilon)
        ].groupby("system", sort=False):
            first = system_cells.iloc[0]
            claim = (
                "none"
                if pd.isna(first["claimed"])
                else f"{first['relation']}, ε {first['claimed']:.2g}"
            )
            rows.append(
                [
                    SYSTEMS[system][0],
                    claim,
                    *(results.figure(system_cells[metric]) for metric in metrics),
                ]
            )
        parts.append(f"## {name}, ε {epsilon:g}: means ± two standard errors\n")
        parts.append(results.show(["system", "claim", *metrics.values()], rows))
    return "\n".join(parts)


def plain_table(cells: pd.DataFrame, published: Mapping[str, Sequence[float]]) -> str:
    """Tabulates F1 of the nine rows without privacy, ± two standard errors over seeds, by set."""
    plain_cells = cells[cells["system"].isin(PLAIN)].drop_duplicates(["set", "system", "seed"])
    sets = plain_cells["set"].unique().tolist()
    f1 = {key: group["f1"] for key, group in plain_cells.groupby(["set", "system"])}
    rows = [
        [
            SYSTEMS[system][0],
            *(
                f"{results.figure(f1.get((name, system), []))} ({paper[place]:.2f})"
                if (paper := published.get(name))
                else results.figure(f1.get((name, system), []))
                for name in sets
            ),
        ]
        for place, system in enumerate(PLAIN)
    ]
    return results.show(["system", *sets], rows)


def draw_set(cells: pd.DataFrame, file: Path, *, title: str, systems: Sequence[str]) -> None:
    """Plots the metrics of a set against epsilon, a line per system (figures 1, 5 to 13)."""
    epsilons = sorted(cells["epsilon"].unique())
    groups = {key: group for key, group in cells.groupby(["system", "epsilon"])}
    present = [name for name in systems if any(key[0] == name for key in groups)]
    parts = {
        what: {
            SYSTEMS[name][0]: (
                epsilons,
                [
                    groups[name, epsilon][metric].tolist() if (name, epsilon) in groups else []
                    for epsilon in epsilons
                ],
            )
            for name in present
        }
        for metric, what in DRAWN.items()
    }
    made_at = results.commits(cells["commit"]) if "commit" in cells else None
    x = "ε of one record replaced"
    results.panels(file, parts, title=title, x=x, log=True, made_at=made_at)


def draw_sets(cells: pd.DataFrame, file: Path, *, metric: str, systems: Sequence[str]) -> None:
    """Plots one metric for every set."""
    epsilons, parts = sorted(cells["epsilon"].unique()), {}
    for name, of_set in cells.groupby("set", sort=False):
        groups = {
            key: group[metric].tolist() for key, group in of_set.groupby(["system", "epsilon"])
        }
        parts[str(name)] = {
            SYSTEMS[system][0]: (epsilons, [groups.get((system, e), []) for e in epsilons])
            for system in systems
        }
    title = f"{DRAWN[metric]}: mean ± two standard errors"
    made_at = results.commits(cells["commit"]) if "commit" in cells else None
    x = "ε of one record replaced"
    results.panels(file, parts, title=title, x=x, columns=4, log=True, made_at=made_at)


def draw(cells: pd.DataFrame, file: Path) -> None:
    """Plots mean AUC over all sets against epsilon, for each system that has them all."""
    by_seed = (
        cells.set_index(["system", "epsilon", "seed", "set"])["auc"].unstack().dropna().mean(axis=1)
    )
    epsilons, lines = sorted(cells["epsilon"].unique()), {}
    for system in by_seed.index.unique("system").tolist():
        values = [scores.tolist() for _, scores in by_seed.loc[system].groupby("epsilon")]
        if len(values) == len(epsilons):
            lines[SYSTEMS[system][0]] = (epsilons, values)
    results.plot(
        file,
        lines,
        title="AUC, mean over sets ± two standard errors",
        x="ε of one record replaced",
        y="AUC",
    )


def run(
    data: Data,
    out: Out,
    sets: Sets = "all",
    systems: Annotated[
        str,
        typer.Option(
            help="names, by comma, such as gem,privbayes,objective; plain: without privacy"
        ),
    ] = "all",
    epsilons: Epsilons = ALL_EPSILONS,
    seeds: Seeds = SPLITS,
) -> Path:
    """Every system on every set: ranks and figures (Rosenblatt et al. 2025, tables 3 and 13 to 20,
    figures 1 and 5 to 13). Epsilons are for replacing one record.

    Example: python -m studies imbalance --data imblearn --sets mammography --systems
    bayes-table,gem --out results
    """
    chosen = names(sets, suite()["sets"], "--sets")
    lifted = {
        "sets": sets != "all",
        "epsilons": epsilons != ALL_EPSILONS,
        "seeds": seeds != SPLITS and systems not in ("all", "plain"),
    }
    systems = ",".join(PLAIN) if systems == "plain" else systems
    wanted = places(
        chosen,
        names(systems, SYSTEMS, "--systems"),
        numbers(epsilons),
        seeds,
        lifted=[name for name, is_lifted in lifted.items() if is_lifted],
    )
    loaded = read_sets(data, chosen)

    def fit(cell: Mapping[str, Any]) -> Row:
        train, test = split(loaded[cell["set"]], cell["set"], cell["seed"])
        return measure(SYSTEMS[cell["system"]][1], train, test, cell["epsilon"], cell["seed"])

    cells = cells_of(results.fill(out / "imbalance.csv", wanted, fit))
    page = out / "imbalance-tables.md"
    page.write_text(tables(cells), encoding="utf-8")
    draw(cells, out / "imbalance.svg")
    drawn = [name for name in SYSTEMS if name not in LIMITS and name != "weighted-descent"]
    for metric in ("auc", "f1"):
        draw_sets(cells, out / f"imbalance-sets-{metric}.svg", metric=metric, systems=DRAWN_OF_SETS)
    for name, set_cells in cells.groupby("set", sort=False):
        file = out / f"imbalance-{name}.svg"
        draw_set(set_cells, file, title=f"{name}: mean ± two standard errors", systems=drawn)
        if set(SYNTHETIC) <= set(set_cells["system"]):
            file = out / f"imbalance-{name}-synthetic.svg"
            title = f"{name}: XGBoost on synthetic records"
            draw_set(set_cells, file, title=title, systems=SYNTHETIC)
    return page
