"""A private naive Bayes table, and XGBoost on balanced records drawn from it.

One Laplace release holds a table of class by value for every column. From it, by post-processing: each class's total
(the mean over columns), each column's values given the class (the nearest non-negative ones with that total), records
in which every class is as frequent and the columns are independent given the class, and trees grown on those. A record
that is replaced leaves one cell of every table and enters another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from mechanisms.descent.keyed_state import KeyedState, fit_or_load
from mechanisms.mechanism import Fitted, Plan, Records, Run, Task, registered
from mechanisms.model.seeding import generator
from mechanisms.privacy.events import LaplaceReleaseEvent
from mechanisms.privacy.noise import SecretStream
from mechanisms.tabular import columns as tables
from mechanisms.tabular import trees
from mechanisms.tabular.columns import Columns, features_of
from mechanisms.tabular.synthetic import Synthetic
from mechanisms.tabular.trees import Trees

L1_SENSITIVITY = 2.0
"""Of all tables, divided by their number."""


@registered
class BayesTable(Synthetic, frozen=True, title="Naive Bayes table"):
    """Bins, synthetic records, trees."""

    kind: Literal["bayes-table"] = "bayes-table"
    bins: int = Field(default=8, ge=2, le=1000, title="Bins of a number")

    def calibrate(self, task: Task) -> float:
        """Returns the noise multiplier of the release."""
        assert self.target_epsilon is not None
        return task.records_per_unit / (self.target_epsilon * (1 - 1e-9))

    def event(self, noise: float, task: Task) -> LaplaceReleaseEvent:
        """Returns the one release."""
        return LaplaceReleaseEvent(
            what="tables of class by value, divided by the number of columns",
            noise_multiplier=noise,
            l1_sensitivity=L1_SENSITIVITY,
        )

    def cost(self, plan: Plan, task: Task) -> Mapping[str, float]:
        """The noise."""
        assert isinstance(plan.event, LaplaceReleaseEvent)
        return {"noise_multiplier": plan.event.noise_multiplier}

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Release, draw, grow."""
        event = plan.event
        assert isinstance(event, LaplaceReleaseEvent)

        def make(state: KeyedState) -> Trees:
            features = features_of(records.inputs)
            columns = Columns.of(run.schema, features.shape[1], bins=self.bins)
            noisy = released(columns.encode(features), columns.sizes, records.labels, run.classes, event, state.stream)
            labels = self.labels(run)
            draws = generator(run.seed, "bayes-table")
            return self.grow(columns, drawn(noisy, labels, draws), labels, draws, run)

        return Fitted(fit_or_load(run.folder, trees.FILE, new_key=run.new_key, load=Trees.load, fit=make), event)


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
