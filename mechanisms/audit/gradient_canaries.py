"""White-box audit of noisy gradient descent with canary records, and tests of the noise in every
sum.

A canary is treated like any other record: it is sampled, clipped and summed by the mechanism's own
code. A fair coin decides whether it is included. Canaries have orthogonal features, so that their
gradients hardly overlap. The attacker knows all records and sees the noisy sum of every step (Nasr
et al. 2023, arXiv 2302.07956). The attacker subtracts the contribution of the other records and
projects the rest on each canary's gradient g; correlations between canaries are removed with a
Cholesky factor of their Gram matrix. The attacker guesses `in` if, in units of the clip and summed
over the steps,

  sum (y - q L / 2) / s^2 > 0

with s the noise multiplier of the step, q the sampling probability, and L the canary's contribution
when it is sampled. If the event ran as stated, the guesses are independent and each is right with
probability at most (1 + TV)/2, which gives a binomial test of the event.

In addition to the guesses, four checks test the sums for one fault each:

* `noise`: the squared noise of each step relative to the stated variance (chi-square), its mean
  over coordinates, and the correlation of neighbouring coordinates. Finds half the noise, a step
  without noise, or one number used for all coordinates.
* `repeated noise`: the correlation of the noise of any two steps.
* `sensitivity`: a canary's contribution to a sum, which is at most one clip. Finds a clip that does
  not hold, or a record that is counted twice.
* `sampling`: the number of steps in which the canaries took part, in total (binomial) and
  individually (chi-square).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from mechanisms.descent.noisy_descent import ClippedSum, SumOver
from mechanisms.model.inputs import FeatureInputs, Inputs, joined
from mechanisms.privacy.events import DpSgdEvent, NoiseSegment

_LENGTH = 10.0
"""Minimum norm of a canary's features, far above most clips. If records are longer than a third of
it, canaries have three times the records' median norm.
"""
_NUMBERS = 1 << 27
"""Largest number of entries in the gradients of all canaries together (512 MiB)."""
_INDEPENDENT = 0.1
"""Smallest eigenvalue of the Gram matrix of canary directions at which canaries are judged."""
_SHORT = 0.01
"""In clips. A canary with a smaller contribution in some step is left out of the sampling check."""
_COORDINATES = 1 << 14
"""Coordinates of each step's noise that are kept for the correlation between steps."""
_ROUNDING = 1e-3
"""Tolerance, as a fraction of a clip, for contributions that are computed from float32
directions.
"""


class Check(StrEnum):
    """The faults that the sums are checked for."""

    NOISE = "noise"
    REPEATED_NOISE = "repeated noise"
    SENSITIVITY = "sensitivity"
    SAMPLING = "sampling"


@dataclass
class GradientCanaries:
    """Watches one fit of the records followed by the canaries that are included.

    Args:
        records: inputs and labels of the real records.
        canaries: features of all m canaries [m, width].
        labels: labels of all m canaries [m].
        included: bool [m].
        stated: noise and clip of each step.

    Attributes:
        score: float64 [m], the statistic of each canary's guess.
        steps: number of noisy sums seen; 0 if a mechanism shows none.
    """

    records: tuple[Inputs, Tensor]
    canaries: Tensor
    labels: Tensor
    included: Tensor
    stated: Sequence[NoiseSegment]
    sampling_prob: float
    score: Tensor = field(init=False)
    steps: int = 0
    _noise_p: list[float] = field(default_factory=list)
    _noise: list[Tensor] = field(default_factory=list)
    _largest: float = 0.0
    _taken: list[Tensor] = field(default_factory=list)
    _closed: bool = False

    def __post_init__(self) -> None:
        self.score = torch.zeros(len(self.included), dtype=torch.float64)
        self._short = torch.zeros(len(self.included), dtype=torch.bool)

    @staticmethod
    def toss(
        records: tuple[Inputs, Tensor],
        event: DpSgdEvent,
        *,
        classes: int,
        canaries: int,
        generator: torch.Generator,
    ) -> GradientCanaries:
        """Creates orthogonal canaries with random labels and fair coins, at most half as many as
        there are features.

        A model that reads tokens gets no canaries, so only its noise is tested.
        """
        inputs, number, features = records[0], 0, torch.zeros(0, 0)
        if isinstance(inputs, FeatureInputs):
            width = inputs.features.shape[1]
            number = min(canaries, width // 2, _NUMBERS // (classes * (width + 1)))
            axes = torch.linalg.qr(
                torch.randn(width, number, generator=generator, dtype=torch.float64)
            )[0].T
            features = (
                axes * max(_LENGTH, 3 * float(inputs.features.norm(dim=1).median()))
            ).float()
        labels = torch.randint(classes, (number,), generator=generator)
        included = torch.rand(number, generator=generator) < 0.5
        segment_of_step = [segment for segment in event.segments for _ in range(segment.steps)]
        return GradientCanaries(
            records, features, labels, included, segment_of_step, event.sampling_prob
        )

    @property
    def fitted(self) -> tuple[Inputs, Tensor]:
        """Inputs and labels of the fit: the real records, followed by the included canaries."""
        inputs, labels = self.records
        if not isinstance(inputs, FeatureInputs) or not len(self.labels):
            return self.records
        features = FeatureInputs(self.canaries[self.included])
        return joined([inputs, features]), torch.cat([labels, self.labels[self.included]])

    def begin(self, sum_over: SumOver) -> None:
        """Called at the start of a phase with the function that sums records."""
        self._others = sum_over(*self.records, None)
        rows = (
            zip(self.canaries.split(1), self.labels.split(1), strict=True)
            if len(self.labels)
            else ()
        )
        self._alone = [sum_over(FeatureInputs(features), label, 1.0) for features, label in rows]

    def before(
        self, total: Tensor, theta: Tensor, *, step: int, segment: NoiseSegment, unit: float
    ) -> None:
        """Called with a step's sum before its noise, float64 of theta's shape, in multiples of
        `unit`.
        """
        scale = unit / self.stated[self.steps].l2_clip_norm

        def summed(clipped_sum: ClippedSum) -> Tensor:
            out = torch.zeros_like(total)
            clipped_sum(theta, step, segment, out, torch.zeros(3, device=theta.device))
            return out.flatten().cpu() * scale

        self._total = total.flatten().cpu() * scale
        if not self._alone:
            return
        self._rest = self._total - summed(self._others)
        gradients = torch.stack([summed(part).float() for part in self._alone])
        self._lengths = gradients.norm(dim=1).double()
        self._directions = gradients / self._lengths.float().clamp(min=_SHORT)[:, None]
        gram = (self._directions @ self._directions.T).double()
        gram.diagonal().fill_(1.0)
        # canaries are not judged in a phase with too few parameters for all of them, or with nearly
        # parallel canary gradients
        self._closed = float(torch.linalg.eigvalsh(gram)[0]) > _INDEPENDENT
        if not self._closed:
            return
        self._factor = torch.linalg.cholesky(gram)
        seen = (self._directions @ self._rest.float()).double()
        added = torch.cholesky_solve(seen[:, None], self._factor)[:, 0]
        self._largest = max(self._largest, float(added.abs().max()), float(self._lengths.max()))
        self._short |= self._lengths < _SHORT
        self._taken.append(added > self._lengths / 2)

    def after(self, noisy: Tensor) -> None:
        """Called with the same sum after its noise was added, in units of 1."""
        segment, prob = self.stated[self.steps], self.sampling_prob
        self.steps += 1
        sigma, seen = segment.noise_multiplier, noisy.flatten().cpu() / segment.l2_clip_norm
        noise = seen - self._total
        self._test_noise((noise / sigma).numpy())
        if not self._alone or not self._closed:
            return
        seen = (self._directions @ (self._rest + noise).float()).double()
        whitened = torch.linalg.solve_triangular(self._factor, seen[:, None], upper=False)[:, 0]
        likely = (
            prob * self.included * self._lengths
        )  # expected contribution of the other canaries, which the attacker knows
        reach = self._factor.diagonal() * self._lengths
        whitened -= self._factor.T @ likely - self._factor.diagonal() * likely
        self.score += reach * (whitened - prob * reach / 2) / sigma**2

    def _test_noise(self, noise: np.ndarray) -> None:
        n = len(noise)
        below = float(stats.chi2.cdf(float(noise @ noise), n))
        p_values = [
            2 * min(below, 1 - below),
            2 * float(stats.norm.sf(abs(noise.sum()) / math.sqrt(n))),
        ]
        if n > 2:
            p_values.append(
                2 * float(stats.norm.sf(abs(noise[1:] @ noise[:-1]) / math.sqrt(n - 1)))
            )
        self._noise_p += p_values
        self._noise.append(torch.from_numpy(noise[:_COORDINATES].copy()))

    def right(self) -> int:
        """Number of coins that the sums guess correctly."""
        return int(((self.score > 0) == self.included).sum())

    def checks(self) -> dict[Check, float]:
        """P-value of each check that this fit allows, corrected for the number of its tests
        (Bonferroni).
        """
        prob, steps = self.sampling_prob, len(self._taken)
        least = {Check.NOISE: _least(self._noise_p)}
        if self.steps > 1:
            least[Check.REPEATED_NOISE] = self._repeated()
        if not steps:
            return least
        least[Check.SENSITIVITY] = float(self._largest <= 1 + _ROUNDING)
        members = self.included & ~self._short
        taken = torch.stack(self._taken)[:, members].sum(0).double().numpy()
        if prob == 1:
            least[Check.SAMPLING] = float((taken == steps).all())
        elif len(taken):
            expected = steps * prob
            below = float(
                stats.chi2.cdf(
                    ((taken - expected) ** 2).sum() / (expected * (1 - prob)), len(taken)
                )
            )
            total = float(stats.binomtest(int(taken.sum()), steps * len(taken), prob).pvalue)
            least[Check.SAMPLING] = _least([total, 2 * min(below, 1 - below)])
        return least

    def _repeated(self) -> float:
        """Tests the correlation of noise between any two steps of the same length.

        The square of the correlation of two independent Gaussian vectors of n coordinates is
        distributed as Beta(1/2, (n - 1)/2).
        """
        p_values = [1.0]
        for length in {len(noise) for noise in self._noise} - {1}:
            noise = torch.stack([noise for noise in self._noise if len(noise) == length])
            unit = nn.functional.normalize(noise, dim=1)
            between = (unit @ unit.T).numpy()[np.triu_indices(len(noise), 1)]
            squares = np.minimum(between**2, 1.0)
            p_values += stats.beta.sf(squares, 0.5, (length - 1) / 2).tolist()
        return _least(p_values)


def _least(p_values: list[float]) -> float:
    return min(1.0, min(p_values) * len(p_values))
