"""Defines suites; reads and checks their sets before any work."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from pydantic import BaseModel, Field, ValidationError
from torch import Tensor

from mechanisms.model.schema import FeatureColumn, FeatureSchema
from storage import strict_yaml
from storage.artifacts import file_digest
from storage.errors import InputError
from storage.tables.reader import open_table
from tasks.branches.branch import Branch, standard_branches
from tasks.catalogue import SUITES

STANDARD = SUITES / "imbalance.yaml"


class SetConfig(BaseModel, frozen=True, extra="forbid"):
    """Describes one data set of a suite: the contents of its file, and public bounds."""

    file: str | None = Field(default=None, description="Empty: the set's name and .csv")
    records: int = Field(ge=10)
    minority: int = Field(ge=2, description="Records of label 1.")
    training_minority: int | None = Field(
        default=None, ge=1, description="Training records of label 1, drawn by the seed. Empty: all."
    )
    numeric: dict[str, tuple[float, float]] = {}
    values: dict[str, tuple[str, ...]] = {}
    one_hot: tuple[str, ...] = ()
    unprotected: tuple[str, ...] = ()


class Limits(BaseModel, frozen=True, extra="forbid"):
    """Limits the places of a branch; None: no limit."""

    seeds: int | None = Field(default=None, ge=1)
    epsilons: tuple[float, ...] | None = None
    sets: tuple[str, ...] | None = None


class Suite(BaseModel, frozen=True, extra="forbid"):
    """Combines sets, branches and epsilons."""

    title: str
    epsilons: tuple[float, ...] = Field(min_length=1)
    test_share: float = Field(gt=0, lt=1)
    label: str
    sets: dict[str, SetConfig] = Field(min_length=1)
    branches: dict[str, Limits] = Field(min_length=1)

    @property
    def chosen(self) -> dict[str, Branch]:
        """Returns the branches by name, in the suite's order; refuses unknown ones, and limits to unknown sets."""
        branches = standard_branches()
        if missing := sorted(self.branches.keys() - branches.keys()):
            raise InputError(f"suite: no branch `{missing[0]}` in deployments/branches.yaml")
        for name, limits in self.branches.items():
            if strange := sorted(set(limits.sets or ()) - self.sets.keys()):
                raise InputError(f"suite: branch `{name}` is limited to a set `{strange[0]}` that the suite lacks")
        return {name: branches[name] for name in self.branches}


@dataclass(frozen=True)
class TableSet:
    """Holds features float32 [n, d] in [0, 1], labels int64 [n], schema, the file's digest, and the number of training
    records of label 1."""

    name: str
    features: Tensor
    labels: Tensor
    schema: FeatureSchema
    sha256: str
    unprotected: tuple[str, ...]
    training_minority: int | None = None


def load(path: Path) -> Suite:
    """Loads a suite from a YAML file; names the invalid field of another."""
    if not path.is_file():
        raise InputError(f"--suite: no file {path}")
    try:
        return Suite.model_validate(strict_yaml.load(path.read_text(encoding="utf-8")))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"--suite: {path.name} is not valid YAML: {str(error).splitlines()[0]}") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"--suite: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def read_sets(suite: Suite, folder: Path, names: Sequence[str]) -> dict[str, TableSet]:
    """Reads every set of the folder and checks columns, records, labels and categories.

    Raises:
        InputError: names the file and the column, and what was expected.
    """
    if not folder.is_dir():
        raise InputError(f"--data: no folder {folder}")
    missing = [name for name in names if not (folder / (suite.sets[name].file or f"{name}.csv")).is_file()]
    if missing:
        raise InputError(
            f"--data: {folder} lacks {', '.join(f'{name}.csv' for name in missing)}. Provide one CSV per set, with "
            f"the label (0 or 1) in column `{suite.label}`."
        )
    return {name: _read(suite, name, folder / (suite.sets[name].file or f"{name}.csv")) for name in names}


def _read(suite: Suite, name: str, file: Path) -> TableSet:
    config = suite.sets[name]
    header = open_table(file, [suite.label], option="--data").columns
    hot = {base: [column for column in header if column.partition("=")[0] == base] for base in config.one_hot}
    for base, one_hot in hot.items():
        if len(one_hot) < 2:
            raise InputError(f"--data: {file.name} has no columns `{base}=…`")
    columns = [*config.numeric, *config.values, *(column for one_hot in hot.values() for column in one_hot)]
    columns.append(suite.label)
    if strange := [column for column in header if column not in columns]:
        raise InputError(
            f"--data: {file.name} has an unexpected column `{strange[0]}`. Remove it, or add it to the suite."
        )
    table = open_table(file, columns, option="--data")
    cells = {column: [] for column in columns}
    for row in table.read(columns):
        for column, cell in zip(columns, row, strict=True):
            cells[column].append(cell)
    labels = _numbers(file, suite.label, cells[suite.label])
    if set(labels) - {0.0, 1.0}:
        raise InputError(f"--data: {file.name}, column `{suite.label}`: labels must be 0 or 1")
    counts = (len(labels), int(sum(labels)))
    if counts != (config.records, config.minority):
        raise InputError(
            f"--data: {file.name} has {counts[0]:,} records, {counts[1]:,} of label 1; the suite expects "
            f"{config.records:,} and {config.minority:,}. Check the version of the set."
        )
    schema_columns, values = _columns(file, config, hot, cells)
    schema = FeatureSchema(columns=schema_columns)
    features = schema.encode(torch.tensor(values, dtype=torch.float64).T)
    targets = torch.tensor(labels, dtype=torch.int64)
    return TableSet(name, features, targets, schema, file_digest(file), config.unprotected, config.training_minority)


def _columns(
    file: Path, config: SetConfig, hot: Mapping[str, list[str]], cells: Mapping[str, list[Any]]
) -> tuple[tuple[FeatureColumn, ...], list[list[float]]]:
    """Returns columns, and for each its numbers or the indices of its values."""
    columns, values = [], []
    for column, bounds in config.numeric.items():
        columns.append(FeatureColumn(name=column, kind="numeric", bounds=bounds))
        values.append(_numbers(file, column, cells[column]))
    for column, allowed in config.values.items():
        columns.append(FeatureColumn(name=column, kind="categorical", categories=allowed))
        places = {float(value): place for place, value in enumerate(allowed)}
        numbers = _numbers(file, column, cells[column])
        if set(numbers) - places.keys():
            raise InputError(f"--data: {file.name}, column `{column}`: values must be {', '.join(allowed)}")
        values.append([places[number] for number in numbers])
    for base, one_hot in hot.items():
        categories = tuple(column.partition("=")[2] for column in one_hot)
        columns.append(FeatureColumn(name=base, kind="categorical", categories=categories))
        grid = list(zip(*(_numbers(file, column, cells[column]) for column in one_hot), strict=True))
        if any(sorted(row) != [0.0] * (len(one_hot) - 1) + [1.0] for row in grid):
            raise InputError(f"--data: {file.name}: exactly one of the columns `{base}=…` must be 1 in every row")
        values.append([row.index(1.0) for row in grid])
    return tuple(columns), values


def _numbers(file: Path, column: str, cells: Sequence[Any]) -> list[float]:
    try:
        numbers = [float(cell) for cell in cells]
    except (TypeError, ValueError):
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise InputError(f"--data: {file.name}, column `{column}` has cells that are not numbers")
    return numbers
