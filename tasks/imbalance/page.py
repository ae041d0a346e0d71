"""Writes the page of a suite of public records."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mechanisms.mechanism import Aimed
from storage import strict_yaml
from storage.durable import write_atomically
from tasks.branches.branch import Branch
from tasks.catalogue import SUITES
from tasks.imbalance import tables
from tasks.imbalance.cell import METRICS, Cell
from tasks.imbalance.run import load_cells, save_cells
from tasks.imbalance.suite import STANDARD, Suite, TableSet
from tasks.imbalance.tables import Cells
from tasks.pages.render import notes_beside, render
from tasks.running.provenance import provenance

RANKED_SHARE = 2 / 3
"""Smallest share of the pairs of set and epsilon for a system to be ranked, on the pairs that all ranked ones have."""
PUBLISHED = SUITES / "imbalance.published.yaml"


def cells_beside(page: Path) -> Path:
    """Returns the file with a page's cells: `imbalance/cells.json` for `imbalance.md`."""
    return page.with_suffix("") / "cells.json"


def references_beside(page: Path) -> Path:
    """Returns the file with a page's cells of another library (`scripts/diffprivlib_cells.py`)."""
    return page.with_suffix("") / "diffprivlib.json"


def write(
    file: Path,
    given: Suite,
    branches: Mapping[str, Branch],
    sets: Mapping[str, TableSet],
    cells: Sequence[Cell],
    *,
    suite: str,
) -> None:
    """Writes the page, and its cells next to it. `suite` is the name of the suite's file."""
    save_cells(cells_beside(file), list(cells))
    others = [cell for cell in load_cells(references_beside(file)).values() if cell.set in sets]
    text = page(given, branches, sets, cells, suite=suite, notes=notes_beside(file), others=others)
    write_atomically(file, text.encode())


def page(
    given: Suite,
    branches: Mapping[str, Branch],
    sets: Mapping[str, TableSet],
    cells: Sequence[Cell],
    *,
    suite: str,
    notes: str,
    others: Sequence[Cell] = (),
) -> str:
    """Returns the page's text. `others` are cells of another library, which are in no rank."""
    published: dict[str, Any] = strict_yaml.load(PUBLISHED.read_text(encoding="utf-8"))
    results, beside = Cells(cells), Cells([*cells, *others])
    measured = {name: branch for name, branch in branches.items() if any(cell.branch == name for cell in cells)}
    private = {name: branch for name, branch in measured.items() if isinstance(branch.mechanism, Aimed)}
    everywhere = {
        name: branch for name, branch in private.items() if _share(results, given, name, sets) >= RANKED_SHARE
    }
    references = {
        name: title for name, title in published["references"].items() if any(c.branch == name for c in others)
    }
    papers = {name: branch for name, branch in everywhere.items() if name in published["ranks"]}
    places = [(name, epsilon) for name in sets for epsilon in given.epsilons]
    seeds = {name: _seeds(results, name, places) for name in measured}
    unprotected = dict.fromkeys(line for table in sets.values() for line in table.unprotected)
    return render(
        "imbalance.md",
        suite=given,
        suite_file=None if suite == STANDARD.name else suite,
        source=provenance(),
        machine=f"{os.cpu_count()} CPU cores, {platform.machine()}",
        seeds=results.seeds,
        fewer=[f"{measured[name].title}: {count}" for name, count in seeds.items() if count != str(results.seeds)],
        limited=[branch.title for name, branch in private.items() if name not in everywhere],
        sets=_sets_table(sets),
        papers=tables.rank_table(results, papers, places, published=published["ranks"]) if len(papers) > 1 else None,
        paper_pairs=tables.common(results, papers, places),
        unranked=[
            branch.title for name, branch in private.items() if name in published["ranks"] and name not in papers
        ],
        published=published,
        all=tables.rank_table(results, everywhere, places),
        ranked=tables.common(results, everywhere, places),
        places=len(places),
        points=tables.points(results, measured, places),
        sanity=tables.sanity(results, published["f1_of_plain_trees"], given.epsilons[-1]),
        over=[
            tables.over_epsilon(beside, _titles(everywhere) | references, list(sets), given.epsilons, metric)
            for metric in (*METRICS, "average_precision")
        ],
        full={
            (name, epsilon): tables.by_set(beside, _titles(measured) | references, name, epsilon)
            for name in sets
            for epsilon in given.epsilons
            if epsilon in (1, 5) or len(given.epsilons) < 3
        },
        references=references,
        unprotected=list(unprotected),
        notes=notes,
    )


def _titles(branches: Mapping[str, Branch]) -> dict[str, str]:
    return {name: branch.title for name, branch in branches.items()}


def _seeds(cells: Cells, branch: str, places: Sequence[tables.At]) -> str:
    """Returns the number of seeds of a branch, or the least and the most over places."""
    counts = [count for at in places if (count := len(cells.of(branch, at)))]
    return str(counts[0]) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def _share(cells: Cells, suite: Suite, branch: str, sets: Mapping[str, TableSet]) -> float:
    """Returns the share of the pairs of set and epsilon that a branch has."""
    done = [bool(cells.of(branch, (name, epsilon))) for name in sets for epsilon in suite.epsilons]
    return sum(done) / len(done)


def _sets_table(sets: Mapping[str, TableSet]) -> tables.Table:
    rows = []
    for name, table in sets.items():
        ones = int(table.labels.sum())
        ratio = (len(table.labels) - ones) / ones
        minority = str(ones)
        if table.training_minority is not None:
            minority += f", of which {table.training_minority} train"
        widths = [str(len(table.schema.columns)), str(table.features.shape[1])]
        rows.append([name, f"{len(table.labels):,}", minority, f"{ratio:.1f}", *widths])
    return ["set", "records", "of label 1", "imbalance", "columns", "features"], rows
