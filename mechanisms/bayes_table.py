"""A private naive Bayes table, and XGBoost on balanced records drawn from it.

One Laplace release holds a table of class by value for every column. From it, by post-processing: each class's total
(the mean over columns), each column's values given the class (the nearest non-negative ones with that total), records
in which every class is as frequent and the columns are independent given the class, and trees grown on those. A record
that is replaced leaves one cell of every table and enters another.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

import torch
from pydantic import ConfigDict, Field
from torch import Tensor

from mechanisms.mechanism import Aimed, Fitted, Plan, Records, Run, Task, registered
from mechanisms.model.seeding import generator
from mechanisms.privacy.events import LaplaceReleaseEvent
from mechanisms.privacy.noise import SecretStream
from mechanisms.tables import columns as tables
from mechanisms.tables import trees
from mechanisms.tables.columns import Columns, features_of
from mechanisms.tables.once import once
from mechanisms.tables.trees import Trees, TreeSettings

L1_SENSITIVITY = 2.0
"""Of all tables, divided by their number."""


@registered
class BayesTable(Aimed, frozen=True):
    """Bins, synthetic records, trees."""

    model_config = ConfigDict(title="Naive Bayes table")
    reads: ClassVar[frozenset[str]] = frozenset({"features"})

    kind: Literal["bayes-table"] = "bayes-table"
    bins: int = Field(default=8, ge=2, le=1000, title="Bins of a number")
    records: int | None = Field(
        default=None, ge=2, le=10_000_000, title="Synthetic records", description="Empty: as many as there are records."
    )
    trees: TreeSettings = TreeSettings()

    def plan(self, task: Task) -> Plan:
        """All of epsilon goes to the one release.

        Raises:
            MechanismError: no target.
        """
        own = self.at(task)
        assert own.target_epsilon is not None
        epsilon = own.target_epsilon * (1 - 1e-9)
        own = own.model_copy(update={"records": self.records or task.records})
        event = LaplaceReleaseEvent(
            what="tables of class by value, divided by the number of columns",
            noise_multiplier=task.records_per_unit / epsilon,
            l1_sensitivity=L1_SENSITIVITY,
        )
        return Plan(mechanism=own, event=event, records=task.records)

    def cost(self, plan: Plan, task: Task) -> Mapping[str, float]:
        """The noise."""
        assert isinstance(plan.event, LaplaceReleaseEvent)
        return {"noise_multiplier": plan.event.noise_multiplier}

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Release, draw, grow."""
        event = plan.event
        assert isinstance(event, LaplaceReleaseEvent)

        def make(stream: SecretStream) -> Trees:
            features = features_of(records.inputs)
            columns = Columns.of(run.schema, features.shape[1], bins=self.bins)
            noisy = released(columns.encode(features), columns.sizes, records.labels, run.classes, event, stream)
            labels = tables.balanced_labels(self.records or len(records), run.classes)
            draws = generator(run.seed, "bayes-table")
            codes = drawn(noisy, labels, draws)
            return trees.grow(
                columns.decode(codes, draws), labels, classes=run.classes, seed=run.seed, settings=self.trees
            )

        return Fitted(once(run.folder, trees.FILE, load=Trees.load, make=make), event)

    def load(self, folder: Path, run: Run, *, purpose: str = "evaluate") -> Trees:
        """The trees."""
        return Trees.load(folder)


def counts(codes: Tensor, sizes: tuple[int, ...], labels: Tensor, classes: int) -> list[Tensor]:
    """Tables float64 [classes, size] of class by value, one a column."""
    return [
        torch.bincount(labels * size + code, minlength=classes * size).double().view(classes, size)
        for code, size in zip(codes.unbind(1), sizes, strict=True)
    ]


def released(
    codes: Tensor,
    sizes: tuple[int, ...],
    labels: Tensor,
    classes: int,
    event: LaplaceReleaseEvent,
    stream: SecretStream,
) -> list[Tensor]:
    """The tables with noise of scale multiplier x sensitivity x columns: what is released is divided by the columns."""
    scale = event.noise_multiplier * event.l1_sensitivity * len(sizes)
    return [
        table + stream.laplace(table.numel(), scale=scale, purpose="class by value", step=step).view_as(table)
        for step, table in enumerate(counts(codes, sizes, labels, classes))
    ]


def drawn(noisy: list[Tensor], labels: Tensor, draws: torch.Generator) -> Tensor:
    """Codes int64 [n, columns] for these labels, columns independent given the label."""
    totals = torch.stack([table.sum(1) for table in noisy]).mean(0)
    codes = []
    for table in noisy:
        given = tables.projected(table, totals)
        given = torch.where(totals[:, None] > 0, given, torch.full_like(given, 1 / given.shape[1]))
        codes.append(torch.multinomial(given[labels], 1, generator=draws)[:, 0])
    return torch.stack(codes, dim=1)
