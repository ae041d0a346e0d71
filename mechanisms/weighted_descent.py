"""Private gradient descent of a linear model, weighted by private class counts: both noises solved together.

A share of the budget releases the class counts; the rest takes T steps over all records, each record's clipped gradient
times its class's weight (at most 1). The sum is divided by the noisy total of the weights, so that the rate means the
same at every imbalance. All noise is Gaussian and nothing is sampled: with x/sqrt(share) on the counts and
x sqrt(T/(1 - share)) on a step, the whole costs what one Gaussian mechanism of noise multiplier x costs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import torch
from pydantic import ConfigDict, Field
from torch import Tensor

from mechanisms import dp_sgd
from mechanisms.mechanism import Aimed, Fitted, Plan, Records, Run, Task, registered
from mechanisms.privacy import class_counts
from mechanisms.privacy.class_counts import ClassWeightsConfig
from mechanisms.privacy.events import ComposedEvent, DpSgdEvent, Event, GaussianReleaseEvent, NoiseSegment
from mechanisms.privacy.likeness import alike
from mechanisms.privacy.noise import SecretStream
from mechanisms.tables import linear
from mechanisms.tables.columns import Columns, features_of
from mechanisms.tables.linear import UnitLinear
from mechanisms.tables.once import once


@registered
class WeightedDescent(Aimed, frozen=True):
    """Split of the budget, and the descent."""

    model_config = ConfigDict(title="Weighted descent")
    reads: ClassVar[frozenset[str]] = frozenset({"features"})

    kind: Literal["weighted-descent"] = "weighted-descent"
    counts_share: float = Field(
        default=0.1, gt=0, lt=1, title="Share of the counts", description="Of the Gaussian budget; descent: the rest."
    )
    smallest_count: float = Field(default=5.0, gt=0, le=1e9, title="Smallest count", description="After the noise.")
    steps: int = Field(default=50, ge=1, le=10_000, title="Descent steps")
    learning_rate: float = Field(default=4.0, gt=0, le=1e4, allow_inf_nan=False, title="Learning rate")
    momentum: float = Field(default=0.9, ge=0, lt=1, title="Momentum")
    l2_clip_norm: float = Field(default=1.0, gt=0, allow_inf_nan=False, title="Clip of the per-record gradients")

    def plan(self, task: Task) -> Plan:
        """Solve the noise so that counts and descent together meet the target.

        Raises:
            MechanismError: the target cannot be met.
        """
        settled = self.at(task)
        event = dp_sgd.solved(partial(_event, settled), settled, task)
        return Plan(mechanism=settled, event=event, records=task.records)

    def cost(self, plan: Plan, task: Task) -> Mapping[str, float]:
        """Noise, steps, and epsilon by several accountants."""
        return dp_sgd.cost_figures(plan, task)

    def makes(self, event: Event | None, task: Task) -> bool:
        """Counts and steps at one noise."""
        counts = event.events[0] if isinstance(event, ComposedEvent) else None
        own = isinstance(counts, GaussianReleaseEvent)
        return own and alike(event, _event(self, counts.noise_multiplier * math.sqrt(self.counts_share)))

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Counts, weights, steps."""
        counts, steps = _parts(plan.event)
        features = features_of(records.inputs)
        columns = Columns.of(run.schema, features.shape[1], bins=1)

        def make(stream: SecretStream) -> UnitLinear:
            return UnitLinear(
                self._descended(columns.unit(features), records.labels, run.classes, counts, steps, stream),
                columns,
                joint=True,
            )

        assert plan.event is not None
        return Fitted(once(run.folder, linear.FILE, load=UnitLinear.load, make=make), plan.event)

    def _descended(
        self,
        x: Tensor,
        labels: Tensor,
        classes: int,
        counts: GaussianReleaseEvent,
        steps: NoiseSegment,
        stream: SecretStream,
    ) -> Tensor:
        noisy = class_counts.release_counts(
            labels, num_labels=classes, noise_multiplier=counts.noise_multiplier, stream=stream
        )
        settings = ClassWeightsConfig(noise_multiplier=counts.noise_multiplier, smallest_count=self.smallest_count)
        weights = class_counts.class_weights(noisy, settings).double()
        total = float((weights * noisy.clamp(min=self.smallest_count)).sum())
        own, target = weights[labels], torch.nn.functional.one_hot(labels, classes).double()
        theta = torch.zeros(classes, x.shape[1], dtype=torch.float64)
        velocity, clip = torch.zeros_like(theta), steps.l2_clip_norm
        norms = x.norm(dim=1)
        for step in range(steps.steps):
            residual = (x @ theta.T).softmax(1) - target
            size = residual.norm(dim=1) * norms
            factor = own * (clip / size.clamp(min=1e-12)).clamp(max=1)
            gradient = (residual * factor[:, None]).T @ x
            stream.add_normal_(gradient, std=steps.noise_multiplier * clip, purpose="gradient noise", step=step)
            velocity = self.momentum * velocity + gradient / total
            theta = theta - self.learning_rate * velocity
        return theta

    def load(self, folder: Path, run: Run, *, purpose: str = "evaluate") -> UnitLinear:
        """The coefficients."""
        return UnitLinear.load(folder)


def _event(config: WeightedDescent, noise_multiplier: float) -> ComposedEvent:
    counts = GaussianReleaseEvent(
        what="class counts",
        noise_multiplier=noise_multiplier / math.sqrt(config.counts_share),
        l2_sensitivity=class_counts.L2_SENSITIVITY,
    )
    step = NoiseSegment(
        steps=config.steps,
        noise_multiplier=noise_multiplier * math.sqrt(config.steps / (1 - config.counts_share)),
        l2_clip_norm=config.l2_clip_norm,
    )
    return ComposedEvent(events=(counts, DpSgdEvent(sampling_prob=1.0, segments=(step,))))


def _parts(event: Event | None) -> tuple[GaussianReleaseEvent, NoiseSegment]:
    assert isinstance(event, ComposedEvent)
    counts = event.events[0]
    assert isinstance(counts, GaussianReleaseEvent)
    return counts, dp_sgd.descent_of(event).segments[0]
