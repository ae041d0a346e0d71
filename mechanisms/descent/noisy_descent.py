"""Runs the steps of a `DpSgdEvent`: a sum of clipped per-record gradients, its noise, and an update
of the parameters.

  theta <- update( ( sum_{i in B_t} c_i grad(-l_i) + sigma_t C_t N(0, I) ) / divisor )
  c_i || grad(-l_i) || <= C_t

Noise and clips are read from the event, so that the claim cannot differ from the run. Sums are
integers and their noise is rounded exactly, so the claim covers the released bits. A mechanism
supplies the clipped sum and the update. The audit's witness, the check for divergence, checkpoints
and progress are shared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from mechanisms.descent import exact_sums
from mechanisms.descent.keyed_state import KeyedState
from mechanisms.errors import MechanismError
from mechanisms.model import ranks
from mechanisms.model.clipping import Coefficients, RecordClipping
from mechanisms.model.feed import Feed
from mechanisms.model.inputs import Inputs
from mechanisms.model.pace import CHECKPOINT_SECONDS, Pace
from mechanisms.model.training import Progress
from mechanisms.privacy.events import DpSgdEvent, NoiseSegment
from mechanisms.privacy.noise import SecretStream

ClippedSum = Callable[[Tensor, int, NoiseSegment, Tensor, Tensor], int]
"""Signature (theta, step, segment, sum, tally) -> bits. Adds one step's clipped sum at theta to
`sum`, float64 of theta's shape, and (sum of losses, number of clipped records, number of
records) to `tally`, float32 [3]. The sum consists of integers in units of 2^-bits.
"""


SumOver = Callable[[Inputs, Tensor, float | None], ClippedSum]
"""Creates the clipped sum of records from their inputs, labels and sampling probability. None means
the event's probability.
"""


class Witness(Protocol):
    """Observes every sum of a fit for an audit (`mechanisms.audit.gradient_canaries`)."""

    def begin(self, sum_over: SumOver) -> None:
        """Called at the start of a phase with the function that sums records."""

    def before(
        self, total: Tensor, theta: Tensor, *, step: int, segment: NoiseSegment, unit: float
    ) -> None:
        """Called with a step's sum before its noise, in multiples of `unit`."""

    def after(self, noisy: Tensor) -> None:
        """Called with the same sum after its noise was added."""


class Momentum:
    """Gradient descent with momentum, in the precision of the parameters."""

    def __init__(self, theta: Tensor, *, rate: float, momentum: float) -> None:
        self.theta, self._velocity = theta, torch.zeros_like(theta)
        self._rate, self._momentum = rate, momentum

    def step(self, gradient: Tensor) -> None:
        self._velocity = self._momentum * self._velocity + gradient
        self.theta = self.theta - self._rate * self._velocity

    def tensors(self) -> dict[str, Tensor]:
        return {"theta": self.theta, "velocity": self._velocity}

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.theta, self._velocity = (
            tensors[name].to(self.theta.device) for name in ("theta", "velocity")
        )


class Optimised:
    """Updates parameters in place with a torch optimiser; every step runs inside the context
    `around`.
    """

    def __init__(
        self,
        theta: Tensor,
        make: Callable[[nn.Parameter], torch.optim.Optimizer],
        *,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._theta, self._around = nn.Parameter(theta), around
        self._theta.grad = self._gradient = torch.zeros_like(theta)
        self._optimiser = make(self._theta)

    @property
    def theta(self) -> Tensor:
        return self._theta.detach()

    def step(self, gradient: Tensor) -> None:
        self._gradient.copy_(gradient)
        with self._around():
            self._optimiser.step()

    def tensors(self) -> dict[str, Tensor]:
        slots = self._optimiser.state_dict()["state"].get(0, {})
        return {"theta": self.theta} | {
            f"optimiser.{name}": t for name, t in slots.items() if isinstance(t, Tensor)
        }

    def load(self, tensors: dict[str, Tensor]) -> None:
        self.theta.copy_(tensors["theta"])
        slots = {
            name.removeprefix("optimiser."): t for name, t in tensors.items() if name != "theta"
        }
        if slots:
            groups = self._optimiser.state_dict()["param_groups"]
            self._optimiser.load_state_dict({"state": {0: slots}, "param_groups": groups})


def rate_for_noise(noise: float, event: DpSgdEvent, *, divisor: float, momentum: float) -> float:
    """Learning rate at which the final noise of a parameter has this standard deviation. Reads no
    record.

    With momentum m, the noise of a step that is followed by j steps reaches the end multiplied by
    (1 - m^(j+1)) / (1 - m):

      rate = noise divisor / (sigma C sqrt(sum_j ((1 - m^(j+1)) / (1 - m))^2))
    """
    last = event.segments[-1]
    reach = math.sqrt(
        sum(
            ((1 - momentum**remaining) / (1 - momentum)) ** 2
            for remaining in range(1, event.steps + 1)
        )
    )
    return noise * divisor / (last.noise_multiplier * last.l2_clip_norm * reach)


Update = Momentum | Optimised
"""Updates parameters from a noisy mean gradient. Its tensors are stored in checkpoints."""


class NoisyDescent:
    """Runs the steps of an event. The state is saved at the end of an epoch, if enough time has
    passed since it was saved.

    A resumed descent takes the steps after the last save again, on the same records and with the
    same key, so that each step has one noise only.

    Args:
        state: state of the fit. In its numbers, `losses` are the mean -l_i over the records of each
            epoch, in nats, and `clipped` is the fraction of clipped records. Both are private and
            not part of the claim.
        epochs: number of epochs in all steps together, at most the number of steps.
        remedy: which setting to lower if the descent diverges.
        checkpoint_seconds: least time between two saves; 0 saves once per epoch.
    """

    def __init__(
        self,
        state: KeyedState,
        event: DpSgdEvent,
        *,
        epochs: int,
        remedy: str,
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
        witness: Witness | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._state, self._event, self._epochs, self._remedy = state, event, epochs, remedy
        self._witness, self._progress = witness, progress
        self._stream, self._pace = state.stream, Pace(checkpoint_seconds)
        state.numbers = {"step": 0, "losses": [], "clipped": []} | state.numbers

    @property
    def step(self) -> int:
        return self._state.numbers["step"]

    def run(
        self,
        update: Update,
        clipped_sum: ClippedSum,
        *,
        divisor: float,
        sum_over: SumOver | None = None,
    ) -> Tensor:
        """Runs the remaining steps and returns the parameters.

        Args:
            divisor: turns the noisy sum into a mean: a planned number of records, never the real
                one.
            sum_over: creates the same sum for other records, for the witness.

        Raises:
            MechanismError: the descent diverged.
        """
        state = self._state
        if state.tensors:
            update.load(state.tensors)
        witness = None if sum_over is None else self._witness
        if witness is not None and sum_over is not None:
            witness.begin(sum_over)
        gradient = torch.zeros_like(update.theta, dtype=torch.float64)
        tally, flat = torch.zeros(3, device=gradient.device), gradient.view(-1)
        steps = [segment for segment in self._event.segments for _ in range(segment.steps)]
        for segment in steps[self.step :]:
            step = self.step
            gradient.zero_()
            bits = clipped_sum(update.theta, step, segment, gradient, tally)
            if witness is not None:
                witness.before(gradient, update.theta, step=step, segment=segment, unit=2.0**-bits)
            std = exact_sums.sum_std(segment.noise_multiplier, segment.l2_clip_norm, bits=bits)
            self._stream.add_rounded_normal_(flat, std=std, purpose="gradient noise", step=step)
            gradient.mul_(2.0**-bits)
            if witness is not None:
                witness.after(flat)
            update.step(gradient.div_(divisor).to(update.theta.dtype))
            self._end_step(update, tally)
        return update.theta

    def _end_step(self, update: Update, tally: Tensor) -> None:
        """Counts the step. At the end of an epoch, records its mean loss, checks for divergence and
        saves if it is time.
        """
        numbers, steps = self._state.numbers, self._event.steps
        step = numbers["step"] = self.step + 1
        if step * self._epochs // steps > (step - 1) * self._epochs // steps:
            ranks.add_up(tally)
            total, beyond, records = tally.tolist()
            tally.zero_()
            numbers["losses"].append(total / max(records, 1))
            numbers["clipped"].append(beyond / max(records, 1))
            if not bool(torch.isfinite(update.theta).all()):
                raise MechanismError(
                    f"the descent diverged by step {step}: {self._remedy}", kind="descent-diverged"
                )
            if self._pace.is_due():
                self._state.tensors = update.tensors()
                self._state.save()
                self._pace.restart()
        # steps over all records with a whole encoder are few and slow
        if self._progress is not None and (
            step % max(1, min(16, steps // 16)) == 0 or step == steps
        ):
            self._progress(step, steps)


@dataclass(frozen=True)
class SampledSum:
    """Adds the clipped gradients of a Poisson sample in micro-batches. Each record is sampled
    independently with the same probability.

    The sample is sorted by length and then split. Clipping is per record, so this changes padding
    and memory but not the sum, and therefore not the mechanism. All ranks draw the same sample and
    each computes its share.

    Args:
        labels: int64 [n], on the device of the classifier.
        weights: per record, float32 [n], at most 1, on the same device.
        coefficients: factors c for a segment and the weights of some records.
        physical_batch_size: records in memory at once.
    """

    clipper: RecordClipping
    feed: Feed
    labels: Tensor
    stream: SecretStream
    sampling_prob: float
    coefficients: Callable[[NoiseSegment, Tensor | None], Coefficients]
    weights: Tensor | None
    physical_batch_size: int

    def __call__(
        self, theta: Tensor, step: int, segment: NoiseSegment, out: Tensor, tally: Tensor
    ) -> int:
        bits = exact_sums.bits_of(segment)
        index = self.stream.poisson_sample(
            len(self.feed.inputs), prob=self.sampling_prob, purpose="sample", step=step
        )
        for micro, batch in self.feed.batches([*self._micro_batches(index)]):
            weights = None if self.weights is None else self.weights[micro]
            norms, losses = self.clipper.add_clipped_sum(
                batch,
                self.labels[micro],
                coefficients=self.coefficients(segment, weights),
                bits=bits,
                out=out,
            )
            tally[0] += losses.sum()
            tally[1] += (norms > segment.l2_clip_norm).sum()
            tally[2] += len(micro)
        ranks.add_up(out)
        return bits

    def _micro_batches(self, index: Tensor) -> Iterator[Tensor]:
        """Yields this rank's records in micro-batches of similar length, longest first. An empty
        sample yields nothing.
        """
        lengths = self.feed.inputs.lengths
        if lengths is not None:
            index = index[lengths[index].argsort(descending=True, stable=True)]
        if len(index := ranks.share(index)):
            # the same number of micro-batches as in one process, so that no rank pads more
            yield from index.split(-(-self.physical_batch_size // ranks.number()))
