"""Canaries that are gradients: the strongest attack on DP-SGD's own noise, by somebody who sees every noisy sum.

Canary i takes part by the toss of a coin. Where it does, every step that samples it adds a gradient along an axis of
its own, ten times as long as the clip, cut by the same rule as the records' (Nasr et al. 2023, arXiv 2302.07956;
Steinke et al. 2023, arXiv 2305.08846, "Dirac canaries"). The attacker knows axes and records,
sees the noisy sum x (in clips) of every step and guesses `in` where

    sum over steps of (x - q/2) / s^2 > 0

s the step's noise multiplier and q how often a record is sampled. The threshold lies half-way whatever the noise really
is; where every record is in every step, this is the likelihood ratio.

Axes are orthogonal and the claimed noise is independent along them, so if the event ran as stated the guesses are
independent and each is right with probability (1 + TV)/2 at most: a binomial test of the event, which a half of its
noise fails by far. What is audited is the descent: its clip rule, its sampling and its noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mechanisms.audit import curves
from mechanisms.privacy.events import DpSgdEvent, NoiseSegment
from mechanisms.privacy.noise import SecretStream

_LENGTH = 10.0
"""Norm of a canary's gradient before it is cut, in clips."""
SHARE = 4
"""Canaries are at most one in so many parameters: they must not be what is trained."""


@dataclass
class GradientCanaries:
    """Axes int64 [m], places in the flat gradient; included bool [m]; what one run showed of them.

    A descent of several phases has gradients of several lengths. In one too short for the axes the canaries have its
    first entries, as many of them as may; the others wait, which can only make guesses worse.

    seen float64 [m]: the sums above. steps: noisy sums looked at; 0 where a mechanism takes no canaries.
    """

    axes: Tensor
    included: Tensor
    steps: int = 0
    seen: Tensor = field(init=False)
    _clean: Tensor = field(init=False)
    _places: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.seen = torch.zeros(len(self.axes), dtype=torch.float64)

    @staticmethod
    def toss(*, parameters: int, canaries: int, generator: torch.Generator) -> GradientCanaries:
        """Axes at random among `parameters`, and a fair coin for each."""
        axes = torch.randperm(parameters, generator=generator)[: min(canaries, parameters)]
        return GradientCanaries(axes, torch.rand(len(axes), generator=generator) < 0.5)

    def insert(
        self,
        gradient: Tensor,
        *,
        factors: Callable[[Tensor], Tensor],
        clip: float,
        sampling_prob: float,
        stream: SecretStream,
        step: int,
        unit: float = 1.0,
    ) -> None:
        """Add the sampled canaries to the clipped sum, float [P], before its noise.

        Args:
            factors: what the run multiplies gradients of these norms by.
            unit: of the sum; below 1 it is a sum of integers, and what a canary adds is one too.
        """
        places = self._places = self._in(gradient)
        self._clean = gradient[places].double().cpu() * unit
        sampled = stream.poisson_sample(len(places), prob=sampling_prob, purpose="canary sample", step=step)
        taking = torch.zeros(len(places), dtype=torch.bool)
        taking[sampled] = True
        taking &= self.included[: len(places)]
        norms = torch.full((len(places),), _LENGTH * clip, device=gradient.device)
        added = norms * factors(norms) * taking.to(gradient.device)
        gradient[places] += (added if unit == 1 else (added.double() / unit).trunc()).to(gradient.dtype)

    def look(self, noisy: Tensor, *, segment: NoiseSegment, sampling_prob: float) -> None:
        """Adds the noisy sum's evidence, float [P], on each canary. The attacker knows the records' part."""
        observed = (noisy[self._places].double().cpu() - self._clean) / segment.l2_clip_norm
        self.steps += 1
        self.seen[: len(observed)] += (observed - sampling_prob / 2) / segment.noise_multiplier**2

    def _in(self, gradient: Tensor) -> Tensor:
        """Returns the places of canaries in a gradient of this length, the first ones first."""
        axes = self.axes
        if int(axes.max()) >= len(gradient):
            axes = torch.arange(min(len(axes), max(1, len(gradient) // SHARE)))
        return axes.to(gradient.device)

    def right(self) -> int:
        """Returns the number of coins that the sums guess."""
        return int(((self.seen > 0) == self.included).sum())


def noise_at_most(descent: DpSgdEvent, *, right: int, coins: int, alpha: float) -> float:
    """The multiple of the event's noise that so many right guesses exclude, at a false-alarm rate of alpha."""
    return curves.independent_noise_at_most(right=right, coins=coins, event=descent, alpha=alpha)
