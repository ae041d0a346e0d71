#!/usr/bin/env python
"""Writes docs/rare-codes.md (codes with few records, by family of mechanisms) from `autocoder compare --json`.

    python scripts/rare_codes.py --out docs/rare-codes.md --results docs/rare-codes/results.json [text-1.json
    text-5.json …]

Files are named by kind (text) and epsilon. Several may have the same: their branches are put together. Aggregates are
saved in `--results`, from which alone the page is written, but for tables: their cells lie in `tables/cells.json`
beside it, where `autocoder imbalance --results …/tables.md` keeps them. Figures are by bin of training records a code,
never by code. What a person adds stands in docs/rare-codes.notes.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from mechanisms.model.metrics import SUPPORT_BINS
from storage.durable import write_atomically
from tasks.branches.branch import standard_branches
from tasks.comparing.tables import mean_and_spread
from tasks.imbalance.cell import Cell
from tasks.imbalance.run import load_cells
from tasks.imbalance.tables import NAMES, relation, spread
from tasks.pages.render import Table, notes_beside, render

BINS = [f"{low}_up" if high is None else f"{low}_{high}" for low, high in SUPPORT_BINS]
MEASURES = (
    "macro_f1",
    "weighted_f1",
    *(f"support_{b}_{m}" for b in BINS for m in ("codes", "macro_f1", "macro_recall")),
)


def aggregates_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """Aggregates of one comparison, by branch."""
    return {
        row["branch"]: {
            "title": row["title"],
            "kind": row["guarantee_kind"],
            "epsilon": row["epsilon"],
            "delta": row["delta"],
            "seeds": row["seeds"],
            **{name: [row["mean"][name], row["spread"][name]] for name in MEASURES if name in row["mean"]},
        }
        for row in content["branches"]
    }


def name_of(one: str) -> str:
    """A bin for people."""
    low, _, high = one.partition("_")
    return f"{low} and more" if high == "up" else f"{low} to {high}"


def sizes(branches: Mapping[str, Any]) -> Table:
    """Counts the codes of each bin: the same for all branches, which are scored on the same records."""
    first, bins = next(iter(branches.values())), [b for b in BINS if b != "0_19"]
    counts = [f"{first[f'support_{b}_codes'][0]:.0f}" for b in bins]
    return ["training records of a code", *map(name_of, bins)], [["codes of the test half", *counts]]


def table(branches: Mapping[str, Any], measure: str) -> Table:
    """Branches against bins, the best below 20 records first."""
    head = ["branch", "guarantee, ε", "seeds", "0 to 19", *(name_of(b) for b in BINS if b != "0_19"), "all codes"]
    ranked = sorted(branches.values(), key=lambda row: -row[f"support_0_19_{measure}"][0])
    rows = []
    for row in ranked:
        own = "none" if row["epsilon"] is None else f"{row['kind']}, {row['epsilon']:.2f}"
        names = ["support_0_19_" + measure, *(f"support_{b}_{measure}" for b in BINS if b != "0_19")]
        cells = [_told(row, name) if name in row else "–" for name in names]
        whole = "{:.3f}".format(row["macro_f1"][0]) if measure == "macro_f1" else "–"
        rows.append([row["title"], own, str(row["seeds"]), *cells, whole])
    return head, rows


def _told(row: Mapping[str, Any], name: str) -> str:
    mean, spread = row[name]
    return mean_and_spread(mean, spread, row["seeds"])


def best(branches: Mapping[str, Any]) -> str:
    """Names the formal branch with the best F1 below 20 records, next to the best without noise."""
    of = "support_0_19_macro_f1"
    ranked = sorted(branches.values(), key=lambda row: -row[of][0])
    first = next(row for row in ranked if row["kind"] == "formal")
    plain = next((row for row in ranked if row["epsilon"] is None), None)
    beside = "" if plain is None else f", against {_told(plain, of)} of {plain['title']}"
    return f"{first['title']}, {_told(first, of)}{beside}"


def main() -> None:
    """Saves the aggregates of the files, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="*")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    results: dict[str, dict[str, Any]] = json.loads(given.results.read_text()) if given.results.is_file() else {}
    for file in given.files:
        content = json.loads(file.read_text())
        if file.stem.split("-")[0] != "text":
            raise SystemExit(f"{file}: name it by kind and epsilon, such as text-5.json")
        results.setdefault(file.stem.split("-")[1], {}).update(aggregates_of(content))
    given.results.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(given.results, json.dumps(results, indent=1, ensure_ascii=False).encode() + b"\n")
    by_epsilon = dict(sorted(results.items(), key=lambda item: float(item[0])))
    first = next(iter(by_epsilon.values()), {})
    text = render(
        "rare-codes.md",
        names={name: row["title"] for name, row in first.items()},
        sizes=sizes(first) if first else None,
        f1={epsilon: table(branches, "macro_f1") for epsilon, branches in by_epsilon.items()},
        recall={epsilon: table(branches, "macro_recall") for epsilon, branches in by_epsilon.items()},
        best={epsilon: best(branches) for epsilon, branches in by_epsilon.items()},
        thinned=thinned(list(load_cells(given.results.parent / "tables" / "cells.json").values())),
        notes=notes_beside(given.out),
    )
    write_atomically(given.out, text.encode())


def thinned(cells: Sequence[Cell]) -> dict[tuple[float, str], Table]:
    """By epsilon and metric: systems against training records of the rare class, which end a set's name."""
    epsilons = sorted({cell.epsilon for cell in cells if cell.epsilon is not None})
    return {(e, NAMES[m]): _thinned(cells, e, m) for e in epsilons for m in ("auc", "f1", "recall")}


def _thinned(cells: Sequence[Cell], epsilon: float, metric: str) -> Table:
    own = [cell for cell in cells if cell.epsilon in (None, epsilon)]
    sizes, titles = sorted({_size(cell) for cell in own}), standard_branches()
    rows = []
    for name in dict.fromkeys(cell.branch for cell in own):
        row = [titles[name].title, relation(next(cell for cell in own if cell.branch == name))]
        for size in sizes:
            by_seed: dict[int, list[float]] = {}
            for cell in own:
                if cell.branch == name and _size(cell) == size:
                    by_seed.setdefault(cell.seed, []).append(getattr(cell, metric))
            most = max(map(len, by_seed.values()), default=0)  # a seed that lacks a set is a mean of something else
            row.append(spread([fmean(values) for values in by_seed.values() if len(values) == most]))
        rows.append(row)
    return ["system", "δ, and the claim", *map(str, sizes)], rows


def _size(cell: Cell) -> int:
    return int(cell.set.rpartition("_")[2])


if __name__ == "__main__":
    main()
