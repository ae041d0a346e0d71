"""DP-SGD for every trainable part, with noise and clip schedules and private class weights.

A step t draws a Poisson sample B_t (each record independently with probability q), and

    g_t = ( sum_{i in B_t} c_i grad(-l_i) + sigma_t C_t N(0, I) ) / (q n),     c_i || grad(-l_i) || <= C_t

which goes to AdamW or SGD (post-processing). The division is by the *expected* size of the sample; the real one is
private. The event drives the run: noise, clips, steps and sampling probability are read from it, so that what is
claimed cannot differ from what runs, and a checkpoint of another event is refused.

A logical batch is cut into micro-batches after sorting it by length. Clipping is record by record, so the sum, and
with it the mechanism, does not change; the padding and the memory do. Gradients are summed in float64: in float32 one
record more would move how all others are rounded.

**No dropout.** A mask that is drawn goes to a place in the batch, not to a record: one record less hands every later
one another's mask, so that all clipped gradients move at once, by far more than the clip. So the module runs as it does
when it codes; one that draws random numbers even then is refused where gradients are taken record by record.

All randomness that privacy rests on comes from `mechanisms.privacy.noise`: a key of the operating system's entropy,
kept in the private checkpoint alone until the run ends, so that a resumed run draws the noise of a step once and
the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from pydantic import ConfigDict, Field, model_validator
from torch import Tensor, nn

from mechanisms.errors import MechanismError
from mechanisms.mechanism import Aimed, ClassifierModel, Fitted, Plan, Records, Run, Task, registered
from mechanisms.model import checkpoint, threads
from mechanisms.model.classifier import Classifier
from mechanisms.model.dp_head import HeadClipping, has_closed_form
from mechanisms.model.fields import Fields
from mechanisms.model.ghost import Coefficients, GhostClipping
from mechanisms.model.inputs import FeatureInputs, Inputs
from mechanisms.model.own import OwnModel, clipping_of
from mechanisms.model.per_record import PerRecordClipping
from mechanisms.model.training import Progress
from mechanisms.privacy import class_counts, gaussian_cost, schedules
from mechanisms.privacy.claims import claims, gaussian
from mechanisms.privacy.class_counts import ClassWeightsConfig
from mechanisms.privacy.events import ComposedEvent, DpSgdEvent, Event, GaussianReleaseEvent, NoiseSegment
from mechanisms.privacy.noise import SecretStream, new_key
from mechanisms.privacy.schedules import ConstantSchedule, Schedule

if TYPE_CHECKING:
    from mechanisms.audit.gradient_canaries import GradientCanaries

DpEvent = DpSgdEvent | ComposedEvent


class ClassWeightedEvent(ComposedEvent, frozen=True):
    """Class counts released with noise, then DP-SGD with weights made of them."""

    mechanism: Literal["dp-sgd-class-weights"] = "dp-sgd-class-weights"  # pyright: ignore[reportIncompatibleVariableOverride]


claims(ClassWeightedEvent, formal=True)(gaussian)
PAPER_EPOCHS, PAPER_BATCH = 30, 512


@registered
class DpSgd(Aimed, frozen=True):
    """Every knob that privacy or the result depends on. Defaults are the paper's setting (Chew et al., section 3.2)."""

    model_config = ConfigDict(title="DP-SGD")
    several: ClassVar[bool] = True

    kind: Literal["dp-sgd"] = "dp-sgd"
    calibrate_by: Literal["pld", "rdp-mironov"] = Field(
        default="pld",
        title="Calibrated by",
        description="`rdp-mironov` sets the noise as the paper does (Mironov 2017, proposition 3); the claim is PLD's.",
    )
    optimiser: Literal["adamw", "sgd"] = Field(default="adamw", title="Optimiser")
    learning_rate: float = Field(default=1e-3, gt=0, le=1e6, allow_inf_nan=False, title="Learning rate")
    weight_decay: float = Field(default=0.0, ge=0, le=1e6, allow_inf_nan=False, title="Weight decay")
    momentum: float = Field(default=0.0, ge=0, lt=1, title="Momentum", description="SGD only.")
    epochs: int | None = Field(default=None, ge=1, le=10_000, title="Epochs", description="Empty: the run's own.")
    sampling_prob: float | None = Field(
        default=None, gt=0, le=1, title="Sampling probability", description="Sets the batch size; 1: every record."
    )
    batch_size: int | None = Field(
        default=None, ge=1, title="Expected batch size", description="Of the Poisson samples; empty: the run's own."
    )
    l2_clip_norm: float = Field(
        default=1.0, gt=0, allow_inf_nan=False, title="Clip", description="Of the last step, where the schedule moves."
    )
    clipping: Literal["clip", "normalise"] = Field(
        default="clip",
        title="Clipping",
        description="`clip`: min(1, C/norm). `normalise`: C/(norm + 0.01), every gradient scaled (Bu et al. 2023).",
    )
    schedule: Schedule = Field(default=ConstantSchedule(), title="Schedule")
    class_weights: ClassWeightsConfig | None = Field(default=None, title="Class weights")

    @model_validator(mode="after")
    def _momentum_is_for_sgd(self) -> DpSgd:
        if self.momentum and self.optimiser != "sgd":
            raise ValueError("momentum goes with optimiser `sgd`")
        return self

    def _batch(self, task: Task) -> int:
        if self.sampling_prob is not None:
            return max(1, round(self.sampling_prob * task.records))
        return self.batch_size or PAPER_BATCH

    def check(self, task: Task) -> None:
        """Raises MechanismError where the batch is larger than the data."""
        if self._batch(task) > task.records:
            raise MechanismError(
                f"batch_size is {self._batch(task)}, larger than the data ({task.records} training records); lower it "
                "(--batch-size)"
            )

    def plan(self, task: Task) -> Plan:
        """Solve the last noise multiplier so that schedule, steps, sampling and class counts together meet the target.

        Raises:
            MechanismError: the batch is larger than the data, or the target cannot be met.
        """
        self.check(task)
        batch, epochs = self._batch(task), self.epochs or PAPER_EPOCHS
        # Epochs in expectation: each step sees q n = batch records.
        steps = max(1, round(epochs * task.records / batch))

        def event(noise_multiplier: float) -> DpEvent:
            sgd = DpSgdEvent(
                sampling_prob=batch / task.records,
                segments=schedules.segments(
                    self.schedule,
                    steps=steps,
                    final_noise_multiplier=noise_multiplier,
                    final_l2_clip_norm=self.l2_clip_norm,
                ),
            )
            if self.class_weights is None:
                return sgd
            return ClassWeightedEvent(events=(self.class_weights.event(len(task.fields) or 1), sgd))

        settled = self.at(task).model_copy(update={"batch_size": batch, "sampling_prob": None, "epochs": epochs})
        return Plan(mechanism=settled, event=solved(event, settled, task), records=task.records)

    def cost(self, plan: Plan, task: Task) -> Mapping[str, float]:
        """Noise, steps, and epsilon by several accountants."""
        return cost_figures(plan, task)

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Every step on clipped per-record gradients of the run's classifier."""
        size = 512 if isinstance(records.inputs, FeatureInputs) else 32
        return descend(plan, records, run, physical_batch_size=size)


def solved(event: Callable[[float], DpEvent], settled: Aimed, task: Task) -> DpEvent:
    """The event at the noise that meets the settled target.

    Raises:
        MechanismError: the target cannot be met.
    """
    assert settled.target_epsilon is not None
    assert settled.delta is not None
    noise_multiplier = gaussian_cost.calibrate(
        event,
        target_epsilon=settled.target_epsilon,
        delta=settled.delta,
        records_per_unit=task.records_per_unit,
        by=settled.calibrate_by if isinstance(settled, DpSgd) else "pld",
    )
    return event(noise_multiplier)


def descent_of(event: Event | None) -> DpSgdEvent:
    """The gradient descent of an event."""
    parts = event.events if isinstance(event, ComposedEvent) else (event,)
    return next(part for part in parts if isinstance(part, DpSgdEvent))


def cost_figures(plan: Plan, task: Task) -> dict[str, float]:
    """Noise, steps, and what a plan of Gaussian noise costs by several accountants."""
    assert isinstance(plan.mechanism, Aimed)
    assert plan.event is not None
    sgd, delta, unit = descent_of(plan.event), plan.mechanism.delta or task.delta, task.records_per_unit
    cost = asdict(gaussian_cost.cost(plan.event, delta=delta, records_per_unit=unit))
    # Opacus knows no schedule with full-batch steps, and its orders do not reach a delta near 1
    comparable = sgd.sampling_prob < 1 and unit == 1 and delta < 0.5
    opacus = {"epsilon_opacus": gaussian_cost.opacus_epsilon(plan.event, delta=delta)} if comparable else {}
    figures = {"noise_multiplier": sgd.segments[-1].noise_multiplier, "steps": sgd.steps}
    return figures | {name: value for name, value in cost.items() if value is not None} | opacus


def descend(
    plan: Plan,
    records: Records,
    run: Run,
    *,
    physical_batch_size: int,
    start: Callable[[SecretStream, Classifier], None] | None = None,
) -> Fitted:
    """`run_plan` on a fresh classifier of the run; `start` may put parameters of its own into it."""
    classifier = run.classifier()
    ran = run_plan(
        classifier,
        records.inputs,
        records.labels,
        plan=plan,
        num_labels=run.classes,
        physical_batch_size=physical_batch_size,
        start=start,
        canaries=run.canaries,
        folder=run.folder,
        progress=run.progress,
    )
    figures = {"steps": descent_of(ran.event).steps, "loss": ran.losses[-1], "losses": list(ran.losses)}
    return Fitted(ClassifierModel(classifier), ran.event, figures)


@dataclass(frozen=True)
class PoissonSampler:
    """Every record independently with probability `sampling_prob`, anew at every step."""

    num_records: int
    sampling_prob: float

    def sample(self, stream: SecretStream, step: int) -> Tensor:
        """Indices int64 [b], ascending; b may be 0."""
        return stream.poisson_sample(self.num_records, prob=self.sampling_prob, purpose="sample", step=step)


@dataclass(frozen=True)
class DpSgdRun:
    """What ran. `event` counts the steps really taken; `losses` and `clipped` are private, not part of the claim.

    losses: mean -l_i over the sampled records of each epoch, in nats; clipped: share of them beyond the clip.
    """

    event: DpEvent
    losses: tuple[float, ...]
    clipped: tuple[float, ...]


def run_plan(
    classifier: Classifier,
    inputs: Inputs,
    labels: Tensor,
    *,
    plan: Plan,
    num_labels: int,
    physical_batch_size: int = 32,
    sampler: PoissonSampler | None = None,
    start: Callable[[SecretStream, Classifier], None] | None = None,
    canaries: GradientCanaries | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> DpSgdRun:
    """Run a plan in place on `classifier.flat`, resuming a checkpoint of the same plan in `folder`.

    Args:
        labels: int64 [n].
        physical_batch_size: records in memory at once; changes nothing but speed and memory.
        start: called before the first step, to put parameters of its own into `classifier.flat`; what it reads of the
            records must be a release that the plan's event holds, with noise from the stream.
        canaries: of an audit: gradients added to each clipped sum, and what the noisy sum shows of them.
        folder: where the checkpoint lies, one an epoch; it holds the noise key until the run ends.

    Raises:
        MechanismError: the sampler is not the Poisson sampler of the plan, a layer is not supported, training diverged,
            or the checkpoint is another plan's.
        OSError: the checkpoint could not be written.
    """
    sgd, config = descent_of(plan.event), plan.mechanism
    assert isinstance(config, DpSgd)
    assert config.batch_size is not None
    assert config.epochs is not None
    sampler = sampler or PoissonSampler(len(inputs), sgd.sampling_prob)
    _check(sgd, inputs, sampler, physical_batch_size)
    clipper = _clipping(classifier, inputs)
    if isinstance(clipper, PerRecordClipping):
        physical_batch_size = min(physical_batch_size, clipper.most_records)
    theta = nn.Parameter(classifier.flat)
    optimiser = _optimiser(theta, config)
    state = _State(folder, plan, optimiser, theta)
    state.resume()
    if state.step == sgd.steps:
        return state.result()

    stream = SecretStream(state.key)
    device = classifier.device
    gradient = torch.zeros_like(classifier.flat, dtype=torch.float64)
    theta.grad = mean = torch.zeros_like(classifier.flat)
    tally = torch.zeros(3, device=device)
    told_every = max(1, min(16, sgd.steps // 16))  # steps over all records of a whole encoder are few and long
    if state.step == 0:
        state.save()  # the key must be on the disk before anything is drawn with it
        if start is not None:
            start(stream, classifier)
    weights = _record_weights(plan, labels, fields=classifier.fields or Fields((num_labels,)), stream=stream)
    labels = labels.to(device)
    classifier.part.eval()
    with threads.fitting(inputs), clipper:
        for step, segment in _remaining(sgd, state.step):
            index = sampler.sample(stream, step)
            gradient.zero_()
            for micro in _micro_batches(inputs, index, physical_batch_size):
                factors = _coefficients(config, segment, None if weights is None else weights[micro].to(device))
                norms, losses = clipper.add_clipped_sum(
                    inputs.batch(micro, device), labels[micro.to(device)], coefficients=factors, out=gradient
                )
                tally[0] += losses.sum()
                tally[1] += (norms > segment.l2_clip_norm).sum()
                tally[2] += len(micro)
            if canaries is not None:
                canaries.insert(
                    gradient,
                    factors=_coefficients(config, segment, None),
                    clip=segment.l2_clip_norm,
                    sampling_prob=sgd.sampling_prob,
                    stream=stream,
                    step=step,
                )
            std = segment.noise_multiplier * segment.l2_clip_norm
            stream.add_normal_(gradient, std=std, purpose="gradient noise", step=step)
            if canaries is not None:
                canaries.look(gradient, segment=segment, sampling_prob=sgd.sampling_prob)
            mean.copy_(gradient.div_(config.batch_size))
            optimiser.step()
            state.step = step + 1
            if _ends_epoch(state.step, steps=sgd.steps, epochs=config.epochs):
                state.end_epoch(tally)
            if progress is not None and (state.step % told_every == 0 or state.step == sgd.steps):
                progress(state.step, sgd.steps)
    return state.result()


def _clipping(classifier: Classifier, inputs: Inputs) -> HeadClipping | GhostClipping | PerRecordClipping:
    if isinstance(classifier, OwnModel):
        return clipping_of(classifier, inputs)
    return HeadClipping(classifier) if has_closed_form(classifier, inputs) else GhostClipping(classifier)


def _remaining(sgd: DpSgdEvent, done: int) -> list[tuple[int, NoiseSegment]]:
    """(step, its segment) for the steps not yet taken, in order."""
    flat = [segment for segment in sgd.segments for _ in range(segment.steps)]
    return list(enumerate(flat))[done:]


def _ends_epoch(step: int, *, steps: int, epochs: int) -> bool:
    """Whether an epoch (a share 1/epochs of the steps) ends with this step; the last step ends the last one."""
    return step * epochs // steps > (step - 1) * epochs // steps


def _micro_batches(inputs: Inputs, index: Tensor, size: int) -> tuple[Tensor, ...]:
    """A logical batch in pieces of like length, longest first; nothing for an empty sample."""
    if not len(index):
        return ()
    if inputs.lengths is not None:
        index = index[inputs.lengths[index].argsort(descending=True, stable=True)]
    return index.split(size)


def _coefficients(config: DpSgd, segment: NoiseSegment, weights: Tensor | None) -> Coefficients:
    """Factors c with c_i norm_i <= C: clipped or normalised, weighted before or after."""
    clip = segment.l2_clip_norm
    before = config.class_weights is not None and config.class_weights.apply == "before-clip"

    def factors(norms: Tensor) -> Tensor:
        scale = weights if before and weights is not None else torch.ones_like(norms)
        weighted = norms * scale
        if config.clipping == "normalise":
            factor = clip * scale / (weighted + 0.01)
        else:
            factor = torch.minimum(scale, clip / norms.clamp(min=torch.finfo(norms.dtype).tiny))
        return factor if weights is None or before else factor * weights

    return factors


def _record_weights(plan: Plan, labels: Tensor, *, fields: Fields, stream: SecretStream) -> Tensor | None:
    """Of each record, float32 [n]; of several fields the mean over those that it has, each by its own counts.

    Raises:
        MechanismError: the plan's event pays for other counts.
    """
    weights = plan.mechanism.class_weights if isinstance(plan.mechanism, DpSgd) else None
    if weights is None:
        return None
    parts = plan.event.events if isinstance(plan.event, ClassWeightedEvent) else ()
    release = next((part for part in parts if isinstance(part, GaussianReleaseEvent)), None)
    if release is None or release.l2_sensitivity != weights.event(len(fields.sizes)).l2_sensitivity:
        raise MechanismError("the plan does not pay for these counts of classes: plan again")
    std = release.noise_multiplier * release.l2_sensitivity
    noisy = class_counts.with_noise(fields.counts(labels), std=std, stream=stream)
    return fields.mean([class_counts.class_weights(noisy[span], weights) for span in fields.spans], labels.cpu())


def _optimiser(theta: nn.Parameter, config: DpSgd) -> torch.optim.Optimizer:
    if config.optimiser == "adamw":
        return torch.optim.AdamW([theta], lr=config.learning_rate, weight_decay=config.weight_decay, fused=True)
    return torch.optim.SGD(
        [theta], lr=config.learning_rate, weight_decay=config.weight_decay, momentum=config.momentum, fused=True
    )


def _check(sgd: DpSgdEvent, inputs: Inputs, sampler: PoissonSampler, physical_batch_size: int) -> None:
    if type(sampler) is not PoissonSampler:
        raise MechanismError(
            f"sampler `{type(sampler).__name__}` does not sample by Poisson, which the claim of `dp-sgd` assumes"
        )
    if (sampler.num_records, sampler.sampling_prob) != (len(inputs), sgd.sampling_prob):
        raise MechanismError(
            f"the sampler takes {sampler.num_records} records with probability {sampler.sampling_prob:g}; the plan "
            f"says {len(inputs)} with {sgd.sampling_prob:g}: plan again"
        )
    if physical_batch_size < 1:
        raise MechanismError(f"physical_batch_size is {physical_batch_size}; it must be at least 1")


class _State:
    """The run's checkpoint: parameters, optimiser, noise key, and the accountant's state (event and steps taken)."""

    def __init__(self, folder: Path | None, plan: Plan, optimiser: torch.optim.Optimizer, theta: nn.Parameter) -> None:
        self._file = None if folder is None else folder / "dpsgd.safetensors"
        self._plan, self._optimiser, self._theta = plan, optimiser, theta
        self._steps, self._rate = descent_of(plan.event).steps, optimiser.param_groups[0]["lr"]
        self.key, self.step = new_key(), 0
        self.losses: list[float] = []
        self.clipped: list[float] = []

    def _identity(self) -> dict[str, object]:
        return self._plan.model_dump(mode="json", include={"mechanism", "event"})

    def end_epoch(self, tally: Tensor) -> None:
        """Close the epoch's tallies (loss sum, clipped, records), check for divergence and save."""
        total, beyond, records = tally.tolist()
        tally.zero_()
        self.losses.append(total / max(records, 1))
        self.clipped.append(beyond / max(records, 1))
        if not bool(torch.isfinite(self._theta).all()):
            raise MechanismError(f"DP-SGD diverged by step {self.step}: lower learning_rate (now {self._rate:g})")
        self.save()

    def save(self) -> None:
        """Replace the checkpoint; the last one holds no key any more."""
        if self._file is None:
            return
        tensors = {"theta": self._theta.detach()}
        if self.step < self._steps:
            tensors["noise_key"] = torch.frombuffer(bytearray(self.key), dtype=torch.uint8)
            slots = self._optimiser.state_dict()["state"].get(0, {})
            tensors |= {f"optimiser.{name}": t for name, t in slots.items() if isinstance(t, Tensor)}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        meta = {"step": self.step, "losses": self.losses, "clipped": self.clipped}
        checkpoint.save(self._file, tensors, self._identity() | meta)

    def resume(self) -> None:
        """Take back a checkpoint if there is one.

        Raises:
            MechanismError: it belongs to another event or config.
        """
        if self._file is None or not self._file.exists():
            return
        tensors, meta = checkpoint.load(self._file)
        if {name: meta[name] for name in self._identity()} != self._identity():
            raise MechanismError(f"checkpoint {self._file} belongs to another event or config; remove it to start over")
        with torch.no_grad():
            self._theta.copy_(tensors["theta"])
        slots = {name.removeprefix("optimiser."): t.clone() for name, t in tensors.items() if "optimiser." in name}
        if slots:
            groups = self._optimiser.state_dict()["param_groups"]
            self._optimiser.load_state_dict({"state": {0: slots}, "param_groups": groups})
        if "noise_key" in tensors:
            self.key = bytes(tensors["noise_key"].tolist())
        self.step, self.losses, self.clipped = meta["step"], meta["losses"], meta["clipped"]

    def result(self) -> DpSgdRun:
        """What has run so far."""
        return DpSgdRun(
            event=_taken(self._plan.event, self.step), losses=tuple(self.losses), clipped=tuple(self.clipped)
        )


def _taken(event: Event | None, steps: int) -> DpEvent:
    """The event of the first `steps` DP-SGD steps: what an accountant may count."""
    if isinstance(event, ComposedEvent):
        parts = tuple(_cut(part, steps) if isinstance(part, DpSgdEvent) else part for part in event.events)
        return event.model_copy(update={"events": parts})
    return _cut(descent_of(event), steps)


def _cut(sgd: DpSgdEvent, steps: int) -> DpSgdEvent:
    kept, left = [], steps
    for segment in sgd.segments:
        if left > 0:
            kept.append(segment.model_copy(update={"steps": min(left, segment.steps)}))
            left -= segment.steps
    return DpSgdEvent(sampling_prob=sgd.sampling_prob, segments=tuple(kept))
