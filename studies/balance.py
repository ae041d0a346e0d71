"""Treatments of the rare class before a learner without protection: none, weights,
SMOTE, or both.
"""

from __future__ import annotations

from typing import Literal

import torch
from imblearn.over_sampling import SMOTE
from torch import Tensor

from mechanisms.model.seeding import derive_seed
from studies.tables import Table

Balance = Literal["none", "weights", "smote", "smote-weights"]
NEIGHBOURS = 5


def balanced(train: Table, how: Balance, *, seed: int) -> tuple[Table, Tensor]:
    """Returns the records to learn from, and a weight for each, float64 [n].

    Weights are the inverse frequencies of the original classes. After SMOTE, which makes both
    classes equally frequent, they favour the rare class a second time, as tables 13 to 20 of
    Rosenblatt et al. 2025 show.

    >>> from studies.tables import Columns
    >>> labels = torch.tensor([0, 0, 0, 0, 1, 1])
    >>> table = Table(torch.eye(6, dtype=torch.float64), labels, Columns((1,) * 6))
    >>> balanced(table, "weights", seed=0)[1].tolist()
    [0.75, 0.75, 0.75, 0.75, 1.5, 1.5]
    >>> len(balanced(table, "smote", seed=0)[0])
    8
    """
    counts = torch.bincount(train.labels, minlength=2).double()
    class_weights = len(train) / (2 * counts)
    labels = train.labels
    if how.startswith("smote"):
        oversample = SMOTE(
            k_neighbors=min(NEIGHBOURS, int(counts.min()) - 1),
            random_state=derive_seed(seed, "smote") % (1 << 32),
        )
        more = oversample.fit_resample(train.features.numpy(), labels.numpy())
        features, labels = map(torch.from_numpy, more[:2])
        train = Table(features, labels, train.columns)
    if how.endswith("weights"):
        return train, class_weights[labels]
    return train, torch.ones(len(labels), dtype=torch.float64)
