"""Prior descent: a formally private linear head that starts at what is publicly known of the codes.

The run's untrained classifier is the start: with `prior: titles` its rows W_0 are the directions of the code list's
titles (`mechanisms.model.prior`), for which no record is read. The zero-concentrated budget rho pays for four things:

    mean_share     the sum of the features, each cut to norm R: sum_i x_i min(1, R/|x_i|)     sensitivity R
    count_share    the class counts, from which the log prior follows             sensitivity 1 (sqrt F of F fields)
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

**Several fields.** A joint head has the rows of all fields' codes, and a record's gradient is that of its joint
log-likelihood, the sum over the fields that it has (`mechanisms.model.fields`): e_i is the fields' residuals side by
side, cut as one to norm C. So it is one descent with one noise, and one map that all fields share. A record counts
once in each field, hence the counts' sensitivity is the square root of the number of fields.

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
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from mechanisms.descent.keyed_state import KeyedState, fit_classifier
from mechanisms.descent.noisy_descent import Momentum, NoisyDescent
from mechanisms.mechanism import ClassifierModel, Descending, Fitted, Plan, Records, Run, Task, registered
from mechanisms.model import threads
from mechanisms.model.config import Positive
from mechanisms.model.fields import Fields
from mechanisms.model.linear_head import cut, features_of, linear_head
from mechanisms.privacy import class_counts
from mechanisms.privacy.events import ComposedEvent, DpSgdEvent, GaussianReleaseEvent, NoiseSegment, descent_of

_AT_ONCE = 4096
"""Records in memory at once; it changes nothing."""
_Gradient = Callable[[float, Tensor], tuple[Tensor, Tensor]]
"""Clipped sum and sum of the losses, at a clip and parameters."""


@registered
class PriorDescent(Descending, frozen=True, title="Prior descent"):
    """Budget, its split, and the descent."""

    reads: ClassVar[frozenset[str]] = frozenset({"features"})
    several: ClassVar[bool] = True

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
        default=0.1,
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
        """Share of the rows."""
        return 1 - self.mean_share - self.count_share - self.align_share

    def event(self, noise: float, task: Task) -> ComposedEvent:
        """Returns releases and steps that cost together what one Gaussian of this noise multiplier costs.

        That is noise x/sqrt(share) on a release and x sqrt(T/share) on T steps.
        """
        mean = GaussianReleaseEvent(
            what="sum of the features",
            noise_multiplier=noise / math.sqrt(self.mean_share),
            l2_sensitivity=self.feature_clip_norm,
        )
        counts = GaussianReleaseEvent(
            what="class counts",
            noise_multiplier=noise / math.sqrt(self.count_share),
            l2_sensitivity=class_counts.L2_SENSITIVITY * math.sqrt(len(task.fields) or 1),
        )
        segments = tuple(
            NoiseSegment(steps=steps, noise_multiplier=noise * math.sqrt(steps / share), l2_clip_norm=self.l2_clip_norm)
            for steps, share in ((self.align_steps, self.align_share), (self.steps, self.rest))
            if share > 0
        )
        descent = DpSgdEvent(sampling_prob=1.0, segments=segments)
        return ComposedEvent(mechanism="prior-descent", events=(mean, counts, descent))

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Release mean and counts, start at the prior, learn the map, then the rows. Resumes step by step."""
        features, event, classifier = features_of(records.inputs), plan.event, run.classifier()
        fields = run.layout
        fields.check(records.labels)
        assert isinstance(event, ComposedEvent)
        head, sgd, device = linear_head(classifier), descent_of(event), classifier.device

        def descend(state: KeyedState) -> None:
            of_mean, of_counts = event.releases
            total = feature_sum(features, self.feature_clip_norm)
            total = state.stream.add_normal_(total, std=of_mean.std, purpose="mean", step=0).float().to(device)
            counts = class_counts.with_noise(fields.counts(records.labels), std=of_counts.std, stream=state.stream)
            counts, labels = counts.to(device), records.labels.to(device)
            mean = total / plan.records
            z = _Centred(features.to(device), mean)
            log_prior = self._log_prior(counts, of_counts.std, fields)
            rows = torch.cat([head.weight.detach(), log_prior[:, None]], 1)
            descent = NoisyDescent(
                state,
                sgd,
                epochs=sgd.steps,
                remedy="lower weight_noise and align_noise",
                canaries=run.canaries,
                progress=run.progress,
            )

            def phase(name: str, start: Tensor, segment: NoiseSegment, noise: float, gradient: _Gradient) -> Tensor:
                def clipped_sum(theta: Tensor, step: int, _: NoiseSegment, out: Tensor, tally: Tensor) -> None:
                    summed, loss = gradient(segment.l2_clip_norm, theta)
                    out.copy_(summed)
                    tally[0] += loss
                    tally[2] += len(features)

                update = Momentum(start, rate=self._rate(segment, noise, plan), momentum=self.momentum)
                return descent.run(update, clipped_sum, divisor=plan.records, segments=(segment,), name=name)

            *map_steps, row_steps = sgd.segments
            with threads.fitting(records.inputs):
                for segment in map_steps:
                    right = state.tensors.setdefault("directions", _directions(rows[:, :-1], self.directions))
                    right = right.to(device)  # saved with the steps, so that another machine goes on along these
                    longest = rows[:, :-1].norm(dim=1).max().clamp(min=1e-12)
                    gradient = partial(_map_gradient, fields, z, labels, rows, rows[:, :-1] @ right / longest, right)
                    start = torch.zeros(right.shape[1], right.shape[1], device=device)
                    entries = phase("map", start, segment, self.align_noise, gradient)
                    rows[:, :-1] += rows[:, :-1] @ right @ entries @ right.T
                rows = phase("rows", rows, row_steps, self.weight_noise, partial(_row_gradient, fields, z, labels))
            with torch.no_grad():
                head.weight.copy_(rows[:, :-1])
                head.bias.copy_(rows[:, -1] - self.tempering * log_prior - rows[:, :-1] @ mean)

        losses = fit_classifier(classifier, run.folder, run.new_key, descend).numbers["losses"]
        return Fitted(ClassifierModel(classifier), event, {"steps": len(losses), "loss": losses[-1], "losses": losses})

    def _rate(self, segment: NoiseSegment, noise: float, plan: Plan) -> float:
        """At which a parameter ends with noise of this standard deviation."""
        m = self.momentum
        reach = math.sqrt(sum(((1 - m**left) / (1 - m)) ** 2 for left in range(1, segment.steps + 1)))
        return noise * plan.records / (segment.noise_multiplier * segment.l2_clip_norm * reach)

    def _log_prior(self, counts: Tensor, std: float, fields: Fields) -> Tensor:
        """Natural log of the classes' shares, within each field. A count that its noise may have made is as good as
        none: else the many empty classes would together outweigh those that are not."""
        beyond = torch.where(counts > std, counts, self.smallest_count)
        return fields.log_shares(beyond.clamp(min=self.smallest_count))


def feature_sum(features: Tensor, norm: float) -> Tensor:
    """Returns the sum of features, each cut to this norm, float64 [width]."""
    return torch.stack([cut(piece, norm).sum(0) for piece in features.cpu().split(_AT_ONCE)]).sum(0)


@dataclass(frozen=True)
class _Centred:
    """Centres features a block at a time, so that memory holds them once."""

    features: Tensor
    mean: Tensor

    def split(self, size: int) -> Iterator[Tensor]:
        """Yields blocks of so many records."""
        return (block - self.mean for block in self.features.split(size))


def _directions(weights: Tensor, number: int) -> Tensor:
    """Returns U [width, k], from the prior, which is public.

    The linear algebra library chooses their signs, and a card's chooses others. The same noise then gives another fit.
    """
    return torch.linalg.svd(weights.cpu(), full_matrices=False)[2][:number].T.contiguous()


def _residuals(fields: Fields, z: Tensor, labels: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """(softmax - onehot [b, classes], losses [b]) of centred features at weights and bias [classes, width + 1]."""
    log_probabilities = fields.log_softmax(torch.addmm(rows[:, -1], z, rows[:, :-1].T))
    losses = -fields.log_likelihood(log_probabilities, labels)
    return fields.residuals_(log_probabilities, labels), losses


def _map_gradient(
    fields: Fields,
    z: Tensor | _Centred,
    labels: Tensor,
    rows: Tensor,
    left: Tensor,
    right: Tensor,
    clip: float,
    entries: Tensor,
) -> tuple[Tensor, Tensor]:
    """Sum over records of (left' e_i) (right' z_i)', each cut to norm `clip`, float64 [k, k]; the sum of the losses."""
    weights = rows[:, :-1]
    there = torch.cat([weights + weights @ right @ entries @ right.T, rows[:, -1:]], 1)
    gradient, loss = torch.zeros_like(entries, dtype=torch.float64), torch.zeros((), device=rows.device)
    for some, own in zip(z.split(_AT_ONCE), labels.split(_AT_ONCE), strict=True):
        residual, losses = _residuals(fields, some, own, there)
        pulled, along = (residual @ left).double(), (some @ right).double()
        norms = pulled.norm(dim=1) * along.norm(dim=1)
        gradient.addmm_((pulled * (clip / norms.clamp(min=clip))[:, None]).T, along)
        loss += losses.sum()
    return gradient, loss


def _row_gradient(
    fields: Fields, z: Tensor | _Centred, labels: Tensor, clip: float, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """Sum over records of e_i (z_i, 1)', each cut to norm `clip`, float64 [classes, width + 1]; the sum of the losses.

    Products of two float32 are exact in float64, and their sum is to 1e-10 at any number of records, so that a record
    more or less moves no other's rounding.
    """
    gradient, loss = torch.zeros_like(rows, dtype=torch.float64), torch.zeros((), device=rows.device)
    for some, own in zip(z.split(_AT_ONCE), labels.split(_AT_ONCE), strict=True):
        residual, losses = _residuals(fields, some, own, rows)
        residual, some = residual.double(), some.double()
        norms = (residual.square().sum(1) * (some.square().sum(1) + 1)).sqrt()
        residual *= (clip / norms.clamp(min=clip))[:, None]
        gradient[:, :-1].addmm_(residual.T, some)
        gradient[:, -1] += residual.sum(0)
        loss += losses.sum()
    return gradient, loss
