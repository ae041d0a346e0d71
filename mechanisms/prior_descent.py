"""Prior descent: a formally private linear head that starts from public knowledge about the codes.

The run's untrained classifier is the start. With `prior: titles`, its rows W_0 are the directions
of the code list's titles (`mechanisms.model.prior`), which depend on no record. Then all rows and
the bias descend in steps over *all* records, with per-record gradients clipped to norm C. Nothing
is sampled, so the whole fit is a composition of Gaussians with an exact cost.

Features are centred at the mean of the titles' features, which is public. The direction that all
narratives share would otherwise dominate every clipped gradient. At the end, the centre is folded
into the bias, so that the released model is one linear layer on the encoder's own features. A head
that does not start at titles is not centred, and learns the class sizes along that direction.

**Exact arithmetic.** The steps sum integers, with part of the records in memory at a time, and add
rounded Gaussian noise (`mechanisms.descent.exact_sums`, `mechanisms.privacy.exact_normal`), so the
claim covers the released bits. The result does not depend on the number of threads.

**Length of the descent.** The setting is nu, the standard deviation of the noise in a parameter at
the end. The learning rate follows from it and from the plan's event
(`mechanisms.descent.noisy_descent.rate_for_noise`). With more records or a larger epsilon the head
moves further; with few records it remains close to the prior.

docs/explanation/formal-method.md describes the alternatives that were tried, and their results
under the same rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field

from mechanisms.descent.grid import require_room
from mechanisms.mechanism import (
    ClassifierModel,
    Fitted,
    NoisyGradientMechanism,
    Plan,
    Records,
    Run,
    Task,
    registered,
)
from mechanisms.model.config import Positive
from mechanisms.privacy.events import ComposedEvent, DpSgdEvent, NoiseSegment, descent_of

if TYPE_CHECKING:
    from torch import Tensor

    from mechanisms.descent.exact_sums import GridRecords
    from mechanisms.descent.keyed_state import KeyedState
    from mechanisms.descent.noisy_descent import ClippedSum
    from mechanisms.model.inputs import Inputs

_PART = 4 * 1024
"""Number of records on the grid at once, a multiple of the block size of exact sums."""
_KEPT = 1 << 25
"""Number of features that stay on the grid between steps, with 16 bits each. Beyond it, features
are converted again in every step.
"""
_PART_KEPT = 8 * _PART


NOISE, NOISE_AT_EXAMPLES = 0.5, 0.0625
"""Nu, and nu if the head starts at a coding index: the best of four values in cross-validation on
job titles (docs/studies/formal/tried.json, `noise_at_a_coding_index`).
"""


@registered
class PriorDescent(NoisyGradientMechanism, frozen=True, title="Prior descent"):
    """Settings of prior descent: its budget and its steps.

    Examples:
        >>> import numpy as np
        >>> from autocoder import PrivateClassifier
        >>> X = np.repeat([[1.0, 0.0], [0.0, 1.0]], 500, axis=0)
        >>> y = np.repeat(["fall", "burn"], 500)
        >>> mechanism = PriorDescent(steps=30)
        >>> model = PrivateClassifier(mechanism, epsilon=1, classes=["burn", "fall"]).fit(X, y)
        >>> model.claim.accountant
        'closed form of Gaussian noise (Balle and Wang 2018, theorem 8)'
    """

    reads: ClassVar[frozenset[str]] = frozenset({"features"})

    kind: Literal["prior-descent"] = "prior-descent"
    steps: int = Field(default=60, ge=1, le=10_000, title="Steps")
    weight_noise: Positive | None = Field(
        default=None,
        title="Noise of a weight",
        description=(
            "Target noise standard deviation of each head weight. Empty: 0.5, or 0.0625 "
            "if the head starts at a coding index."
        ),
    )
    momentum: float = Field(default=0.9, ge=0, lt=1, title="Momentum")
    l2_clip_norm: Positive = Field(default=1.0, title="Clip of the per-record gradients")

    def for_start(self, *, at_examples: bool) -> Self:
        """Sets `weight_noise` if it is unset. A head that starts at public examples needs less
        training, so smaller steps with less noise are better.
        """
        if self.weight_noise is not None:
            return self
        noise = NOISE_AT_EXAMPLES if at_examples else NOISE
        return self.model_copy(update={"weight_noise": noise})

    def check(self, task: Task) -> None:
        """Raises MechanismError if a sum cannot hold this many records at this clip."""
        self._require_room(task.records)

    def event(self, noise: float, task: Task) -> ComposedEvent:
        """T steps that together cost as much as one Gaussian with this noise multiplier, so each
        has sqrt(T) times the noise.
        """
        segment = NoiseSegment(
            steps=self.steps,
            noise_multiplier=noise * math.sqrt(self.steps),
            l2_clip_norm=self.l2_clip_norm,
        )
        descent = DpSgdEvent(sampling_prob=1.0, segments=(segment,), exact=True)
        return ComposedEvent(mechanism="prior-descent", events=(descent,))

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Starts at the prior and descends. An interrupted fit resumes at the last saved step."""
        import torch

        from mechanisms.descent import exact_sums
        from mechanisms.descent.keyed_state import fit_classifier
        from mechanisms.descent.noisy_descent import Momentum, NoisyDescent, rate_for_noise
        from mechanisms.model.linear_head import linear_head

        event, classifier = plan.event, run.classifier()
        assert isinstance(event, ComposedEvent)
        self._require_room(len(records.labels))
        head, descent_event, device = linear_head(classifier), descent_of(event), classifier.device
        (segment,) = descent_event.segments
        about = torch.zeros(head.in_features) if classifier.centre is None else classifier.centre
        centre = about.to(device).float().mul(2.0**exact_sums.FEATURE_BITS).round()
        mean = centre * 2.0**-exact_sums.FEATURE_BITS

        def descend(state: KeyedState) -> None:
            def sum_over(some: Inputs, given: Tensor, _: float | None) -> ClippedSum:
                few = len(given) * start.shape[1] <= _KEPT
                kept = list(_kept(some, given, centre)) if few or device.type != "cpu" else None

                def clipped_sum(
                    theta: Tensor, step: int, _: NoiseSegment, out: Tensor, tally: Tensor
                ) -> int:
                    total, part = exact_sums.Total(out), torch.zeros_like(out)
                    for records in kept or _parts(some, given, centre):
                        losses = exact_sums.clipped_sum(
                            records, theta, norm=segment.l2_clip_norm, out=part
                        )
                        tally[0] += losses.sum()
                        tally[2] += len(losses)
                        total.add(part)
                    total.settle(out)
                    return exact_sums.SUM_BITS

                return clipped_sum

            weights = head.weight.detach()
            start = torch.cat([weights, (head.bias.detach() + weights @ mean)[:, None]], 1)
            rate = rate_for_noise(
                self.weight_noise or NOISE,
                descent_event,
                divisor=plan.records,
                momentum=self.momentum,
            )
            descent = NoisyDescent(
                state,
                descent_event,
                epochs=descent_event.steps,
                remedy="lower weight_noise",
                checkpoint_seconds=run.checkpoint_seconds,
                witness=run.witness,
                progress=run.progress,
            )
            update = Momentum(start, rate=rate, momentum=self.momentum)
            step_sum = sum_over(records.inputs, records.labels, None)
            rows = descent.run(update, step_sum, sum_over=sum_over, divisor=plan.records)
            with torch.no_grad():
                head.weight.copy_(rows[:, :-1])
                head.bias.copy_(rows[:, -1] - rows[:, :-1] @ mean)

        losses = fit_classifier(classifier, run.folder, run.new_key, descend).numbers["losses"]
        last = {"loss": losses[-1]} if losses else {}
        return Fitted(
            ClassifierModel(classifier), event, {"steps": len(losses), **last, "losses": losses}
        )

    def _require_room(self, records: int) -> None:
        require_room(_PART, self.l2_clip_norm)
        require_room(records, self.l2_clip_norm, bits=62)


def _parts(inputs: Inputs, labels: Tensor, centre: Tensor) -> Iterator[GridRecords]:
    """Puts records on the grid part by part, so that memory does not grow with their number."""
    from mechanisms.descent.exact_sums import GridRecords

    for grid, part_labels in zip(_grids(inputs, centre), labels.split(_PART), strict=True):
        yield GridRecords(grid, part_labels.to(centre.device), centre)


def _kept(inputs: Inputs, labels: Tensor, centre: Tensor) -> Iterator[GridRecords]:
    """Puts all records on the grid, in fewer and larger parts."""
    import torch

    from mechanisms.descent.exact_sums import GridRecords

    grid_of_all = torch.cat(list(_grids(inputs, centre)))
    for grid, part_labels in zip(
        grid_of_all.split(_PART_KEPT), labels.split(_PART_KEPT), strict=True
    ):
        yield GridRecords(grid, part_labels.to(centre.device), centre)


def _grids(inputs: Inputs, centre: Tensor) -> Iterator[Tensor]:
    from mechanisms.descent import exact_sums
    from mechanisms.model.linear_head import feature_blocks

    for features in feature_blocks(inputs, _PART):
        yield exact_sums.on_grid(features.to(centre.device), centre)
