"""Draws the sample of a release, and reads it back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mechanisms.privacy.accuracy_table import AccuracyTable
from mechanisms.privacy.events import ParallelEvent
from tasks.releasing.held_out_table import Answers
from tasks.releasing.plan import PlannedRelease
from tasks.running.stage import Context

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Sample:
    """The sample of a release: its parameters, and the table of the held-out records if
    one is released.
    """

    theta: Tensor
    table: AccuracyTable | None = None

    @property
    def tensors(self) -> dict[str, Tensor]:
        import torch

        if self.table is None:
            return {"theta": self.theta}
        counts = {"temperature": self.table.temperature, "accuracy": self.table.accuracy}
        return {"theta": self.theta} | {
            name: torch.from_numpy(value) for name, value in counts.items()
        }

    @staticmethod
    def of(tensors: Mapping[str, Tensor], *, groups: int | None) -> Sample:
        """Reads the tensors of a file. Raises ValueError or KeyError if they have another form.

        Args:
            groups: number of groups in the planned table, or None if there is no table.
        """
        if groups is None:
            return Sample(tensors["theta"])
        rows = {name: tensors[name].numpy() for name in ("temperature", "accuracy")}
        table = AccuracyTable(rows["temperature"], rows["accuracy"], groups)
        if not table.is_whole or any(row.dtype != np.int64 for row in rows.values()):
            raise ValueError("another table")
        return Sample(tensors["theta"], table)

    @staticmethod
    def draw(context: Context, planned: PlannedRelease, *, note: Callable[[], None]) -> Sample:
        """Draws once. A second call draws again.

        Args:
            note: called right before anything random is drawn.
        """
        candidate, event = planned.candidate, planned.plan.event
        if candidate.is_sampled:
            note()
        theta = candidate.draw(context)
        if not isinstance(event, ParallelEvent):
            return Sample(theta)
        answers = Answers.of(context, candidate, theta)
        if not candidate.is_sampled:
            note()
        return Sample(theta, answers.draw(event))
