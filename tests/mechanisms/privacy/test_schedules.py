"""Schedules against values worked manually from the papers' recurrences, and calibrated ones
against their target.
"""

import math

import pytest
from refusals import of_kind

from mechanisms.errors import MechanismError
from mechanisms.privacy import gaussian_cost, schedules
from mechanisms.privacy.events import DpSgdEvent
from mechanisms.privacy.schedules import (
    AutoLinearSchedule,
    AutoStepSchedule,
    ConstantSchedule,
    SadSchedule,
)

ALL = (ConstantSchedule(), SadSchedule(), AutoStepSchedule(), AutoLinearSchedule())
_BY_KIND = [s.kind for s in ALL]


@pytest.mark.parametrize(
    ("schedule", "lengths", "noise", "clips"),
    [
        # Huang and Xie, algorithm 1, n 3, gamma 0.9, beta 0.8, a 1.25: D = 81, 90, 100 (0.9 * 90 =
        # 81)
        (SadSchedule(), [81, 90, 100], [0.64, 0.8, 1], [1.5625, 1.25, 1]),
        # gamma 0.2: the first of three phases is 0.04 / 1.24 of the steps; early ones short, quiet
        # and wide
        (SadSchedule(length_decay=0.2), [40, 200, 1000], [0.64, 0.8, 1], [1.5625, 1.25, 1]),
        # equal phases, each 0.8 of the one before; the clip stays
        (AutoStepSchedule(), [10, 10, 10], [1 / 0.64, 1 / 0.8, 1], [1, 1, 1]),
        # four phases from 2 to 1 times the last
        (
            AutoLinearSchedule(number_of_phases=4, final_ratio=0.5),
            [2] * 4,
            [2, 5 / 3, 4 / 3, 1],
            [1] * 4,
        ),
    ],
)
def test_by_hand(
    schedule: schedules.Schedule, lengths: list[int], noise: list[float], clips: list[float]
) -> None:
    """Lengths in steps; noise multipliers and clips as multiples of the last phase's, here 2 and
    0.4.
    """
    runs = schedules.segments(
        schedule, steps=sum(lengths), final_noise_multiplier=2.0, final_l2_clip_norm=0.4
    )
    assert [s.steps for s in runs] == lengths
    assert [s.noise_multiplier / 2.0 for s in runs] == pytest.approx(noise)
    assert [s.l2_clip_norm / 0.4 for s in runs] == pytest.approx(clips)


@pytest.mark.parametrize("schedule", ALL, ids=_BY_KIND)
@pytest.mark.parametrize("steps", [30, 31, 97, 313])
def test_lengths_add_up(schedule: schedules.Schedule, steps: int) -> None:
    """Whatever the rounding, no step is lost and no phase is empty; the last phase has the ratios
    1.
    """
    phases = schedules.segments(
        schedule, steps=steps, final_noise_multiplier=2.0, final_l2_clip_norm=0.4
    )
    assert sum(p.steps for p in phases) == steps
    assert min(p.steps for p in phases) >= 1
    assert (phases[-1].noise_multiplier, phases[-1].l2_clip_norm) == (2.0, 0.4)


def event(schedule: schedules.Schedule, noise: float) -> DpSgdEvent:
    runs = schedules.segments(
        schedule, steps=60, final_noise_multiplier=noise, final_l2_clip_norm=1.0
    )
    return DpSgdEvent(sampling_prob=0.1, segments=runs)


def epsilon(schedule: schedules.Schedule, noise: float) -> float:
    return gaussian_cost.epsilon_of_event(event(schedule, noise), delta=1e-3)


def test_more_phases_than_steps_are_refused() -> None:
    """A phase of no steps would make another schedule than the one named."""
    with pytest.raises(MechanismError, check=of_kind("too-few-steps"), match=r"sad: 3.*\b2\b"):
        schedules.segments(
            SadSchedule(), steps=2, final_noise_multiplier=1.0, final_l2_clip_norm=1.0
        )


@pytest.mark.parametrize(
    "schedule",
    [*ALL[:3], AutoLinearSchedule(number_of_phases=3)],
    ids=[*_BY_KIND[:3], "auto-linear"],
)
def test_solved_noise_meets_the_target(schedule: schedules.Schedule) -> None:
    """The last multiplier is solved so that the whole schedule costs epsilon 1: at most 1, and
    within 0.5 %. The wrong answer is rejected: with one phase's noise taken for all, the cost is
    off by more than that.
    """

    noise = gaussian_cost.calibrate(
        lambda noise: event(schedule, noise), target_epsilon=1.0, delta=1e-3
    )
    assert 0.995 <= epsilon(schedule, noise) <= 1.0
    off = abs(epsilon(ConstantSchedule(), noise) - 1)
    assert (off > 0.05) == (schedule.kind != "constant")


def test_clips_cost_nothing() -> None:
    """Noise is scaled by the clip, so a schedule of clips leaves epsilon where it is."""
    clips = SadSchedule(noise_decay=1.0, clip_growth=3.0)
    assert math.isclose(epsilon(clips, 1.5), epsilon(ConstantSchedule(), 1.5), rel_tol=1e-3)
