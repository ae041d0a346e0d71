"""SWAG-PPM by class size (Chew et al., figures 2 to 4, tables 1 to 3), on a head over narratives.

Narratives are sampled and encoded as in `studies.rare_codes`. The head, its rates and the draws are
those of the profile `osha-head`, without word features from the titles. Quartiles are of the codes
by their training records, as in the paper's table 2. Table 3 lists single codes, some of which have
one record; here codes are grouped by their training records.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
import typer
from sklearn.metrics import f1_score
from sklearn.model_selection import train_test_split

from mechanisms.dp_sgd import DpSgd
from mechanisms.mechanism import Fitted, Mechanism, Model, Plan, Records, Run, Task
from mechanisms.model.classifier import Classifier, build
from mechanisms.model.config import ModelConfig, OptimiserPhase
from mechanisms.model.inputs import FeatureInputs
from mechanisms.non_private import NonPrivate
from mechanisms.posterior.config import PseudoPosteriorConfig, SwagConfig
from mechanisms.swag_ppm import Measured, SwagPpm
from studies import accounting, rare_codes, results
from studies.options import CodeList, Label, NarrativeFile, Out, Seeds, Text, numbers

EPSILON, DELTA = 4.0, 1e-4
"""The paper's values for DP-SGD."""
EDGES = np.linspace(0, 1, 21)
"""Bin edges of the histogram of weights."""
QUARTILES = ("smallest quarter", "second quarter", "third quarter", "largest quarter")
TITLES = {
    "non-private": "Non-private",
    "swag-ppm": "SWAG-PPM",
    "swag-ppm-reweighted": "SWAG-PPM (reweighted)",
    "dp-sgd": "DP-SGD (paper's setting)",
}


def quartiles(codes: np.ndarray) -> pd.Series:
    """Returns the quarter of each code by training records, 0 for the smallest. Ties are in the
    codes' own order.

    >>> quartiles(np.repeat(["a", "b", "c", "d"], [1, 9, 3, 5])).to_dict()
    {'a': 0, 'c': 1, 'd': 2, 'b': 3}
    """
    sizes = pd.Series(codes).value_counts().sort_index().sort_values(kind="stable")
    return pd.Series(np.arange(len(sizes)) * 4 // len(sizes), index=sizes.index)


def utility(truth: np.ndarray, said: np.ndarray, train: np.ndarray) -> dict[str, float]:
    """Returns weighted and macro F1 of all codes and of each quarter, and macro F1
    by training records.
    """
    found, counts = np.unique(truth, return_counts=True)
    none: Any = 0
    f1_by_code: Any = f1_score(truth, said, labels=found, average=None, zero_division=none)
    quarter = quartiles(train).reindex(found).to_numpy()

    def mean(own: np.ndarray, by: np.ndarray) -> float:
        return float(np.average(f1_by_code[own], weights=by[own])) if own.any() else math.nan

    everything, same = np.ones(len(found), dtype=bool), np.ones(len(found))
    figures = {
        f"{kind}_f1{name}": mean(own, by)
        for name, own in [("", everything), *((f"_{n}", quarter == n) for n in range(4))]
        for kind, by in (("weighted", counts), ("macro", same))
    }
    bins = rare_codes.by_bin(truth, said, train)
    return figures | {name: value for name, value in bins.items() if name.startswith("f1_")}


def weights(alpha: np.ndarray, codes: np.ndarray) -> list[results.Row]:
    """Returns the weights of records by the quarter of their code: mean, shares at
    0 and 1, histogram.
    """
    quarter = quartiles(codes).reindex(codes).to_numpy()
    rows = []
    for number, title in enumerate(QUARTILES):
        quarter_alpha = alpha[quarter == number]
        row: results.Row = {
            "quarter": title,
            "records": len(quarter_alpha),
            "mean": float(quarter_alpha.mean()),
            "median": float(np.median(quarter_alpha)),
            "below_0.1": float((quarter_alpha < 0.1).mean()),
            "above_0.9": float((quarter_alpha > 0.9).mean()),
        }
        shares = np.histogram(quarter_alpha, EDGES)[0] / len(quarter_alpha)
        rows.append(row | {f"from_{low:.2f}": s for low, s in zip(EDGES, shares, strict=False)})
    return rows


def swag(draws: int, phases: tuple[int, int, int]) -> SwagPpm:
    tune, collect, _ = phases
    return SwagPpm(
        round="reweighted",
        fine_tune=OptimiserPhase(optimiser="adamw", learning_rate=0.003, epochs=tune, batch_size=8),
        collect=OptimiserPhase(optimiser="sgd", learning_rate=0.01, epochs=collect, batch_size=8),
        moments=SwagConfig(rank=min(20, collect)),
        pseudo_posterior=PseudoPosteriorConfig(risk_draws=draws, sensitivity_draws=draws),
    )


@dataclass(frozen=True)
class Half:
    """Features and codes of one half, in the form that mechanisms read."""

    features: np.ndarray
    codes: np.ndarray
    known: np.ndarray

    @property
    def records(self) -> Records:
        labels = torch.from_numpy(np.searchsorted(self.known, self.codes))
        return Records(FeatureInputs(torch.from_numpy(self.features)), labels)

    def fit(self, mechanism: Mechanism, seed: int, folder: Path | None) -> tuple[Plan, Run, Fitted]:
        task = Task(
            records=len(self.codes),
            classes=len(self.known),
            target_epsilon=EPSILON if mechanism.needs_target_epsilon else None,
            delta=DELTA,
        )

        def untrained() -> Classifier:
            config = ModelConfig(pooling="none")
            width = self.features.shape[1]
            return build(config, num_labels=len(self.known), seed=seed, width=width)

        plan = mechanism.plan(task)
        run = Run(classes=len(self.known), seed=seed, classifier=untrained, folder=folder)
        return plan, run, plan.fit(self.records, run)


def measure(
    train: Half, test: Half, *, draws: int, phases: tuple[int, int, int], seed: int
) -> tuple[list[results.Row], list[results.Row]]:
    """Fits all four once. Returns a row for each, and the weights by quarter of both rounds."""
    plain = NonPrivate(
        phase=OptimiserPhase(optimiser="adamw", learning_rate=0.003, epochs=phases[2], batch_size=8)
    )
    rows, found = [], []

    def row(branch: str, model: Model, **claimed: Any) -> None:
        scores = model.log_probabilities(FeatureInputs(torch.from_numpy(test.features)))
        said = test.known[scores.argmax(1).numpy()]
        figures = utility(test.codes, said, train.codes)
        rows.append({"branch": branch, "seed": seed, **claimed, **figures})

    row("non-private", train.fit(plain, seed, None)[2].model, epsilon=None, sensitivity=None)
    with TemporaryDirectory() as name:
        folder = Path(name)
        plan, run, _ = train.fit(swag(draws, phases), seed, folder)
        assert isinstance(plan.mechanism, SwagPpm)
        for title in ("weighted", "reweighted"):
            measured = Measured.load(folder / title)
            assert measured.alpha is not None
            sensitivity = float(measured.draw_maxima.max())
            branch = "swag-ppm" if title == "weighted" else "swag-ppm-reweighted"
            drawn = plan.mechanism.model_copy(update={"round": title}).load(folder / title, run)
            row(branch, drawn, epsilon=2 * sensitivity, sensitivity=sensitivity)
            weight_rows = weights(measured.alpha.numpy(), train.codes)
            found += [{"round": title, "seed": seed, **weight_row} for weight_row in weight_rows]
    private = DpSgd(
        calibrate_by="rdp-mironov", learning_rate=1e-3, batch_size=min(512, len(train.codes))
    )
    fitted = train.fit(private, seed, None)[2]
    claim = accounting.of_event(fitted.event, DELTA)
    row("dp-sgd", fitted.model, epsilon=claim.epsilon, sensitivity=None)
    return rows, found


def tables(rows: Sequence[results.Row], alpha: Sequence[results.Row]) -> str:
    """Returns tables 1 to 3 and the weights in Markdown, ± two standard errors over seeds."""
    cells = pd.DataFrame(rows)
    groups = [
        (TITLES[str(name)], branch_cells)
        for name, branch_cells in cells.groupby("branch", sort=False)
    ]

    def lines(metrics: Sequence[str]) -> list[list[str]]:
        return [
            [title, *(results.figure(branch_cells[m]) for m in metrics)]
            for title, branch_cells in groups
        ]

    parts = ["## Table 1 (ε: 2Δ, or at δ 1e-4)\n"]
    head = ["branch", "ε", "weighted F1", "macro F1"]
    parts.append(results.show(head, lines(("epsilon", "weighted_f1", "macro_f1"))))
    parts.append("## Table 2: quarters of codes by training records, weighted and macro F1\n")
    head = [
        "branch",
        *(f"{QUARTILES[n]}, {kind}" for n in (3, 0) for kind in ("weighted", "macro")),
    ]
    kinds = [f"{kind}_f1_{n}" for n in (3, 0) for kind in ("weighted", "macro")]
    parts.append(results.show(head, lines(kinds)))
    parts.append("## Table 3 and figure 3, in bins: mean F1 by training records per code\n")
    bins = [name for name in rows[0] if name.startswith("f1_")]
    titles = [name[3:].replace("_up", " and more").replace("_", " to ") for name in bins]
    parts.append(results.show(["branch", *titles], lines(bins)))
    parts.append("## Figure 4: weights of records by quarter of their code\n")
    by = pd.DataFrame(alpha).groupby(["round", "quarter"], sort=False)
    told = ("mean", "median", "below_0.1", "above_0.9")
    shown = [
        [*key, *(results.figure(branch_cells[name]) for name in told)] for key, branch_cells in by
    ]
    parts.append(results.show(["round", "quarter", "mean", "median", "< 0.1", "> 0.9"], shown))
    return "\n".join(parts)


def draw(rows: Sequence[results.Row], alpha: Sequence[results.Row], sizes: Any, out: Path) -> None:
    """Plots figures 2 (sizes of codes), 3 (F1 by training records) and 4 (weights)."""
    ranks = list(range(1, len(sizes) + 1))
    line = {"training records": (ranks, [[size] for size in sizes])}
    title = "Training records of a code, in order"
    results.plot(
        out / "swag-ppm-classes.svg", line, title=title, x="code", y="training records", log="y"
    )
    bins = [f"f1_{low}_{high or 'up'}" for low, high in rare_codes.BINS]
    at = [float(low) for low, _ in rare_codes.BINS]
    lines = {
        TITLES[name]: (at, [[row[b] for row in rows if row["branch"] == name] for b in bins])
        for name in TITLES
    }
    title = "F1 by class size, mean over codes ± two standard errors over seeds"
    results.plot(
        out / "swag-ppm-utility.svg", lines, title=title, x="training records, from", y="F1"
    )
    names = [name for name in alpha[0] if name.startswith("from_")]
    middle = [float(name[5:]) + EDGES[1] / 2 for name in names]
    parts = {
        f"{title} round": {
            quarter: (
                middle,
                [
                    [r[n] for r in alpha if (r["round"], r["quarter"]) == (title, quarter)]
                    for n in names
                ],
            )
            for quarter in (QUARTILES[3], QUARTILES[0])
        }
        for title in ("weighted", "reweighted")
    }
    title = "Share of records by weight, in twentieths"
    results.panels(out / "swag-ppm-weights.svg", parts, title=title, x="weight")


def run(
    out: Out,
    records: NarrativeFile = None,
    codelist: CodeList = None,
    text: Text = "Final Narrative",
    label: Label = "Nature",
    draws: Annotated[int, typer.Option(help="draws for risks and Delta")] = 500,
    epochs: Annotated[str, typer.Option(help="fine-tuning, collection, non-private")] = "10,20,30",
    seeds: Seeds = 5,
) -> Path:
    """SWAG-PPM by class size: F1, weights and sizes (Chew et al., figures 2 to 4, tables 1 to 3).

    Example: python -m studies swag-ppm --records osha.csv --codelist nature.csv --out results
    """
    features, codes, code_names, _ = rare_codes.sampled(records, codelist, text, label)
    tune, collect, plain = (int(number) for number in numbers(epochs))

    def halves(seed: int) -> tuple[Half, Half]:
        split = train_test_split(
            features.numpy(), codes, test_size=0.5, stratify=codes, random_state=seed
        )
        return Half(split[0], split[2], code_names), Half(split[1], split[3], code_names)

    rows: list[results.Row] = []
    alpha: list[results.Row] = []
    for seed in range(seeds):
        train, test = halves(seed)
        fit_rows, found = measure(
            train, test, draws=draws, phases=(tune, collect, plain), seed=seed
        )
        rows += [row | {"commit": results.commit()} for row in fit_rows]
        alpha += [row | {"commit": results.commit()} for row in found]
        results.save(out / "swag-ppm.csv", rows)
        results.save(out / "swag-ppm-weights.csv", alpha)
        print(f"{seed + 1}/{seeds} seeds", file=sys.stderr, flush=True)
    page = out / "swag-ppm-tables.md"
    page.write_text(tables(rows, alpha), encoding="utf-8")
    sizes = pd.Series(halves(0)[0].codes).value_counts().tolist()
    draw(rows, alpha, sizes, out)
    return page
