"""Grows trees on balanced records that are drawn from noisy tables: what GEM, PrivBayes and naive Bayes share."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from mechanisms.mechanism import Aimed, Plan, Run, Task
from mechanisms.tabular import trees
from mechanisms.tabular.columns import Columns, OfTables, TableModel
from mechanisms.tabular.trees import Trees, TreeSettings


class Synthetic(OfTables, Aimed, frozen=True):
    """A mechanism whose model is trees on synthetic records."""

    leaves: ClassVar[type[TableModel]] = Trees

    records: int | None = Field(
        default=None, ge=2, le=10_000_000, title="Synthetic records", description="Empty: as many as there are records."
    )
    trees: TreeSettings = TreeSettings()

    def plan(self, task: Task) -> Plan:
        """Solves the noise, and settles the number of synthetic records."""
        plan = super().plan(task)
        settled = plan.mechanism.model_copy(update={"records": self.records or task.records})
        return plan.model_copy(update={"mechanism": settled})

    def labels(self, run: Run) -> Tensor:
        """Labels int64 of the synthetic records, as many of each class as can be."""
        assert self.records is not None
        return torch.arange(self.records) % run.classes

    def grow(self, columns: Columns, codes: Tensor, labels: Tensor, draws: torch.Generator, run: Run) -> Trees:
        """Grows trees on records of these codes; numbers are drawn within their bins."""
        features = columns.decode(codes, draws)
        return trees.grow(features, labels, classes=run.classes, seed=run.seed, settings=self.trees)
