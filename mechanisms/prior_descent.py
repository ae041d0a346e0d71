"""Descent from the public prior: a formally private linear head that starts at what is publicly known of the codes.

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
(docs/formal.md, which has what else was tried; `scripts/formal_ablation.py` says what each part gives).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar, Literal

import torch
from pydantic import ConfigDict, Field, model_validator
from torch import Tensor

from mechanisms import dp_sgd
from mechanisms.errors import MechanismError
from mechanisms.formal_head import features_of, linear_head
from mechanisms.mechanism import Aimed, ClassifierModel, Fitted, Plan, Records, Run, Task, registered
from mechanisms.model import checkpoint, threads
from mechanisms.model.fields import Fields
from mechanisms.privacy import class_counts
from mechanisms.privacy.claims import claims, gaussian
from mechanisms.privacy.events import ComposedEvent, DpSgdEvent, GaussianReleaseEvent, NoiseSegment
from mechanisms.privacy.noise import SecretStream

_AT_ONCE = 4096
"""Records in memory at once; it changes nothing."""


class PriorDescentEvent(ComposedEvent, frozen=True):
    """The mean of the features and the class counts released, then full-batch steps."""

    mechanism: Literal["prior-descent"] = "prior-descent"  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def releases(self) -> tuple[GaussianReleaseEvent, GaussianReleaseEvent]:
        """Mean, counts."""
        mean, counts, _ = self.events
        assert isinstance(mean, GaussianReleaseEvent)
        assert isinstance(counts, GaussianReleaseEvent)
        return mean, counts

    @property
    def phases(self) -> tuple[NoiseSegment | None, NoiseSegment]:
        """Steps of the map, if any, and of the rows."""
        *before, rows = dp_sgd.descent_of(self).segments
        return (before[0] if before else None), rows

    def is_of(self, config: PriorDescent, fields: int = 1) -> bool:
        """Whether these settings plan it: else what is paid for on one scale would be released on another."""
        scale = self.releases[0].noise_multiplier * math.sqrt(config.mean_share)
        other = _event(config, fields, scale)
        noise = [s.noise_multiplier for s in _gaussians(self)], [s.noise_multiplier for s in _gaussians(other)]
        fixed = [s.model_copy(update={"noise_multiplier": 1.0}) for s in _gaussians(self)]
        alike = fixed == [s.model_copy(update={"noise_multiplier": 1.0}) for s in _gaussians(other)]
        return alike and all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(*noise, strict=True))


def _gaussians(event: PriorDescentEvent) -> list[GaussianReleaseEvent | NoiseSegment]:
    return [*event.releases, *dp_sgd.descent_of(event).segments]


claims(PriorDescentEvent, formal=True)(gaussian)


@registered
class PriorDescent(Aimed, frozen=True):
    """Budget, its split, and the descent."""

    model_config = ConfigDict(title="Descent from the public prior")
    reads: ClassVar[frozenset[str]] = frozenset({"features"})
    several: ClassVar[bool] = True

    kind: Literal["prior-descent"] = "prior-descent"
    mean_share: float = Field(default=0.03, gt=0, lt=1, title="Share of the mean", description="Of rho.")
    count_share: float = Field(default=0.05, gt=0, lt=1, title="Share of the counts", description="Of rho.")
    feature_clip_norm: float = Field(
        default=4.0,
        gt=0,
        allow_inf_nan=False,
        title="Feature norm R",
        description="Longer features are cut to it in the mean. Set it from the encoder, not from the records.",
    )
    smallest_count: float = Field(
        default=3.0, gt=0, allow_inf_nan=False, title="Smallest count", description="In the log prior."
    )
    tempering: float = Field(
        default=0.1,
        ge=0,
        le=1,
        title="Tempering",
        description="Share of the log prior taken out at the end: rare codes are said more often.",
    )
    align_share: float = Field(default=0.25, ge=0, lt=1, title="Share of the map", description="0: no map.")
    align_steps: int = Field(default=10, ge=1, le=10_000, title="Steps of the map")
    align_noise: float = Field(
        default=0.03, gt=0, allow_inf_nan=False, title="Noise of the map", description="Nu of an entry of A."
    )
    directions: int = Field(default=96, ge=1, title="Directions k", description="Of the map.")
    steps: int = Field(default=60, ge=1, le=10_000, title="Steps of the rows")
    weight_noise: float = Field(
        default=0.5, gt=0, allow_inf_nan=False, title="Noise of a weight", description="Nu of a row's entry."
    )
    momentum: float = Field(default=0.9, ge=0, lt=1, title="Momentum")
    l2_clip_norm: float = Field(default=1.0, gt=0, allow_inf_nan=False, title="Clip of the per-record gradients")

    @model_validator(mode="after")
    def _shares_leave_a_descent(self) -> PriorDescent:
        if self.rest <= 0:
            raise ValueError("mean_share, count_share and align_share leave nothing for the rows: lower them")
        return self

    @property
    def rest(self) -> float:
        """Share of the rows."""
        return 1 - self.mean_share - self.count_share - self.align_share

    def plan(self, task: Task) -> Plan:
        """Solve the noise so that releases and descent together meet the target.

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
        """Release mean and counts, start at the prior, learn the map, then the rows. Resumes step by step.

        Raises:
            MechanismError: the head is not linear, the plan is another's, or it diverged.
        """
        features, event, classifier = features_of(records), plan.event, run.classifier()
        fields = run.layout
        fields.check(records.labels)
        if not isinstance(event, PriorDescentEvent) or not event.is_of(self, len(fields.sizes)):
            raise MechanismError("the plan is not one of this mechanism's settings: plan again")
        head, device = linear_head(classifier), classifier.device
        state = _State(plan, run, features, records.labels, self.feature_clip_norm)
        total, counts = state.kept["total"].to(device), state.kept["counts"].to(device)
        mean, labels = total / plan.records, records.labels.to(device)
        z = features.to(device) - mean
        log_prior = self._log_prior(counts, event, fields)
        rows = torch.cat([head.weight.detach(), log_prior[:, None]], 1)
        map_steps, row_steps = event.phases
        with threads.fitting(records.inputs):
            if map_steps is not None:
                entries, left, right = _shared_map(rows[:, :-1], self.directions)
                at = partial(_map_gradient, fields, z, labels, rows, left, right, map_steps.l2_clip_norm)
                entries = state.descend("map", entries, at, map_steps, self._rate(map_steps, self.align_noise, plan))
                rows[:, :-1] += rows[:, :-1] @ right @ entries @ right.T
            at = partial(_row_gradient, fields, z, labels, row_steps.l2_clip_norm)
            rows = state.descend("rows", rows, at, row_steps, self._rate(row_steps, self.weight_noise, plan))
        state.finish()
        with torch.no_grad():
            head.weight.copy_(rows[:, :-1])
            head.bias.copy_(rows[:, -1] - self.tempering * log_prior - rows[:, :-1] @ mean)
        losses = state.losses
        return Fitted(ClassifierModel(classifier), event, {"steps": len(losses), "loss": losses[-1], "losses": losses})

    def _rate(self, segment: NoiseSegment, noise: float, plan: Plan) -> float:
        """At which a parameter ends with noise of this standard deviation."""
        m = self.momentum
        reach = math.sqrt(sum(((1 - m**left) / (1 - m)) ** 2 for left in range(1, segment.steps + 1)))
        return noise * plan.records / (segment.noise_multiplier * segment.l2_clip_norm * reach)

    def _log_prior(self, counts: Tensor, event: PriorDescentEvent, fields: Fields) -> Tensor:
        """Natural log of the classes' shares, within each field. A count that its noise may have made is as good as
        none: else the many empty classes would together outweigh those that are not."""
        release = event.releases[1]
        std = release.noise_multiplier * release.l2_sensitivity
        beyond = torch.where(counts > std, counts, self.smallest_count)
        return fields.log_shares(beyond.clamp(min=self.smallest_count))


def _shared_map(weights: Tensor, directions: int) -> tuple[Tensor, Tensor, Tensor]:
    """A = 0 [k, k]; W_0 U over its longest row [classes, k]; U [width, k]. All from the prior, which is public."""
    right = torch.linalg.svd(weights, full_matrices=False)[2][:directions].T.contiguous()
    longest = weights.norm(dim=1).max().clamp(min=1e-12)
    k = right.shape[1]
    return torch.zeros(k, k, device=weights.device), weights @ right / longest, right


def _factors(clip: float, norms: Tensor) -> Tensor:
    """What cuts gradients of these norms to the clip [b]."""
    return clip / norms.clamp(min=clip)


def _residuals(fields: Fields, z: Tensor, labels: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """(softmax - onehot [b, classes], losses [b]) of centred features at weights and bias [classes, width + 1]."""
    log_probabilities = fields.log_softmax(torch.addmm(rows[:, -1], z, rows[:, :-1].T))
    losses = -fields.log_likelihood(log_probabilities, labels)
    return fields.residuals_(log_probabilities, labels), losses


def _map_gradient(
    fields: Fields, z: Tensor, labels: Tensor, rows: Tensor, left: Tensor, right: Tensor, clip: float, entries: Tensor
) -> tuple[Tensor, Tensor]:
    """Sum over records of (left' e_i) (right' z_i)', each cut to norm `clip`, float64 [k, k]; the sum of the losses."""
    weights = rows[:, :-1]
    there = torch.cat([weights + weights @ right @ entries @ right.T, rows[:, -1:]], 1)
    gradient, loss = torch.zeros_like(entries, dtype=torch.float64), torch.zeros((), device=z.device)
    for some, own in zip(z.split(_AT_ONCE), labels.split(_AT_ONCE), strict=True):
        residual, losses = _residuals(fields, some, own, there)
        pulled, along = residual @ left, some @ right
        norms = pulled.norm(dim=1) * along.norm(dim=1)
        gradient.addmm_((pulled * _factors(clip, norms)[:, None]).double().T, along.double())
        loss += losses.sum()
    return gradient, loss


def _row_gradient(fields: Fields, z: Tensor, labels: Tensor, clip: float, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Sum over records of e_i (z_i, 1)', each cut to norm `clip`, float64 [classes, width + 1]; the sum of the losses.

    Products of two float32 are exact in float64, and their sum is to 1e-10 at any number of records, so that a record
    more or less moves no other's rounding.
    """
    gradient, loss = torch.zeros_like(rows, dtype=torch.float64), torch.zeros((), device=z.device)
    for some, own in zip(z.split(_AT_ONCE), labels.split(_AT_ONCE), strict=True):
        residual, losses = _residuals(fields, some, own, rows)
        norms = (residual.square().sum(1) * (some.square().sum(1) + 1)).sqrt()
        residual = residual.mul_(_factors(clip, norms)[:, None]).double()
        gradient[:, :-1].addmm_(residual.T, some.double())
        gradient[:, -1] += residual.sum(0)
        loss += losses.sum()
    return gradient, loss


class _State:
    """What a fit that goes on needs: the releases, parameters and velocity of a phase, and, until it ends, the key.

    The checkpoint lies in `run.folder`, one a step, written before progress is told.
    """

    def __init__(self, plan: Plan, run: Run, features: Tensor, labels: Tensor, radius: float) -> None:
        assert isinstance(plan.event, PriorDescentEvent)
        self._plan, self._run, self._key = plan, run, dp_sgd.new_key()
        self._momentum, self._records = plan.mechanism.model_dump()["momentum"], plan.records
        self._file = None if run.folder is None else run.folder / "descent.safetensors"
        self._identity = plan.model_dump(mode="json", include={"mechanism", "event"})
        self._all = dp_sgd.descent_of(plan.event).steps
        self.step, self.losses = 0, list[float]()
        self.kept: dict[str, Tensor] = {}
        if self._file is not None and self._file.exists():
            self._resume()
            self._stream = SecretStream(self._key)
            return
        self._stream = SecretStream(self._key)
        of_mean, of_counts = plan.event.releases
        features = features.cpu()
        cut = features * (radius / features.norm(dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1)
        std = of_mean.noise_multiplier * of_mean.l2_sensitivity
        total = cut.sum(0, dtype=torch.float64)
        self.kept["total"] = self._stream.add_normal_(total, std=std, purpose="mean", step=0).float()
        self.kept["counts"] = class_counts.with_noise(
            run.layout.counts(labels), std=of_counts.noise_multiplier * of_counts.l2_sensitivity, stream=self._stream
        )
        self._save()

    def descend(
        self,
        name: str,
        start: Tensor,
        gradient: Callable[[Tensor], tuple[Tensor, Tensor]],
        segment: NoiseSegment,
        rate: float,
    ) -> Tensor:
        """The phase's parameters at its end; steps that were taken before are not taken again.

        Raises:
            MechanismError: it diverged.
        """
        here = self.kept.get(name, start).to(start.device)
        velocity = self.kept.get(f"{name}.velocity", torch.zeros_like(start)).to(start.device)
        first = self.kept.get(f"{name}.first", torch.tensor(self.step))
        self.kept[f"{name}.first"] = first
        for step in range(self.step, int(first) + segment.steps):
            summed, loss = gradient(here)
            flat, clip = summed.view(-1), segment.l2_clip_norm
            if self._run.canaries is not None:
                cut = partial(_factors, clip)
                self._run.canaries.insert(
                    flat, factors=cut, clip=clip, sampling_prob=1.0, stream=self._stream, step=step
                )
            self._stream.add_normal_(flat, std=segment.noise_multiplier * clip, purpose="gradient noise", step=step)
            if self._run.canaries is not None:
                self._run.canaries.look(flat, segment=segment, sampling_prob=1.0)
            velocity = self._momentum * velocity + (summed / self._records).float()
            here = here - rate * velocity
            if not bool(torch.isfinite(here).all()):
                raise MechanismError(f"the descent diverged by step {step + 1}: lower weight_noise and align_noise")
            self.step = step + 1
            self.losses.append(float(loss) / self._records)
            self.kept |= {name: here, f"{name}.velocity": velocity}
            self._save()
            if self._run.progress is not None:
                self._run.progress(self.step, self._all)
        return here

    def finish(self) -> None:
        """Drop what only a fit that goes on needs, the key first."""
        self._key = b""
        self._save()

    def _save(self) -> None:
        if self._file is None:
            return
        tensors = dict(self.kept)
        if self._key:
            tensors["noise_key"] = torch.frombuffer(bytearray(self._key), dtype=torch.uint8)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.save(self._file, tensors, self._identity | {"step": self.step, "losses": self.losses})

    def _resume(self) -> None:
        assert self._file is not None
        tensors, meta = checkpoint.load(self._file)
        if {name: meta[name] for name in self._identity} != self._identity:
            raise MechanismError(f"checkpoint {self._file} belongs to another event or config; remove it to start over")
        key = tensors.pop("noise_key", None)
        self._key = self._key if key is None else bytes(key.tolist())
        # copies: products of a memory-mapped tensor, which may lie unaligned, differ in the last bit
        self.kept = {name: tensor.clone() for name, tensor in tensors.items()}
        self.step, self.losses = meta["step"], meta["losses"]


def _event(config: PriorDescent, fields: int, noise_multiplier: float) -> PriorDescentEvent:
    """With noise x/sqrt(share) on a release and x sqrt(T/share) on T steps it costs what one Gaussian of x costs."""
    mean = GaussianReleaseEvent(
        what="sum of the features",
        noise_multiplier=noise_multiplier / math.sqrt(config.mean_share),
        l2_sensitivity=config.feature_clip_norm,
    )
    counts = GaussianReleaseEvent(
        what="class counts",
        noise_multiplier=noise_multiplier / math.sqrt(config.count_share),
        l2_sensitivity=class_counts.L2_SENSITIVITY * math.sqrt(fields),
    )
    phases = [(config.align_steps, config.align_share), (config.steps, config.rest)]
    segments = tuple(
        NoiseSegment(
            steps=steps,
            noise_multiplier=noise_multiplier * math.sqrt(steps / share),
            l2_clip_norm=config.l2_clip_norm,
        )
        for steps, share in phases
        if share > 0
    )
    return PriorDescentEvent(events=(mean, counts, DpSgdEvent(sampling_prob=1.0, segments=segments)))
