"""Noise and clip schedules of DP-SGD: how the noise multiplier and the clip move through training.

A schedule fixes ratios only. Its one free number, the noise multiplier of the **last** step, is what
`mechanisms.privacy.gaussian_cost.calibrate` solves for, so that the whole schedule meets its target epsilon.

| schedule      | noise multiplier                  | clip                   | source                             |
|---------------|-----------------------------------|------------------------|------------------------------------|
| `constant`    | stays                             | stays                  | Abadi et al. 2016                  |
| `sad`         | grows: sigma_i = beta sigma_{i+1} | falls: C_i = a C_{i+1} | Huang and Xie, algorithm 1         |
| `auto-step`   | falls by a factor, phases alike   | stays                  | Auto-DPSGD-S there; arXiv 2312.02400 |
| `auto-linear` | falls linearly, phase by phase    | stays                  | Auto-DPSGD-L there                 |

Auto-DPSGD also takes its clip from the norms of the current gradients. That reads the records without protection and
no accountant here supports it, so the clip stays where it is set.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from mechanisms.errors import MechanismError
from mechanisms.privacy.events import NoiseSegment


@dataclass(frozen=True)
class Phase:
    """Consecutive steps with their noise multiplier and clip, each relative to the last phase's."""

    steps: int
    noise_ratio: float
    clip_ratio: float


class ConstantSchedule(BaseModel, frozen=True, extra="forbid", title="Constant"):
    """The same noise and clip at every step."""

    kind: Literal["constant"] = "constant"

    def phases(self, steps: int) -> tuple[Phase, ...]:
        return (Phase(steps=steps, noise_ratio=1.0, clip_ratio=1.0),)


class SadSchedule(BaseModel, frozen=True, extra="forbid", title="SAD-DPSGD"):
    """SAD-DPSGD: early phases are shorter, quieter and clip less.

    Phase lengths D_{i-1} = gamma D_i, noise sigma_i = beta sigma_{i+1}, clip C_i = a C_{i+1}. The paper's beta, gamma
    and number of phases are the defaults; it does not say its a. Ours, 1/beta, holds sigma_i C_i, the noise's standard
    deviation, where it is and lets early gradients through with less clipping.
    """

    kind: Literal["sad"] = "sad"
    number_of_phases: int = Field(default=3, ge=1, le=100, title="Phases n")
    length_decay: float = Field(default=0.9, gt=0, le=1, title="Length ratio gamma")
    noise_decay: float = Field(default=0.8, gt=0, le=1, title="Noise ratio beta")
    clip_growth: float = Field(default=1.25, ge=1, le=10, title="Clip ratio a")

    def phases(self, steps: int) -> tuple[Phase, ...]:
        """The phases, lengths rounded to whole steps that add up to `steps`."""
        n = self.number_of_phases
        lengths = _split(steps, [self.length_decay ** (n - 1 - i) for i in range(n)], what="sad")
        left = range(n - 1, -1, -1)
        return tuple(
            Phase(length, self.noise_decay**k, self.clip_growth**k) for length, k in zip(lengths, left, strict=True)
        )


class AutoStepSchedule(BaseModel, frozen=True, extra="forbid", title="Auto-DPSGD-S"):
    """Auto-DPSGD-S: phases of equal length; the noise starts high and is multiplied by `noise_decay` at each."""

    kind: Literal["auto-step"] = "auto-step"
    number_of_phases: int = Field(default=3, ge=1, le=100, title="Phases")
    noise_decay: float = Field(
        default=0.8, gt=0, le=1, title="Noise ratio", description="Each phase to the one before."
    )

    def phases(self, steps: int) -> tuple[Phase, ...]:
        """The phases; the last has noise ratio 1, the first noise_decay^-(n-1)."""
        n = self.number_of_phases
        lengths = _split(steps, [1.0] * n, what="auto-step")
        return tuple(Phase(length, self.noise_decay ** (i + 1 - n), 1.0) for i, length in enumerate(lengths))


class AutoLinearSchedule(BaseModel, frozen=True, extra="forbid", title="Auto-DPSGD-L"):
    """Auto-DPSGD-L: the noise falls by the same amount from phase to phase (the paper's phases are epochs)."""

    kind: Literal["auto-linear"] = "auto-linear"
    number_of_phases: int = Field(default=30, ge=2, le=1000, title="Phases")
    final_ratio: float = Field(
        default=0.64, gt=0, le=1, title="Last to first", description="Noise of the last phase over that of the first."
    )

    def phases(self, steps: int) -> tuple[Phase, ...]:
        """The phases; the last has noise ratio 1, the first 1 / final_ratio."""
        n, first = self.number_of_phases, 1 / self.final_ratio
        lengths = _split(steps, [1.0] * n, what="auto-linear")
        return tuple(Phase(length, first + (1 - first) * i / (n - 1), 1.0) for i, length in enumerate(lengths))


Schedule = Annotated[
    ConstantSchedule | SadSchedule | AutoStepSchedule | AutoLinearSchedule, Field(discriminator="kind")
]


def segments(
    schedule: Schedule, *, steps: int, final_noise_multiplier: float, final_l2_clip_norm: float
) -> tuple[NoiseSegment, ...]:
    """Returns the schedule as it will run; refuses fewer steps than phases."""
    return tuple(
        NoiseSegment(
            steps=phase.steps,
            noise_multiplier=phase.noise_ratio * final_noise_multiplier,
            l2_clip_norm=phase.clip_ratio * final_l2_clip_norm,
        )
        for phase in schedule.phases(steps)
    )


def _split(steps: int, shares: list[float], *, what: str) -> list[int]:
    """Whole lengths in proportion to `shares` that add up to `steps`, each at least 1: rounded cumulative sums."""
    if steps < len(shares):
        raise MechanismError(f"schedule {what}: {len(shares)} phases need at least as many steps, there are {steps}")
    total, ends, so_far = sum(shares), [0], 0.0
    for i, share in enumerate(shares):
        so_far += share
        left = len(shares) - 1 - i
        ends.append(min(max(round(steps * so_far / total), ends[-1] + 1), steps - left))
    return [end - start for start, end in pairwise(ends)]
