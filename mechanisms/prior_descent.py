"""Prior descent: a formally private linear head that starts at what is publicly known of the codes.

The run's untrained classifier is the start: with `prior: titles` its rows W_0 are the directions of the code list's
titles (`mechanisms.model.prior`), for which no record is read. The zero-concentrated budget rho pays for four things:

    mean_share     the sum of the features, each cut to norm R: sum_i x_i min(1, R/|x_i|)     sensitivity R
    count_share    the class counts, from which the log prior follows             sensitivity 1
    align_share    gradient descent on one map A that all codes share                         sensitivity C a step
    the rest       gradient descent on the rows of the head and its bias                      sensitivity C a step

All steps take *all* records, with per-record gradients cut to norm C. Nothing is sampled, so the whole is a
composition of Gaussians, whose cost is exact. Features are centred by the noisy mean, or else the direction that all
narratives share would take most of every clipped gradient; the mean is folded into the bias at the end, so that what
is released is one linear layer on the encoder's own features.

**The map.** Titles are not narratives: what tells "amputations" from "fractures" in a code list and in a report are not
quite the same directions. With U [width, k] the first right singular vectors of W_0, which are public,

    W = W_0 (I + U A U')        A [k, k] from 0

learns how narratives speak of what titles name. All codes share it, those without a record too, and its k^2 numbers
take little noise where the head's classes x width take much.

**Rows that are only noise.** A row whose noisy count is below the count's own standard deviation stays at the prior:
its gradient would be noise. Which rows these are is read off the released counts, so it is post-processing.

**Exact arithmetic.** Everything that a record enters is a sum of integers with rounded Gaussian noise
(`mechanisms.descent.exact_sums`, `mechanisms.privacy.exact_normal`): the claim covers the bits that are released.

**How long to descend.** The noise in a parameter grows with steps times rate, and so does what is learned. What is set
is the noise nu that a parameter may have at the end, as a standard deviation; the rate follows from it and from the
plan's event. With momentum m, the noise of a step that j steps follow reaches the end times (1 - m^(j+1)) / (1 - m):

    rate = nu n / (sigma C sqrt(sum_j ((1 - m^(j+1)) / (1 - m))^2))

So more records, or a larger epsilon, make it descend further; where there are few it stays near the prior.

**Tempering.** Macro F1 counts every code alike; a fit to the records counts every record alike. At the end `tempering`
of the noisy log prior is taken out of the bias (Menon et al. 2021, logit adjustment). It reads no record.

Defaults were chosen by cross-validation within the training half of public OSHA reports with MiniLM features
(docs/formal.md, which has what else was tried and what each part gives).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from mechanisms.descent import exact_sums
from mechanisms.descent.exact_sums import Residuals, Scores
from mechanisms.descent.keyed_state import KeyedState, fit_classifier
from mechanisms.descent.noisy_descent import ClippedSum, Momentum, NoisyDescent
from mechanisms.mechanism import ClassifierModel, Descending, Fitted, Plan, Records, Run, Task, registered
from mechanisms.model import threads
from mechanisms.model.config import Positive
from mechanisms.model.inputs import Inputs
from mechanisms.model.linear_head import features_of, linear_head
from mechanisms.privacy import class_counts
from mechanisms.privacy.events import ComposedEvent, DpSgdEvent, GaussianReleaseEvent, NoiseSegment, descent_of

_Blocks = Iterator[tuple[Tensor, Tensor, Tensor]]
"""Left and right factors of the records' gradients in integers, and their losses."""
_MAP_BITS = 10
"""Of an entry of the map's public directions."""


@registered
class PriorDescent(Descending, frozen=True, title="Prior descent"):
    """Budget, its split, and the descent."""

    reads: ClassVar[frozenset[str]] = frozenset({"features"})

    kind: Literal["prior-descent"] = "prior-descent"
    mean_share: float = Field(default=0.03, gt=0, lt=1, title="Share of the mean", description="Of rho.")
    count_share: float = Field(default=0.05, gt=0, lt=1, title="Share of the counts", description="Of rho.")
    feature_clip_norm: Positive = Field(
        default=4.0,
        title="Feature norm R",
        description="Longer features are cut to it in the mean. Set it from the encoder, not from the records.",
    )
    smallest_count: Positive = Field(default=3.0, title="Smallest count", description="In the log prior.")
    tempering: float = Field(
        default=0.3,
        ge=0,
        le=1,
        title="Tempering",
        description="Share of the log prior taken out at the end: rare codes are said more often.",
    )
    align_share: float = Field(default=0.25, ge=0, lt=1, title="Share of the map", description="0: no map.")
    align_steps: int = Field(default=10, ge=1, le=10_000, title="Steps of the map")
    align_noise: Positive = Field(default=0.03, title="Noise of the map", description="Nu of an entry of A.")
    directions: int = Field(default=96, ge=1, title="Directions k", description="Of the map.")
    steps: int = Field(default=60, ge=1, le=10_000, title="Steps of the rows")
    weight_noise: Positive = Field(default=0.5, title="Noise of a weight", description="Nu of a row's entry.")
    momentum: float = Field(default=0.9, ge=0, lt=1, title="Momentum")
    l2_clip_norm: Positive = Field(default=1.0, title="Clip of the per-record gradients")

    @model_validator(mode="after")
    def _shares_leave_a_descent(self) -> PriorDescent:
        if self.rest <= 0:
            raise ValueError("mean_share, count_share and align_share leave nothing for the rows: lower them")
        return self

    @property
    def rest(self) -> float:
        return 1 - self.mean_share - self.count_share - self.align_share

    def event(self, noise: float, task: Task) -> ComposedEvent:
        """Returns releases and steps that cost together what one Gaussian of this noise multiplier costs.

        That is noise x/sqrt(share) on a release and x sqrt(T/share) on T steps.
        """
        mean = GaussianReleaseEvent(
            what="sum of the features",
            noise_multiplier=noise / math.sqrt(self.mean_share),
            l2_sensitivity=self.feature_clip_norm,
            exact=True,
        )
        counts = GaussianReleaseEvent(
            what="class counts",
            noise_multiplier=noise / math.sqrt(self.count_share),
            l2_sensitivity=class_counts.L2_SENSITIVITY,
            exact=True,
        )
        segments = tuple(
            NoiseSegment(steps=steps, noise_multiplier=noise * math.sqrt(steps / share), l2_clip_norm=self.l2_clip_norm)
            for steps, share in ((self.align_steps, self.align_share), (self.steps, self.rest))
            if share > 0
        )
        descent = DpSgdEvent(sampling_prob=1.0, segments=segments, exact=True)
        return ComposedEvent(mechanism="prior-descent", events=(mean, counts, descent))

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Release mean and counts, start at the prior, learn the map, then the rows. Resumes step by step."""
        event, classifier = plan.event, run.classifier()
        assert isinstance(event, ComposedEvent)
        exact_sums.require_room(len(records.labels), self.l2_clip_norm)
        head, descent_event, device = linear_head(classifier), descent_of(event), classifier.device
        inputs, labels = records.inputs, records.labels.to(device)
        features = exact_sums.on_grid(features_of(inputs).to(device))

        def descend(state: KeyedState) -> None:
            of_mean, of_counts = event.releases
            total = exact_sums.noisy_feature_sum(features, of_mean, state.stream)
            centre = (total / plan.records).round()
            counts = class_counts.noisy_counts(labels, run.classes, event=of_counts, stream=state.stream)
            log_prior = self._log_prior(counts, of_counts.std)
            rows = torch.cat([head.weight.detach(), log_prior.float()[:, None]], 1)
            descent = NoisyDescent(
                state,
                descent_event,
                epochs=descent_event.steps,
                remedy="lower weight_noise and align_noise",
                witness=run.witness,
                progress=run.progress,
            )

            def phase(
                name: str,
                start: Tensor,
                segment: NoiseSegment,
                noise: float,
                gradients: Callable[[Scores], _Map | Residuals],
            ) -> Tensor:
                def sum_over(some: Inputs, given: Tensor, _: float | None) -> ClippedSum:
                    own = features if some is inputs else exact_sums.on_grid(features_of(some).to(device))
                    blocks = gradients(Scores(own, centre, given.to(device))).blocks

                    def clipped_sum(theta: Tensor, step: int, _: NoiseSegment, out: Tensor, tally: Tensor) -> None:
                        for left, right, losses in blocks(theta):
                            exact_sums.clipped_outer_sum(left, right, norm=segment.l2_clip_norm, out=out)
                            tally[0] += losses.sum()
                            tally[2] += len(losses)

                    return clipped_sum

                update = Momentum(start, rate=self._rate(segment, noise, plan), momentum=self.momentum)
                return descent.run(
                    update,
                    sum_over(inputs, labels, None),
                    sum_over=sum_over,
                    divisor=plan.records,
                    segments=(segment,),
                    name=name,
                )

            *map_steps, row_steps = descent_event.segments
            with threads.fitting(records.inputs):
                for segment in map_steps:
                    right = state.tensors.setdefault("directions", _directions(rows[:, :-1], self.directions))
                    right = right.to(device)  # saved with the steps, so that another machine goes on along these
                    start = torch.zeros(right.shape[1], right.shape[1], device=device)
                    entries = phase("map", start, segment, self.align_noise, partial(_Map, rows=rows, right=right))
                    rows[:, :-1] += rows[:, :-1] @ right @ entries @ right.T
                active = counts > of_counts.std
                if bool(active.any()):
                    residuals = partial(Residuals, rows=rows, active=active)
                    rows[active] = phase("rows", rows[active], row_steps, self.weight_noise, residuals)
            with torch.no_grad():
                mean = (centre * 2.0**-exact_sums.FEATURE_BITS).float()
                head.weight.copy_(rows[:, :-1])
                head.bias.copy_(rows[:, -1] - self.tempering * log_prior - rows[:, :-1] @ mean)

        losses = fit_classifier(classifier, run.folder, run.new_key, descend).numbers["losses"]
        last = {"loss": losses[-1]} if losses else {}
        return Fitted(ClassifierModel(classifier), event, {"steps": len(losses), **last, "losses": losses})

    def _rate(self, segment: NoiseSegment, noise: float, plan: Plan) -> float:
        """At which a parameter ends with noise of this standard deviation."""
        m = self.momentum
        reach = math.sqrt(sum(((1 - m**left) / (1 - m)) ** 2 for left in range(1, segment.steps + 1)))
        return noise * plan.records / (segment.noise_multiplier * segment.l2_clip_norm * reach)

    def _log_prior(self, counts: Tensor, std: float) -> Tensor:
        """Natural log of the classes' shares. A count that its noise may have made is as good as none: else the many
        empty classes would together outweigh those that are not."""
        beyond = torch.where(counts > std, counts, self.smallest_count).clamp(min=self.smallest_count)
        return (beyond / beyond.sum()).log()


def _directions(weights: Tensor, number: int) -> Tensor:
    """Returns U [width, k], from the prior, which is public.

    The linear algebra library chooses their signs, and a card's chooses others. The same noise then gives another fit.
    """
    return torch.linalg.svd(weights.cpu(), full_matrices=False)[2][:number].T.contiguous()


class _Map:
    """The gradient of the map's entries, sum over records of (left' e_i) (right' z_i)', in integers.

    rows: [classes, width + 1], the prior. right: U [width, k]. left: W_0 U, its longest row of norm 1.
    """

    def __init__(self, scores: Scores, rows: Tensor, right: Tensor) -> None:
        weights = rows[:, :-1]
        longest = weights.norm(dim=1).max().clamp(min=1e-12)
        self._rows, self._right = rows, right
        self._residuals = Residuals(scores, rows)
        self._left_grid, self._right_grid = (
            side.double().mul(2.0**_MAP_BITS).round_() for side in (weights @ right / longest, right)
        )

    def blocks(self, entries: Tensor) -> _Blocks:
        """Yields both factors of each record's gradient at a map [k, k], and the losses."""
        weights, unit = self._rows[:, :-1], 2.0**-_MAP_BITS
        there = torch.cat([weights + weights @ self._right @ entries @ self._right.T, self._rows[:, -1:]], 1)
        for residual, features, losses in self._residuals.blocks(there):
            yield (
                (residual @ self._left_grid).mul_(unit).trunc_(),
                (features[:, :-1] @ self._right_grid).mul_(unit).trunc_(),
                losses,
            )
