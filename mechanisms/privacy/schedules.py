"""Noise and clip schedules of DP-SGD: how the noise multiplier and the clip change during training.

A schedule fixes only ratios. Its one free number, the noise multiplier of the **last** step, is
solved by `mechanisms.privacy.gaussian_cost.calibrate`, so that the whole schedule meets its target
epsilon.

| schedule      | noise multiplier                  | clip                   | source             |
|---------------|-----------------------------------|------------------------|--------------------|
| `constant`    | constant                          | constant               | Abadi et al. 2016  |
| `sad`         | grows: sigma_i = beta sigma_{i+1} | falls: C_i = a C_{i+1} | Huang, Xie, alg. 1 |
| `auto-step`   | falls by a factor per phase       | constant               | Auto-DPSGD-S       |
| `auto-linear` | falls linearly, phase by phase    | constant               | Auto-DPSGD-L       |

Auto-DPSGD is arXiv 2312.02400. It also derives its clip from the norms of the current gradients.
That reads the records without protection and no accountant here supports it, so the clip is
constant.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from mechanisms.errors import MechanismError
from mechanisms.privacy.events import NoiseSegment

Ratios = list[tuple[float, float, float]]
"""For each phase: its relative length, and its noise multiplier and clip relative to the last
phase.
"""


class ConstantSchedule(BaseModel, frozen=True, extra="forbid", title="Constant"):
    """The same noise and clip at every step."""

    kind: Literal["constant"] = "constant"

    def ratios(self) -> Ratios:
        return [(1.0, 1.0, 1.0)]


class SadSchedule(BaseModel, frozen=True, extra="forbid", title="SAD-DPSGD"):
    """SAD-DPSGD: early phases are shorter, have less noise, and clip less.

    Phase lengths D_{i-1} = gamma D_i, noise sigma_i = beta sigma_{i+1}, clip C_i = a C_{i+1}. The
    defaults are the paper's beta, gamma and number of phases. The paper does not report its a. The
    default here, 1/beta, keeps sigma_i C_i, the standard deviation of the noise, constant and clips
    early gradients less.
    """

    kind: Literal["sad"] = "sad"
    number_of_phases: int = Field(default=3, ge=1, le=100, title="Phases n")
    length_decay: float = Field(default=0.9, gt=0, le=1, title="Length ratio gamma")
    noise_decay: float = Field(default=0.8, gt=0, le=1, title="Noise ratio beta")
    clip_growth: float = Field(default=1.25, ge=1, le=10, title="Clip ratio a")

    def ratios(self) -> Ratios:
        phases = range(self.number_of_phases - 1, -1, -1)
        return [(self.length_decay**k, self.noise_decay**k, self.clip_growth**k) for k in phases]


class AutoStepSchedule(BaseModel, frozen=True, extra="forbid", title="Auto-DPSGD-S"):
    """Auto-DPSGD-S: phases of equal length. The noise starts high and is multiplied by
    `noise_decay` in each phase.
    """

    kind: Literal["auto-step"] = "auto-step"
    number_of_phases: int = Field(default=3, ge=1, le=100, title="Phases")
    noise_decay: float = Field(
        default=0.8,
        gt=0,
        le=1,
        title="Noise ratio",
        description="Noise of each phase divided by that of the previous phase.",
    )

    def ratios(self) -> Ratios:
        return [(1.0, self.noise_decay**-k, 1.0) for k in range(self.number_of_phases - 1, -1, -1)]


class AutoLinearSchedule(BaseModel, frozen=True, extra="forbid", title="Auto-DPSGD-L"):
    """Auto-DPSGD-L: the noise falls by the same amount from phase to phase (the paper's phases are
    epochs).
    """

    kind: Literal["auto-linear"] = "auto-linear"
    number_of_phases: int = Field(default=30, ge=2, le=1000, title="Phases")
    final_ratio: float = Field(
        default=0.64,
        gt=0,
        le=1,
        title="Last to first",
        description="Noise of the last phase divided by that of the first.",
    )

    def ratios(self) -> Ratios:
        n, first = self.number_of_phases, 1 / self.final_ratio
        return [(1.0, first + (1 - first) * i / (n - 1), 1.0) for i in range(n)]


Schedule = Annotated[
    ConstantSchedule | SadSchedule | AutoStepSchedule | AutoLinearSchedule,
    Field(discriminator="kind"),
]


def segments(
    schedule: Schedule, *, steps: int, final_noise_multiplier: float, final_l2_clip_norm: float
) -> tuple[NoiseSegment, ...]:
    """The schedule as it will run; refuses fewer steps than phases.

    Lengths are differences of rounded cumulative sums, so they add up to all steps; each is at
    least 1.
    """
    ratios = schedule.ratios()
    if steps < len(ratios):
        raise MechanismError(
            f"schedule {schedule.kind}: {len(ratios)} phases need at least as many steps, there "
            f"are {steps}",
            kind="too-few-steps",
        )
    total, ends, before = sum(length for length, _, _ in ratios), [0], 0.0
    for number, (length, _, _) in enumerate(ratios, start=1):
        before += length
        ends.append(
            min(max(round(steps * before / total), ends[-1] + 1), steps - len(ratios) + number)
        )
    return tuple(
        NoiseSegment(
            steps=end - start,
            noise_multiplier=noise * final_noise_multiplier,
            l2_clip_norm=clip * final_l2_clip_norm,
        )
        for (start, end), (_, noise, clip) in zip(pairwise(ends), ratios, strict=True)
    )
