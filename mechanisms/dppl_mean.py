"""DPPL-Mean: private prototypes, one a class, from one noisy release (Wahdany et al., AAAI 2025, section 4.1).

Every record's features are scaled to length 1, and the sums by class

    S_c = sum_{i: y_i = c} x_i / |x_i|      [classes, width]

are released with Gaussian noise: a record adds a vector of norm 1 to one row, so the l2 sensitivity is 1. A narrative
is said to be of the class whose prototype has the largest cosine with it. A cosine does not ask how long a prototype
is, so no counts are needed; and as a narrative's own length does not matter to which is largest, the whole is one
linear layer with rows `scale` S_c / |S_c|. The scale moves confidences alone.

**Several fields.** A record is in one class of each field, so it moves one row a field, and the sensitivity of all sums
together is the square root of their number: one release, one noise.

It takes no step and has no step size: what a release of this kind can do, before anything is learned. Our neighbours
differ by one record added or removed; the paper's rho = eps^2 / 2 is of that too.
"""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from mechanisms.descent.keyed_state import KeyedState, fit_or_load
from mechanisms.mechanism import Aimed, ClassifierModel, Fitted, Plan, Records, Run, Task, registered
from mechanisms.model.fields import Fields
from mechanisms.model.linear_head import features_of, linear_head
from mechanisms.privacy.events import GaussianReleaseEvent


@registered
class DpplMean(Aimed, frozen=True, title="DPPL-Mean"):
    """The scale of its answers; nothing else is free."""

    reads: ClassVar[frozenset[str]] = frozenset({"features"})
    several: ClassVar[bool] = True

    kind: Literal["dppl-mean"] = "dppl-mean"
    scale: float = Field(
        default=10.0, gt=0, le=1e4, allow_inf_nan=False, title="Scale", description="Of the cosines: confidences alone."
    )

    def event(self, noise: float, task: Task) -> GaussianReleaseEvent:
        """Returns the one release."""
        return GaussianReleaseEvent(
            what="class sums of directions",
            noise_multiplier=noise,
            l2_sensitivity=math.sqrt(len(task.fields) or 1),
        )

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Release the sums, scale them. A finished fit is read back: its noise is drawn once."""
        fields, event = run.layout, plan.event
        assert isinstance(event, GaussianReleaseEvent)
        fields.check(records.labels)

        def prototypes(state: KeyedState) -> ClassifierModel:
            classifier = run.classifier()
            head, features = linear_head(classifier), features_of(records.inputs).cpu()
            sums = class_sums(features, records.labels.cpu(), fields=fields)
            state.stream.add_normal_(sums, std=event.std, purpose="class sums", step=0)
            with torch.no_grad():
                head.weight.copy_(self.scale * nn.functional.normalize(sums, dim=1).float())
                head.bias.zero_()
            return ClassifierModel(classifier)

        load = partial(ClassifierModel.load, run=run)
        return Fitted(
            fit_or_load(run.folder, ClassifierModel.FILE, new_key=run.new_key, load=load, fit=prototypes), event
        )


def class_sums(features: Tensor, labels: Tensor, *, fields: Fields) -> Tensor:
    """Sums by class of features of length 1, float64 [classes, width]; a record moves a row a field, each by norm at
    most 1."""
    # a little below 1, so that rounding in float32 does not lift it above
    unit = nn.functional.normalize(features, dim=1) * (1 - 1e-6)
    return fields.sums(unit, labels)
