"""The strong formal baseline: a linear head on cached features, one noisy release and DP full-batch gradient descent.

Of the zero-concentrated budget rho, `release_share` pays for one Gaussian release of

    S_c = sum_{i: y_i = c} x_i min(1, R/||x_i||) / R   [classes, width]     and     s N_c   [classes]

whose l2 sensitivity is sqrt(1 + s^2): one record is in one class. (Of F fields it is in one of each: sqrt(F) times
that.) From the noisy sums, by post-processing, comes a linear discriminant, of each field its own, with class means
shrunk by what is known of the noise; the noisy counts set the prior. The rest pays for T steps of gradient descent over
*all* records with clipped per-record gradients. Nothing is sampled, so the whole is a composition of Gaussians, whose
cost is exact: with noise x/sqrt(share) on the release and x sqrt(T/(1-share)) on a step it costs what one Gaussian
mechanism of noise multiplier x costs.

Why it beats DP-SGD on small data: at n of a few thousand a step over all records has the same noise as one over a
sample, and a head has few parameters for the noise to be spread over.

The discriminant starts at a low temperature: unlike gradient descent it cannot unlearn its own noise. Defaults were
found on the training half of public OSHA reports with MiniLM features (`scripts/choose_rival_settings.py`); on other
data they are as good as any other guess, on those they are tuned without account.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import ConfigDict, Field
from torch import Tensor, nn

from mechanisms import dp_sgd
from mechanisms.errors import MechanismError
from mechanisms.mechanism import Aimed, Fitted, Plan, Records, Run, Task, registered
from mechanisms.model.classifier import Classifier
from mechanisms.model.fields import Fields
from mechanisms.model.inputs import FeatureInputs
from mechanisms.privacy.claims import claims, gaussian
from mechanisms.privacy.events import ComposedEvent, DpSgdEvent, Event, GaussianReleaseEvent, NoiseSegment
from mechanisms.privacy.noise import SecretStream


class FormalHeadEvent(ComposedEvent, frozen=True):
    """Class sums and counts released, then full-batch steps."""

    mechanism: Literal["formal-head"] = "formal-head"  # pyright: ignore[reportIncompatibleVariableOverride]


claims(FormalHeadEvent, formal=True)(gaussian)


@registered
class FormalHead(Aimed, frozen=True):
    """Budget, its split, and the descent."""

    model_config = ConfigDict(title="Formal head")
    reads: ClassVar[frozenset[str]] = frozenset({"features"})
    several: ClassVar[bool] = True

    kind: Literal["formal-head"] = "formal-head"
    release_share: float = Field(
        default=0.1, gt=0, lt=1, title="Share of the release", description="Of rho; descent gets the rest."
    )
    feature_clip_norm: float = Field(
        default=4.0,
        gt=0,
        allow_inf_nan=False,
        title="Feature norm R",
        description="Longer features are cut to it in the class sums. Set it from the encoder, not from the records.",
    )
    count_scale: float = Field(default=0.25, gt=0, le=100, title="Scale s of the counts")
    between_variance: float = Field(
        default=0.2, gt=0, title="Between classes", description="Prior variance of class means, in units of R^2."
    )
    within_variance: float = Field(
        default=0.4, gt=0, title="Within classes", description="Variance of features in a class, in units of R^2."
    )
    temperature: float = Field(default=0.03, ge=0, le=1, title="Weight of the discriminant at the start")
    steps: int = Field(default=20, ge=1, le=10_000, title="Descent steps")
    learning_rate: float = Field(default=10.0, gt=0, le=1e4, allow_inf_nan=False, title="Learning rate")
    momentum: float = Field(default=0.9, ge=0, lt=1, title="Momentum")
    l2_clip_norm: float = Field(default=1.0, gt=0, allow_inf_nan=False, title="Clip of the per-record gradients")

    def plan(self, task: Task) -> Plan:
        """Solve the noise so that release and descent together meet the target.

        Raises:
            MechanismError: the target cannot be met.
        """
        settled = self.at(task)
        event = dp_sgd.solved(partial(_event, settled, len(task.fields) or 1), settled, task)
        return Plan(mechanism=settled, event=event, records=task.records)

    def cost(self, plan: Plan, task: Task) -> Mapping[str, float]:
        """Noise, steps, and epsilon by several accountants."""
        return dp_sgd.cost_figures(plan, task)

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Release, start from the discriminant, descend. Resumes as DP-SGD does.

        Raises:
            MechanismError: the head is not linear, the plan is another's, or what DP-SGD refuses.
        """
        features, fields = features_of(records), run.layout
        fields.check(records.labels)
        release = _release_of(plan.event, self, len(fields.sizes))
        descent = dp_sgd.DpSgd(
            target_epsilon=self.target_epsilon,
            delta=self.delta,
            optimiser="sgd",
            learning_rate=self.learning_rate,
            momentum=self.momentum,
            epochs=self.steps,
            batch_size=plan.records,
            l2_clip_norm=self.l2_clip_norm,
        )

        def start(stream: SecretStream, classifier: Classifier) -> None:
            head = linear_head(classifier)
            sums, counts = release_class_sums(
                features, records.labels, fields=fields, config=self, release=release, stream=stream
            )
            std = release.noise_multiplier * release.l2_sensitivity
            own = [discriminant(sums[span], counts[span], config=self, std=std) for span in fields.spans]
            weight, bias = (torch.cat(parts) for parts in zip(*own, strict=True))
            with torch.no_grad():
                head.weight.copy_(weight)
                head.bias.copy_(bias)

        plan = plan.model_copy(update={"mechanism": descent})
        return dp_sgd.descend(plan, records, run, physical_batch_size=4096, start=start)


def features_of(records: Records) -> Tensor:
    """Cached features float32 [n, width].

    Raises:
        MechanismError: the records are tokens.
    """
    if not isinstance(records.inputs, FeatureInputs):
        raise MechanismError("this mechanism reads cached features: set trainable `head` and pooling `mean`")
    return records.inputs.features


def linear_head(classifier: Classifier) -> nn.Linear:
    """The one linear layer that trains.

    Raises:
        MechanismError: the head is another.
    """
    if not isinstance(classifier.part, nn.Linear):
        raise MechanismError("this mechanism is a linear layer's: set trainable `head` and pooling `mean`")
    return classifier.part


def release_class_sums(
    features: Tensor,
    labels: Tensor,
    *,
    fields: Fields,
    config: FormalHead,
    release: GaussianReleaseEvent,
    stream: SecretStream,
) -> tuple[Tensor, Tensor]:
    """Noisy S [classes, width] in units of R and noisy counts N [classes], from one vector (S, s N), equal noise.

    Summed and noised in float64, then rounded.
    """
    features = features.cpu()
    radius = config.feature_clip_norm
    shortened = features * (radius / features.norm(dim=1, keepdim=True).clamp(min=radius)) / radius
    counts = fields.counts(labels).double() * config.count_scale
    vector = torch.cat([fields.sums(shortened, labels.cpu()), counts[:, None]], 1)
    std = release.noise_multiplier * release.l2_sensitivity
    vector = stream.add_normal_(vector, std=std, purpose="class sums", step=0).float()
    return vector[:, :-1], vector[:, -1] / config.count_scale


def discriminant(sums: Tensor, counts: Tensor, *, config: FormalHead, std: float) -> tuple[Tensor, Tensor]:
    """Weight [classes, width] and bias [classes] of one field's tempered linear discriminant on raw features.

    The mean of class c, given its noisy sum over N_c records with noise `std` a coordinate, is shrunk to the overall
    mean by tau^2 / (tau^2 + s^2/N_c + std^2/N_c^2), variances a coordinate.
    """
    width = sums.shape[1]
    tau2, within = config.between_variance / width, config.within_variance / width
    n = counts.clamp(min=1)
    overall = sums.sum(0) / n.sum()
    keep = tau2 / (tau2 + within / n + (std / n).square())
    means = overall + keep[:, None] * (sums / n[:, None] - overall)
    prior = (counts.clamp(min=5) / counts.clamp(min=5).sum()).log()
    weight = config.temperature * means / within
    bias = -config.temperature * means.square().sum(1) / (2 * within) + prior
    return weight / config.feature_clip_norm, bias


def _event(config: FormalHead, fields: int, noise_multiplier: float) -> FormalHeadEvent:
    release = GaussianReleaseEvent(
        what="class sums of features and class counts",
        noise_multiplier=noise_multiplier / math.sqrt(config.release_share),
        l2_sensitivity=_sensitivity(config, fields),
    )
    step = NoiseSegment(
        steps=config.steps,
        noise_multiplier=noise_multiplier * math.sqrt(config.steps / (1 - config.release_share)),
        l2_clip_norm=config.l2_clip_norm,
    )
    return FormalHeadEvent(events=(release, DpSgdEvent(sampling_prob=1.0, segments=(step,))))


def _sensitivity(config: FormalHead, fields: int) -> float:
    """Of (S, s N) to one record, which is in one class of each field."""
    return math.hypot(1, config.count_scale) * math.sqrt(fields)


def _release_of(event: Event | None, config: FormalHead, fields: int) -> GaussianReleaseEvent:
    """The release in the event; it has to be this config's, or sums on one scale would be paid for on another.

    Raises:
        MechanismError: it is another's.
    """
    parts = event.events if isinstance(event, ComposedEvent) else ()
    release = next((part for part in parts if isinstance(part, GaussianReleaseEvent)), None)
    if release is None or release.l2_sensitivity != _sensitivity(config, fields):
        raise MechanismError("the plan is not one of this formal head's config: plan again")
    return release
