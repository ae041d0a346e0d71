"""Runs the cells of a suite one by one: finished cells are read, interrupted ones are fitted again."""

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
    """Summarises a run for the command's output."""

    cells: int
    page: str


def places(suite: Suite, branches: Mapping[str, Branch], *, sets: tuple[str, ...], seeds: int) -> list[Place]:
    """Lists every cell, seed by seed, so that results at any time cover all sets and branches."""
    cells: list[Place] = []
    for seed in range(seeds):
        for name in sets:
            for branch, rival in branches.items():
                limits = suite.branches[branch]
                if seed >= (limits.seeds or seeds) or name not in (limits.sets or sets):
                    continue
                epsilons = suite.epsilons if rival.mechanism.has_target else (None,)
                allowed = limits.epsilons or suite.epsilons
                cells += [
                    (name, branch, epsilon, seed) for epsilon in epsilons if epsilon is None or epsilon in allowed
                ]
    return cells


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
    """Runs every cell, in order of `places`.

    Args:
        folder: private; one file per finished cell, by its key.
        before: cells of an earlier run by their keys, reused.
        fitting: False leaves out unfinished cells.

    Raises:
        MechanismError: a mechanism refuses a set; earlier cells stay.
    """
    folder.mkdir(parents=True, exist_ok=True)
    fits, label = Fits(suite.test_share), "imbalance"
    all_places = places(suite, branches, sets=tuple(tables), seeds=seeds)
    progress.started(label)
    started, cells, fresh = time.monotonic(), [], 0
    for done, (name, branch, epsilon, seed) in enumerate(all_places, start=1):
        key = key_of(tables[name], branches[branch], epsilon, seed, suite.test_share)
        cell = before.get(key) or _load(folder / f"{key}.json")
        if cell is None and fitting:
            cell, fresh = fits.fit(tables[name], branches[branch], epsilon, seed, key), fresh + 1
            write_atomically(folder / f"{key}.json", cell.model_dump_json().encode())
        if cell is not None:
            cells.append(cell)
        progress.report(label, done, len(all_places))
    figures = {"cells": len(cells), "fitted now": fresh}
    progress.finished(label, figures, reused=fresh == 0, seconds=time.monotonic() - started)
    return cells


def _load(path: Path) -> Cell | None:
    try:
        return Cell.model_validate_json(path.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def load_cells(path: Path) -> dict[str, Cell]:
    """Loads the cells of an earlier page, by key; skips those of another version."""
    if not path.is_file():
        return {}
    cells = []
    for content in json.loads(path.read_text()):
        try:
            cells.append(Cell.model_validate(content))
        except ValidationError:
            continue
    return {cell.key: cell for cell in cells}


def save_cells(path: Path, cells: list[Cell]) -> None:
    """Writes cells for `load_cells`, one per line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(cell.model_dump_json() for cell in cells)
    write_atomically(path, f"[\n{lines}\n]\n".encode())
