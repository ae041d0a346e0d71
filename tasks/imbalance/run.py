"""All cells of a suite, one after another: what is finished is found, what was killed is fitted again."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ValidationError

from storage.durable import write_atomically
from tasks.branches.branch import Branch
from tasks.imbalance.cell import Cell, Fits, key_of
from tasks.imbalance.suite import Suite, TableSet
from tasks.running import progress

Place = tuple[str, str, float | None, int]
"""Set, branch, epsilon, seed."""


class Summary(BaseModel, frozen=True):
    """What the command answers."""

    cells: int
    page: str


def places(suite: Suite, branches: Mapping[str, Branch], *, sets: tuple[str, ...], seeds: int) -> list[Place]:
    """Every cell, seed by seed, so that what is there after any time is of all sets and branches."""
    made: list[Place] = []
    for seed in range(seeds):
        for name in sets:
            for branch, rival in branches.items():
                limits = suite.branches[branch]
                if seed >= (limits.seeds or seeds) or name not in (limits.sets or sets):
                    continue
                epsilons = suite.epsilons if rival.mechanism.aims else (None,)
                allowed = limits.epsilons or suite.epsilons
                made += [(name, branch, epsilon, seed) for epsilon in epsilons if epsilon is None or epsilon in allowed]
    return made


def run(
    suite: Suite,
    branches: Mapping[str, Branch],
    tables: Mapping[str, TableSet],
    *,
    seeds: int,
    folder: Path,
    before: Mapping[str, Cell],
    fitting: bool = True,
) -> list[Cell]:
    """Every cell, in order of `places`.

    Args:
        folder: private; one file a finished cell, by its key.
        before: cells of an earlier run by their keys, taken as they are.
        fitting: False: those that are not finished are left out.

    Raises:
        MechanismError: a mechanism refuses a set; the cells before it stay.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fits, label = Fits(suite.test_share), "imbalance"
    wanted = places(suite, branches, sets=tuple(tables), seeds=seeds)
    progress.started(label)
    started, cells, fresh = time.monotonic(), [], 0
    for done, (name, branch, epsilon, seed) in enumerate(wanted, start=1):
        key = key_of(tables[name], branches[branch], epsilon, seed, suite.test_share)
        cell = before.get(key) or _found(folder / f"{key}.json")
        if cell is None and fitting:
            cell, fresh = fits.fit(tables[name], branches[branch], epsilon, seed, key), fresh + 1
            write_atomically(folder / f"{key}.json", cell.model_dump_json().encode())
        if cell is not None:
            cells.append(cell)
        progress.report(label, done, len(wanted))
    figures = {"cells": len(cells), "fitted now": fresh}
    progress.finished(label, figures, reused=fresh == 0, seconds=time.monotonic() - started)
    return cells


def _found(path: Path) -> Cell | None:
    try:
        return Cell.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def kept(path: Path) -> dict[str, Cell]:
    """Cells that an earlier page has beside it, by key; those of another version are left out."""
    if not path.is_file():
        return {}
    cells = []
    for content in json.loads(path.read_text()):
        try:
            cells.append(Cell.model_validate(content))
        except ValidationError:
            continue
    return {cell.key: cell for cell in cells}


def keep(path: Path, cells: list[Cell]) -> None:
    """Write what `kept` reads: one cell a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(cell.model_dump_json() for cell in cells)
    write_atomically(path, f"[\n{lines}\n]\n".encode())
