"""XGBoost on a table, real or synthetic, without protection of its own, kept as XGBoost's JSON: no pickle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, Field
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.model.inputs import Inputs
from mechanisms.tabular.columns import features_of

FILE = "trees.json"
SMALLEST = 1e-7
"""A class that trees give less is given this: a log-likelihood has to be finite."""


class TreeSettings(BaseModel, frozen=True, extra="forbid", title="Trees"):
    """XGBoost's own defaults."""

    rounds: int = Field(default=100, ge=1, le=10_000, title="Boosting rounds")
    depth: int = Field(default=6, ge=1, le=20, title="Depth")
    learning_rate: float = Field(default=0.3, gt=0, le=1, title="Learning rate")


def library() -> Any:
    """Imports XGBoost; names the extra where it is not installed."""
    try:
        import xgboost
    except ImportError:
        raise MechanismError("this mechanism needs XGBoost: pip install '.[imbalance]'") from None
    return xgboost


@dataclass(frozen=True)
class Trees:
    """A fitted booster."""

    booster: Any
    classes: int

    def log_probabilities(self, inputs: Inputs) -> Tensor:
        """Float64 [n, classes]."""
        data = library().DMatrix(features_of(inputs).numpy())
        scores = torch.from_numpy(np.asarray(self.booster.predict(data), dtype=np.float64))
        if self.classes == 2:
            scores = torch.stack([1 - scores, scores], dim=1)
        scores = scores.clamp(min=SMALLEST)
        return (scores / scores.sum(1, keepdim=True)).log()

    def save(self, folder: Path) -> None:
        """XGBoost's JSON, with the number of classes in its attributes."""
        self.booster.set_attr(classes=str(self.classes))
        partial = folder / f"partial-{FILE}"
        self.booster.save_model(partial)
        partial.replace(folder / FILE)

    @classmethod
    def load(cls, folder: Path) -> Trees:
        """Read what `save` wrote."""
        booster = library().Booster({"nthread": 1})
        booster.load_model(folder / FILE)
        return cls(booster, int(booster.attr("classes")))


def grow(
    features: Tensor, labels: Tensor, *, classes: int, seed: int, settings: TreeSettings, weights: Tensor | None = None
) -> Trees:
    """Trees on features [n, d] in [0, 1] and labels int64 [n]; one thread, so that a fit can be repeated."""
    xgboost = library()
    objective: dict[str, Any] = (
        {"objective": "binary:logistic"} if classes == 2 else {"objective": "multi:softprob", "num_class": classes}
    )
    how = {"max_depth": settings.depth, "eta": settings.learning_rate, "seed": seed % (1 << 31), "nthread": 1}
    data = xgboost.DMatrix(
        features.double().numpy(), label=labels.numpy(), weight=None if weights is None else weights.numpy()
    )
    booster = xgboost.train({"verbosity": 0, **objective, **how}, data, num_boost_round=settings.rounds)
    return Trees(booster, classes)
