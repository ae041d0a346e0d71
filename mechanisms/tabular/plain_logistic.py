"""Logistic regression without protection, with or without class weights: a reference, never released."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field

from mechanisms.descent.keyed_state import KeyedState, fit_or_load
from mechanisms.mechanism import Fitted, Plan, Records, Run, Task, registered
from mechanisms.privacy.events import NonPrivateEvent
from mechanisms.tabular import linear
from mechanisms.tabular.columns import Columns, OfTables, TableModel, features_of
from mechanisms.tabular.linear import UnitLinear


@registered
class PlainLogistic(OfTables, frozen=True, title="Logistic regression"):
    """The exact minimiser of the regularised loss; more than two classes: each against the rest."""

    leaves: ClassVar[type[TableModel]] = UnitLinear

    kind: Literal["plain-logistic"] = "plain-logistic"
    balanced: bool = Field(default=False, title="Class weights", description="By the classes' inverse frequencies.")
    regularisation: float = Field(default=1e-4, gt=0, le=1e3, allow_inf_nan=False, title="Lambda")

    def event(self, noise: float, task: Task) -> NonPrivateEvent:
        """Returns one pass."""
        return NonPrivateEvent(epochs=1)

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Minimise."""

        def make(_: KeyedState) -> UnitLinear:
            features = features_of(records.inputs)
            columns = Columns.of(run.schema, features.shape[1], bins=1)
            counts = torch.bincount(records.labels, minlength=run.classes).double().clamp(min=1)
            by_class = counts.mean() / counts if self.balanced else torch.ones_like(counts)
            x = columns.unit(features)
            fitted = []
            for problem in (1,) if run.classes == 2 else range(run.classes):
                y = torch.where(records.labels == problem, 1.0, -1.0).double()
                zero = torch.zeros(x.shape[1], dtype=torch.float64)
                weights = by_class[records.labels]
                fitted.append(linear.minimise(x, y, weights, regularisation=self.regularisation, linear=zero))
            return UnitLinear(torch.stack(fitted), columns)

        return Fitted(
            fit_or_load(run.folder, linear.FILE, new_key=run.new_key, load=UnitLinear.load, fit=make),
            NonPrivateEvent(epochs=1),
        )
