"""What docs/rare-codes.md says of tables, from cells."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

import rare_codes

from tasks.imbalance.cell import METRICS, Cell
from tasks.imbalance.run import save_cells

NOT_PRIVATE = "none: not private"


def cell(name: str, branch: str, epsilon: float | None, seed: int, f1: float) -> Cell:
    figures = dict.fromkeys((*METRICS, "precision", "average_precision", "seconds"), 0.5) | {"f1": f1}
    key = f"{name}{branch}{epsilon}{seed}"
    kind = "none" if epsilon is None else "formal"
    return Cell(key=key, set=name, branch=branch, epsilon=epsilon, seed=seed, kind=kind, relation="replace-one",
                claimed=1, delta=0, **figures)  # fmt: skip


CELLS = [
    cell("a_5", "gem", 1, 0, 0.1),
    cell("b_5", "gem", 1, 0, 0.3),
    cell("a_5", "gem", 1, 1, 0.4),
    cell("b_5", "gem", 1, 1, 0.4),
    cell("a_5", "gem", 1, 2, 0.9),
    cell("a_20", "gem", 1, 0, 0.7),
    cell("a_5", "gem", 5, 0, 0.9),
    cell("a_5", "plain-trees", None, 0, 0.8),
]


def test_a_mean_over_sets_and_a_spread_over_seeds() -> None:
    """Sizes are numbers, not words; a system without protection stands at every epsilon, a cell that is not there is a
    dash, and a seed that lacks a set is left out."""
    tables = rare_codes.thinned(CELLS)
    head, rows = tables[1, "F1"]
    assert list(head) == ["system", "δ, and the claim", "5", "20"]
    relation = "δ 0"
    assert rows == [["GEM + XGBoost", relation, "0.300 ± 0.141", "0.700"], ["XGBoost", NOT_PRIVATE, "0.800", "–"]]
    assert tables[5, "F1"][1][0] == ["GEM + XGBoost", relation, "0.900"]


def test_the_page_is_written_from_what_lies_beside_it(tmp_path: Path) -> None:
    """Without a comparison of text and with cells of tables: the one not measured, the other told."""
    save_cells(tmp_path / "rare-codes" / "tables" / "cells.json", CELLS)
    page, results = tmp_path / "rare-codes.md", tmp_path / "rare-codes" / "results.json"
    with mock.patch.object(sys, "argv", ["rare_codes", "--out", str(page), "--results", str(results)]):
        rare_codes.main()
    text = page.read_text()
    assert "### ε 1: F1\n" in text
    assert "| XGBoost | none: not private | 0.800 | – |" in text
    assert "Not measured yet" in text
