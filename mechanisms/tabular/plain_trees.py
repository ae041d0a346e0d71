"""XGBoost without protection, as it is, with class weights, or after SMOTE: references, never released.

SMOTE (Chawla et al. 2002): each class is raised to the size of the largest by points between a record of it and one of
the k nearest records of the same class. Distances are those of the features, one-hots included.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mechanisms.descent.keyed_state import KeyedState, fit_or_load
from mechanisms.mechanism import Fitted, Plan, Records, Run, Task, registered
from mechanisms.model.seeding import generator
from mechanisms.privacy.events import NonPrivateEvent
from mechanisms.tabular import trees
from mechanisms.tabular.columns import OfTables, TableModel, features_of
from mechanisms.tabular.trees import Trees, TreeSettings


@registered
class PlainTrees(OfTables, frozen=True, title="XGBoost"):
    """Balance, and trees."""

    leaves: ClassVar[type[TableModel]] = Trees

    kind: Literal["plain-trees"] = "plain-trees"
    balance: Literal["none", "weights", "smote"] = Field(default="none", title="Balance")
    neighbours: int = Field(default=5, ge=1, le=100, title="Neighbours k", description="SMOTE only.")
    trees: TreeSettings = TreeSettings()

    def event(self, noise: float, task: Task) -> NonPrivateEvent:
        """Returns the rounds."""
        return NonPrivateEvent(epochs=self.trees.rounds)

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Grow."""

        def make(_: KeyedState) -> Trees:
            features, labels, weights = features_of(records.inputs), records.labels, None
            if self.balance == "smote":
                draws = generator(run.seed, "smote")
                features, labels = smote(features, labels, neighbours=self.neighbours, draws=draws)
            elif self.balance == "weights":
                counts = torch.bincount(labels, minlength=run.classes).double().clamp(min=1)
                weights = (len(labels) / (run.classes * counts))[labels]
            return trees.grow(
                features, labels, classes=run.classes, seed=run.seed, settings=self.trees, weights=weights
            )

        event = NonPrivateEvent(epochs=self.trees.rounds)
        return Fitted(fit_or_load(run.folder, trees.FILE, new_key=run.new_key, load=Trees.load, fit=make), event)


def smote(features: Tensor, labels: Tensor, *, neighbours: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Records and, after them, what raises every class to the largest one's size.

    A class of one record is repeated; one of fewer than k + 1 has as many neighbours as it has.
    """
    counts = torch.bincount(labels)
    made, made_labels = [features], [labels]
    for label in torch.nonzero(counts)[:, 0].tolist():
        missing = int(counts.max() - counts[label])
        if missing == 0:
            continue
        own = features[labels == label]
        k = min(neighbours, len(own) - 1)
        base = torch.randint(len(own), (missing,), generator=draws)
        start, end = own[base], own[base]
        if k:
            nearest = nearest_within(own, k)
            end = own[nearest[base, torch.randint(k, (missing,), generator=draws)]]
        along = torch.rand(missing, 1, generator=draws, dtype=features.dtype)
        made.append(start + along * (end - start))
        made_labels.append(torch.full((missing,), label))
    return torch.cat(made), torch.cat(made_labels)


def nearest_within(own: Tensor, k: int) -> Tensor:
    """Indices int64 [n, k] of each record's nearest others."""
    distance = torch.cdist(own, own)
    distance.fill_diagonal_(torch.inf)
    return distance.topk(k, largest=False).indices
