"""DP-SGD for all trainable parameters, with schedules for noise and clip and optional private class
weights.

Step t draws a Poisson sample B_t (each record independently with probability q) and computes

  g_t = ( sum_{i in B_t} c_i grad(-l_i) + sigma_t C_t N(0, I) ) / (q n)
  c_i || grad(-l_i) || <= C_t

which is passed to AdamW or SGD (post-processing). The divisor is the *expected* sample size because
the actual one is private. `mechanisms.descent` runs the steps from the event. Sums are integers
(`mechanisms.model.clipping`) and noise is rounded exactly, so the claim covers the released bits if
a record's gradient depends on that record only.

**No dropout.** A dropout mask belongs to a position in the batch, not to a record. Removing one
record would give every later record a different mask, so that all clipped gradients would change at
once, by far more than the clip. The module therefore runs in evaluation mode.

All randomness on which privacy depends comes from `mechanisms.privacy.noise`. Its key is drawn from
the operating system's entropy and kept only in the private checkpoint until the run ends, so a
resumed run draws the same noise for each step again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from mechanisms.descent.grid import require_room
from mechanisms.errors import MechanismError
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
from mechanisms.privacy import class_counts, schedules
from mechanisms.privacy.class_counts import ClassWeightsConfig
from mechanisms.privacy.events import ComposedEvent, DpSgdEvent, Event, NoiseSegment, descent_of
from mechanisms.privacy.schedules import ConstantSchedule, Schedule

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from mechanisms.descent.keyed_state import KeyedState
    from mechanisms.descent.noisy_descent import SampledSum
    from mechanisms.model.classifier import Classifier
    from mechanisms.model.clipping import Coefficients
    from mechanisms.model.inputs import Inputs
    from mechanisms.privacy.noise import SecretStream

DpEvent = DpSgdEvent | ComposedEvent
_GRADIENT_BYTES = 1 << 30
"""Bytes of per-record gradients in memory, in addition to the memory of the model."""
PAPER_EPOCHS, PAPER_BATCH, PAPER_RATE = 30, 512, 1e-3


@registered
class DpSgd(NoisyGradientMechanism, frozen=True, title="DP-SGD"):
    """Settings of DP-SGD. The defaults are those of Chew et al., section 3.2.

    Examples:
        >>> import numpy as np
        >>> from autocoder import PrivateClassifier
        >>> X = np.repeat([[1.0, 0.0], [0.0, 1.0]], 500, axis=0)
        >>> y = np.repeat(["fall", "burn"], 500)
        >>> full_batches = DpSgd(sampling_prob=1, optimiser="sgd", epochs=20)
        >>> model = PrivateClassifier(full_batches, epsilon=1, classes=["burn", "fall"]).fit(X, y)
        >>> model.claim.epsilon <= 1, model.claim.neighbouring_relation
        (True, 'add-remove')
    """

    by_ranks: ClassVar[bool] = True
    kind: Literal["dp-sgd"] = "dp-sgd"
    calibrate_by: Literal["pld", "rdp-mironov"] = Field(
        default="pld",
        title="Calibrated by",
        description=(
            "`rdp-mironov` sets the noise as in the paper (Mironov 2017, proposition 3). "
            "The claim always uses PLD."
        ),
    )
    optimiser: Literal["adamw", "sgd"] = Field(default="adamw", title="Optimiser")
    learning_rate: float | None = Field(
        default=None,
        gt=0,
        le=1e6,
        allow_inf_nan=False,
        title="Learning rate",
        description=(
            "Empty: derived from noise, batch size, steps and width if the records are "
            "features; otherwise 0.001."
        ),
    )
    head_rate: Positive = Field(
        default=1.0,
        le=1000,
        title="Rate of the head",
        description=(
            "Learning rate of the head, as a multiple of the encoder's, if both are trained."
        ),
    )
    weight_noise: Positive | None = Field(
        default=None,
        title="Noise of a weight",
        description=(
            "Target noise standard deviation of each weight, from which the learning rate "
            "is derived as in prior descent; for SGD without a learning rate. Empty: 1 / "
            "sqrt(width) if the records are features."
        ),
    )
    weight_decay: float = Field(
        default=0.0, ge=0, le=1e6, allow_inf_nan=False, title="Weight decay"
    )
    momentum: float = Field(default=0.0, ge=0, lt=1, title="Momentum", description="SGD only.")
    epochs: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        title="Epochs",
        description="Empty: the epochs of the training run.",
    )
    sampling_prob: float | None = Field(
        default=None,
        gt=0,
        le=1,
        title="Sampling probability",
        description="Determines the batch size; with 1, every step uses every record.",
    )
    batch_size: int | None = Field(
        default=None,
        ge=1,
        title="Expected batch size",
        description=(
            "Expected size of the Poisson samples. Empty: the batch size of the training run."
        ),
    )
    l2_clip_norm: Positive = Field(
        default=1.0, title="Clip", description="Clip of the last step, if the schedule changes it."
    )
    schedule: Schedule = Field(default=ConstantSchedule(), title="Schedule")
    class_weights: ClassWeightsConfig | None = Field(default=None, title="Class weights")

    @model_validator(mode="after")
    def _settings_of_sgd(self) -> DpSgd:
        if self.momentum and self.optimiser != "sgd":
            raise ValueError("momentum goes with optimiser `sgd`")
        if self.weight_noise is not None and (
            self.optimiser != "sgd" or self.learning_rate is not None
        ):
            raise ValueError("weight_noise goes with optimiser `sgd` and without a learning rate")
        return self

    def _batch(self, task: Task) -> int:
        if self.sampling_prob is not None:
            return max(1, round(self.sampling_prob * task.records))
        return self.batch_size or PAPER_BATCH

    def check(self, task: Task) -> None:
        """Raises MechanismError if the batch is larger than the data."""
        if self._batch(task) > task.records:
            raise MechanismError(
                f"batch_size is {self._batch(task)}, larger than the data "
                f"({task.records} training records). Lower it (--batch-size)",
                kind="batch-too-large",
            )

    def plan(self, task: Task) -> Plan:
        """Solves for the final noise multiplier at which schedule, steps, sampling and class counts
        together meet the target.

        Raises:
            MechanismError: the batch is larger than the data, or the target cannot be met.
        """
        self.check(task)
        settled = self.with_target(task).model_copy(
            update={
                "batch_size": self._batch(task),
                "sampling_prob": None,
                "epochs": self.epochs or PAPER_EPOCHS,
            }
        )
        noise = settled.calibrate(task)
        if self.learning_rate is None:
            descent = descent_of(settled.event(noise, task))
            knows = task.features is not None or self.weight_noise is not None
            rate = settled.rate(descent, task.features or 1) if knows else PAPER_RATE
            settled = settled.model_copy(update={"learning_rate": rate, "weight_noise": None})
        return Plan(mechanism=settled, task=task, noise=noise)

    def event(self, noise: float, task: Task) -> DpEvent:
        """The steps, preceded by the release of class counts if class weights are used. `noise` is
        the final multiplier.
        """
        batch = self._batch(task)
        # Epochs are counted in expectation: each step sees q n = batch records.
        steps = max(1, round((self.epochs or PAPER_EPOCHS) * task.records / batch))
        segments = schedules.segments(
            self.schedule,
            steps=steps,
            final_noise_multiplier=noise,
            final_l2_clip_norm=self.l2_clip_norm,
        )
        sgd = DpSgdEvent(sampling_prob=batch / task.records, segments=segments, exact=True)
        if self.class_weights is None:
            return sgd
        return ComposedEvent(
            mechanism="dp-sgd-class-weights", events=(self.class_weights.event, sgd)
        )

    @property
    def calibrated_by(self) -> Literal["pld", "rdp-mironov"]:
        return self.calibrate_by

    def rate(self, descent: DpSgdEvent, width: int) -> float:
        """Learning rate at which the final noise of a weight has the standard deviation
        `weight_noise`. Reads no record.

        A standard deviation of 1 / sqrt(width) moves the score of features with norm sqrt(width) by
        1. If `weight_noise` is not set and the noise is small, the rate is limited by momentum and
        clip instead. AdamW divides by the noise, so T steps move a weight by rate sqrt(T).
        """
        from mechanisms.descent.noisy_descent import rate_for_noise

        if self.optimiser == "adamw":
            return 1 / math.sqrt(width * descent.steps)
        assert self.batch_size is not None
        noise = self.weight_noise or 1 / math.sqrt(width)
        rate = rate_for_noise(noise, descent, divisor=self.batch_size, momentum=self.momentum)
        return (
            rate
            if self.weight_noise
            else min(rate, 10 * (1 - self.momentum) / descent.segments[-1].l2_clip_norm)
        )

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Runs every step on clipped per-record gradients of the run's classifier."""
        return descend(self, plan.event, records, run)


def descend(
    config: DpSgd,
    event: Event | None,
    records: Records,
    run: Run,
    *,
    physical_batch_size: int | None = None,
) -> Fitted:
    """Runs the steps of an event on the run's classifier, with settings that have no unset fields.
    The losses per epoch are private.

    Args:
        physical_batch_size: records in memory at once. It affects only speed and memory. None: 512
            for features, otherwise the number of sequences (at most 32) whose gradients fit in a
            gigabyte.
    """
    from mechanisms.descent.keyed_state import fit_classifier
    from mechanisms.descent.noisy_descent import NoisyDescent, Optimised, SampledSum
    from mechanisms.model import threads
    from mechanisms.model.clipping import RecordClipping
    from mechanisms.model.feed import Feed
    from mechanisms.model.inputs import FeatureInputs

    classifier, inputs = run.classifier(), records.inputs
    assert isinstance(event, DpSgdEvent | ComposedEvent)
    sgd, rate = descent_of(event), config.learning_rate
    assert rate is not None
    assert config.batch_size is not None
    assert config.epochs is not None
    # a Poisson sample exceeds twice its mean plus 100 with a probability below 2^-100
    require_room(min(len(records.labels), 2 * config.batch_size + 100), 2.0)
    clipper = RecordClipping(classifier)
    in_memory = max(1, min(32, _GRADIENT_BYTES // (4 * classifier.num_parameters)))
    size = physical_batch_size or (512 if isinstance(inputs, FeatureInputs) else in_memory)
    divisor, epochs = config.batch_size, config.epochs

    def fit(state: KeyedState) -> None:
        descent = NoisyDescent(
            state,
            sgd,
            epochs=epochs,
            remedy=f"lower learning_rate (now {rate:g})",
            checkpoint_seconds=run.checkpoint_seconds,
            witness=run.witness,
            progress=run.progress,
        )
        weights = _class_weights(
            config, event, records.labels, classes=run.classes, stream=state.stream
        )
        classifier.part.eval()
        with threads.fitting(inputs), clipper:
            update = Optimised(
                classifier.flat,
                lambda theta: _optimiser(theta, config),
                around=lambda: _scaled(classifier, config.head_rate),
            )

            def sum_over(some: Inputs, labels: Tensor, prob: float | None) -> SampledSum:
                return SampledSum(
                    clipper,
                    Feed.of(some, classifier.device),
                    labels.to(classifier.device),
                    state.stream,
                    sgd.sampling_prob if prob is None else prob,
                    lambda segment, own: _coefficients(config, segment, own),
                    None if weights is None else weights[labels.cpu()].to(classifier.device),
                    size,
                )

            descent.run(
                update, sum_over(inputs, records.labels, None), sum_over=sum_over, divisor=divisor
            )

    losses = fit_classifier(classifier, run.folder, run.new_key, fit).numbers["losses"]
    return Fitted(
        ClassifierModel(classifier),
        event,
        {"steps": sgd.steps, "loss": losses[-1], "losses": losses},
    )


@contextmanager
def _scaled(classifier: Classifier, rate: float) -> Iterator[None]:
    head = [
        classifier.flat[classifier.spans[id(p)]] for p in classifier.head_parameters if rate != 1
    ]
    before = [part.clone() for part in head]
    yield
    for part, start in zip(head, before, strict=True):
        part.sub_(start).mul_(rate).add_(start)


def _coefficients(config: DpSgd, segment: NoiseSegment, weights: Tensor | None) -> Coefficients:
    import torch

    clip = segment.l2_clip_norm
    before = config.class_weights is not None and config.class_weights.apply == "before-clip"

    def factors(norms: Tensor) -> Tensor:
        scale = weights if before and weights is not None else torch.ones_like(norms)
        factor = torch.minimum(scale, clip / norms.clamp(min=torch.finfo(norms.dtype).tiny))
        return factor if weights is None or before else factor * weights

    return factors


def _class_weights(
    config: DpSgd, event: DpEvent, labels: Tensor, *, classes: int, stream: SecretStream
) -> Tensor | None:
    weights = config.class_weights
    if weights is None:
        return None
    assert isinstance(event, ComposedEvent)
    (release,) = event.releases
    noisy = class_counts.noisy_counts(labels.cpu(), classes, event=release, stream=stream)
    return class_counts.class_weights(noisy, weights)


def _optimiser(theta: nn.Parameter, config: DpSgd) -> torch.optim.Optimizer:
    import torch

    assert config.learning_rate is not None
    if config.optimiser == "adamw":
        return torch.optim.AdamW(
            [theta], lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
        )
    return torch.optim.SGD(
        [theta],
        lr=config.learning_rate,
        weight_decay=config.weight_decay,
        momentum=config.momentum,
        fused=True,
    )
