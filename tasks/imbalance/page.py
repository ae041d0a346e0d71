"""The page of a suite: of records that are public."""

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
from tasks.imbalance import tables
from tasks.imbalance.cell import METRICS, Cell
from tasks.imbalance.run import keep
from tasks.imbalance.suite import STANDARD, Suite, TableSet
from tasks.imbalance.tables import Cells
from tasks.pages.render import notes_beside, render
from tasks.running.provenance import provenance

MOST = 2 / 3
"""Share of the pairs of set and epsilon that a system must have to be ranked among all, at what all of these have."""
PUBLISHED = Path(__file__).resolve().parents[2] / "deployments" / "suites" / "imbalance.published.yaml"


def cells_beside(page: Path) -> Path:
    """Where a page keeps its cells: `imbalance/cells.json` for `imbalance.md`."""
    return page.with_suffix("") / "cells.json"


def write(
    file: Path,
    given: Suite,
    branches: Mapping[str, Branch],
    sets: Mapping[str, TableSet],
    cells: Sequence[Cell],
    *,
    suite: str,
) -> None:
    """The page, and its cells beside it. `suite` is the name of the suite's file."""
    keep(cells_beside(file), list(cells))
    write_atomically(file, page(given, branches, sets, cells, suite=suite, notes=notes_beside(file)).encode())


def page(
    given: Suite,
    branches: Mapping[str, Branch],
    sets: Mapping[str, TableSet],
    cells: Sequence[Cell],
    *,
    suite: str,
    notes: str,
) -> str:
    """The page's text."""
    published: dict[str, Any] = strict_yaml.load(PUBLISHED.read_text(encoding="utf-8"))
    found = Cells(cells)
    there = {name: branch for name, branch in branches.items() if any(cell.branch == name for cell in cells)}
    private = {name: branch for name, branch in there.items() if isinstance(branch.mechanism, Aimed)}
    everywhere = {name: branch for name, branch in private.items() if _share(found, given, name, sets) >= MOST}
    papers = {name: branch for name, branch in private.items() if name in published["ranks"]}
    places = [(name, epsilon) for name in sets for epsilon in given.epsilons]
    seeds = {name: _seeds(found, name, places) for name in there}
    unprotected = dict.fromkeys(line for table in sets.values() for line in table.unprotected)
    return render(
        "imbalance.md",
        suite=given,
        suite_file=None if suite == STANDARD.name else suite,
        source=provenance(),
        machine=f"{os.cpu_count()} CPU cores, {platform.machine()}",
        seeds=found.seeds,
        fewer=[f"{there[name].title}: {said}" for name, said in seeds.items() if said != str(found.seeds)],
        limited=[branch.title for name, branch in private.items() if name not in everywhere],
        sets=_sets_table(sets),
        papers=tables.rank_table(found, papers, places, published=published["ranks"]) if len(papers) > 1 else None,
        published=published,
        all=tables.rank_table(found, everywhere, places),
        ranked=tables.common(found, everywhere, places),
        places=len(places),
        ahead=tables.ahead(found, everywhere, places, "gem") if "gem" in everywhere else [],
        points=tables.points(found, there, places),
        sanity=tables.sanity(found, published["f1_of_plain_trees"], given.epsilons[-1]),
        prototypes=tables.beside_prototypes(found, there, published["prototypes"]),
        over=[
            tables.over_epsilon(found, everywhere, list(sets), given.epsilons, metric)
            for metric in (*METRICS, "average_precision")
        ],
        full={
            (name, epsilon): tables.by_set(found, there, name, epsilon)
            for name in sets
            for epsilon in given.epsilons
            if epsilon in (1, 5) or len(given.epsilons) < 3
        },
        unprotected=list(unprotected),
        notes=notes,
    )


def _seeds(cells: Cells, branch: str, places: Sequence[tables.At]) -> str:
    """How many seeds a branch has where it ran: one number, or the least and the most."""
    counts = [count for at in places if (count := len(cells.of(branch, at)))]
    return str(counts[0]) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def _share(cells: Cells, suite: Suite, branch: str, sets: Mapping[str, TableSet]) -> float:
    """Of the pairs of set and epsilon, those that a branch has."""
    there = [bool(cells.of(branch, (name, epsilon))) for name in sets for epsilon in suite.epsilons]
    return sum(there) / len(there)


def _sets_table(sets: Mapping[str, TableSet]) -> tables.Table:
    rows = []
    for name, table in sets.items():
        ones = int(table.labels.sum())
        ratio = (len(table.labels) - ones) / ones
        own = str(ones) if table.kept is None else f"{ones}, of which {table.kept} train"
        rows.append(
            [name, f"{len(table.labels):,}", own, f"{ratio:.1f}", str(len(table.schema.columns)),
             str(table.features.shape[1])]
        )  # fmt: skip
    return ["set", "records", "of label 1", "imbalance", "columns", "features"], rows
