"""Private gradient descent of a linear model, weighted by private class counts: both noises solved together.

A share of the budget releases the class counts; the rest takes T steps over all records, each record's clipped gradient
times its class's weight (at most 1). The sum is divided by the noisy total of the weights, so that the rate means the
same at every imbalance. All noise is Gaussian and nothing is sampled: with x/sqrt(share) on the counts and
x sqrt(T/(1 - share)) on a step, the whole costs what one Gaussian mechanism of noise multiplier x costs.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mechanisms.descent.keyed_state import KeyedState, fit_or_load
from mechanisms.descent.noisy_descent import Momentum, NoisyDescent, clip_factors
from mechanisms.mechanism import Descending, Fitted, Plan, Records, Run, Task, registered
from mechanisms.model.config import Positive
from mechanisms.privacy import class_counts
from mechanisms.privacy.class_counts import ClassWeightsConfig
from mechanisms.privacy.events import ComposedEvent, DpSgdEvent, GaussianReleaseEvent, NoiseSegment, descent_of
from mechanisms.tabular import linear
from mechanisms.tabular.columns import Columns, OfTables, TableModel, features_of
from mechanisms.tabular.linear import UnitLinear


@registered
class WeightedDescent(OfTables, Descending, frozen=True, title="Weighted descent"):
    """Split of the budget, and the descent."""

    leaves: ClassVar[type[TableModel]] = UnitLinear

    kind: Literal["weighted-descent"] = "weighted-descent"
    counts_share: float = Field(
        default=0.1, gt=0, lt=1, title="Share of the counts", description="Of the Gaussian budget; descent: the rest."
    )
    smallest_count: float = Field(default=5.0, gt=0, le=1e9, title="Smallest count", description="After the noise.")
    steps: int = Field(default=50, ge=1, le=10_000, title="Descent steps")
    learning_rate: float = Field(default=4.0, gt=0, le=1e4, allow_inf_nan=False, title="Learning rate")
    momentum: float = Field(default=0.9, ge=0, lt=1, title="Momentum")
    l2_clip_norm: Positive = Field(default=1.0, title="Clip of the per-record gradients")

    def event(self, noise: float, task: Task) -> ComposedEvent:
        """Returns counts and descent that cost together what one Gaussian of this noise multiplier costs."""
        counts = GaussianReleaseEvent(
            what="class counts",
            noise_multiplier=noise / math.sqrt(self.counts_share),
            l2_sensitivity=class_counts.L2_SENSITIVITY,
        )
        step = NoiseSegment(
            steps=self.steps,
            noise_multiplier=noise * math.sqrt(self.steps / (1 - self.counts_share)),
            l2_clip_norm=self.l2_clip_norm,
        )
        return ComposedEvent(events=(counts, DpSgdEvent(sampling_prob=1.0, segments=(step,))))

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Counts, weights, steps."""
        event = plan.event
        assert isinstance(event, ComposedEvent)
        (counts,), sgd = event.releases, descent_of(event)
        features = features_of(records.inputs)
        columns = Columns.of(run.schema, features.shape[1], bins=1)

        def make(state: KeyedState) -> UnitLinear:
            x, labels = columns.unit(features), records.labels
            noisy = class_counts.with_noise(run.layout.counts(labels), std=counts.std, stream=state.stream)
            settings = ClassWeightsConfig(noise_multiplier=counts.noise_multiplier, smallest_count=self.smallest_count)
            weights = class_counts.class_weights(noisy, settings).double()
            total = float((weights * noisy.clamp(min=self.smallest_count)).sum())
            own, target = weights[labels], torch.nn.functional.one_hot(labels, run.classes).double()
            norms = x.norm(dim=1)

            def clipped_sum(theta: Tensor, step: int, segment: NoiseSegment, out: Tensor, tally: Tensor) -> None:
                residual = (x @ theta.T).softmax(1) - target
                factor = own * clip_factors(segment)(residual.norm(dim=1) * norms)
                out.copy_((residual * factor[:, None]).T @ x)

            start = torch.zeros(run.classes, x.shape[1], dtype=torch.float64)
            update = Momentum(start, rate=self.learning_rate, momentum=self.momentum)
            remedy = f"lower learning_rate (now {self.learning_rate:g})"
            descent = NoisyDescent(
                state, sgd, epochs=sgd.steps, remedy=remedy, canaries=run.canaries, progress=run.progress
            )
            return UnitLinear(descent.run(update, clipped_sum, divisor=total), columns, joint=True)

        model = fit_or_load(run.folder, linear.FILE, new_key=run.new_key, load=UnitLinear.load, fit=make)
        return Fitted(model, event)
