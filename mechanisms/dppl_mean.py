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
from pydantic import ConfigDict, Field
from torch import Tensor, nn

from mechanisms.formal_head import features_of, linear_head
from mechanisms.mechanism import Aimed, ClassifierModel, Fitted, Plan, Records, Run, Task, registered
from mechanisms.model.fields import Fields
from mechanisms.privacy import gaussian_cost, noise
from mechanisms.privacy.events import Event, GaussianReleaseEvent
from mechanisms.privacy.likeness import alike


@registered
class DpplMean(Aimed, frozen=True):
    """The scale of its answers; nothing else is free."""

    model_config = ConfigDict(title="DPPL-Mean")
    reads: ClassVar[frozenset[str]] = frozenset({"features"})
    several: ClassVar[bool] = True

    kind: Literal["dppl-mean"] = "dppl-mean"
    scale: float = Field(
        default=10.0, gt=0, le=1e4, allow_inf_nan=False, title="Scale", description="Of the cosines: confidences alone."
    )

    def plan(self, task: Task) -> Plan:
        """Solve the noise of the one release.

        Raises:
            MechanismError: the target cannot be met.
        """
        own = self.at(task)
        assert own.target_epsilon is not None
        assert own.delta is not None
        event = partial(_event, len(task.fields) or 1)
        solved = gaussian_cost.calibrate(
            event, target_epsilon=own.target_epsilon, delta=own.delta, records_per_unit=task.records_per_unit
        )
        return Plan(mechanism=own, event=event(solved), records=task.records)

    def makes(self, event: Event | None, task: Task) -> bool:
        """The release of these fields, at any noise."""
        own = isinstance(event, GaussianReleaseEvent)
        return own and alike(event, _event(len(task.fields) or 1, event.noise_multiplier))

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Release the sums, scale them. A finished fit is read back: its noise is drawn once.

        Raises:
            MechanismError: the head is not linear.
        """
        fields, event = run.layout, plan.event
        assert isinstance(event, GaussianReleaseEvent)
        fields.check(records.labels)
        if run.folder is not None and (run.folder / "theta.safetensors").exists():
            return Fitted(ClassifierModel.load(run.folder, run), event)
        classifier = run.classifier()
        head, features = linear_head(classifier), features_of(records).cpu()
        sums = class_sums(features, records.labels.cpu(), fields=fields)
        std = event.noise_multiplier * event.l2_sensitivity
        noise.SecretStream(noise.new_key()).add_normal_(sums, std=std, purpose="class sums", step=0)
        with torch.no_grad():
            head.weight.copy_(self.scale * nn.functional.normalize(sums, dim=1).float())
            head.bias.zero_()
        model = ClassifierModel(classifier)
        if run.folder is not None:
            run.folder.mkdir(parents=True, exist_ok=True)
            model.save(run.folder)
        return Fitted(model, event)


def class_sums(features: Tensor, labels: Tensor, *, fields: Fields) -> Tensor:
    """Sums by class of features of length 1, float64 [classes, width]; a record moves a row a field, each by norm at
    most 1."""
    # a little below 1, so that rounding in float32 does not lift it above
    unit = nn.functional.normalize(features, dim=1) * (1 - 1e-6)
    return fields.sums(unit, labels)


def _event(fields: int, noise_multiplier: float) -> GaussianReleaseEvent:
    return GaussianReleaseEvent(
        what="class sums of directions", noise_multiplier=noise_multiplier, l2_sensitivity=math.sqrt(fields)
    )
