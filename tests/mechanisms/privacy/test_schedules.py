"""Schedules against values worked by hand from the papers' recurrences, and calibrated ones against their target."""

from __future__ import annotations

import math

import pytest

from mechanisms.errors import MechanismError
from mechanisms.privacy import gaussian_cost, schedules
from mechanisms.privacy.events import DpSgdEvent
from mechanisms.privacy.schedules import AutoLinearSchedule, AutoStepSchedule, ConstantSchedule, SadSchedule

ALL = (ConstantSchedule(), SadSchedule(), AutoStepSchedule(), AutoLinearSchedule())
_BY_KIND = [s.kind for s in ALL]


def test_sad_by_hand() -> None:
    """Huang and Xie, algorithm 1, n 3, gamma 0.9, beta 0.8, a 1.25, T 271: D = 81, 90, 100 (0.9 * 90 = 81)."""
    runs = schedules.segments(SadSchedule(), steps=271, final_noise_multiplier=2.0, final_l2_clip_norm=0.4)
    assert [s.steps for s in runs] == [81, 90, 100]
    assert [s.noise_multiplier for s in runs] == pytest.approx([1.28, 1.6, 2.0])
    assert [s.l2_clip_norm for s in runs] == pytest.approx([0.625, 0.5, 0.4])


def test_sad_early_phases_are_short_quiet_and_wide() -> None:
    """For gamma = 0.2 the first of three phases is 0.04 / 1.24 of the steps; noise grows, the clip falls."""
    runs = schedules.segments(
        SadSchedule(length_decay=0.2), steps=1240, final_noise_multiplier=1.0, final_l2_clip_norm=1.0
    )
    assert [s.steps for s in runs] == [40, 200, 1000]
    assert runs[0].noise_multiplier < runs[1].noise_multiplier < runs[2].noise_multiplier
    assert runs[0].l2_clip_norm > runs[1].l2_clip_norm > runs[2].l2_clip_norm


def test_auto_step_by_hand() -> None:
    """Three equal phases, each 0.8 of the one before: 1/0.64, 1/0.8, 1 times the last; the clip stays."""
    runs = schedules.segments(AutoStepSchedule(), steps=30, final_noise_multiplier=1.6, final_l2_clip_norm=1.0)
    assert [s.steps for s in runs] == [10, 10, 10]
    assert [s.noise_multiplier for s in runs] == pytest.approx([2.5, 2.0, 1.6])
    assert {s.l2_clip_norm for s in runs} == {1.0}


def test_auto_linear_by_hand() -> None:
    """Four phases from 2 to 1 times the last: 2, 5/3, 4/3, 1."""
    schedule = AutoLinearSchedule(number_of_phases=4, final_ratio=0.5)
    runs = schedules.segments(schedule, steps=8, final_noise_multiplier=3.0, final_l2_clip_norm=1.0)
    assert [s.steps for s in runs] == [2, 2, 2, 2]
    assert [s.noise_multiplier for s in runs] == pytest.approx([6.0, 5.0, 4.0, 3.0])


@pytest.mark.parametrize("schedule", ALL, ids=_BY_KIND)
@pytest.mark.parametrize("steps", [30, 31, 97, 313])
def test_lengths_add_up(schedule: schedules.Schedule, steps: int) -> None:
    """Whatever the rounding, no step is lost and no phase is empty; the last phase has the ratios 1."""
    phases = schedule.phases(steps)
    assert sum(p.steps for p in phases) == steps
    assert min(p.steps for p in phases) >= 1
    assert (phases[-1].noise_ratio, phases[-1].clip_ratio) == (1.0, 1.0)


def test_more_phases_than_steps_are_refused() -> None:
    """A phase of no steps would make another schedule than the one named."""
    with pytest.raises(MechanismError, match="sad: 3 phases need at least as many steps, there are 2"):
        SadSchedule().phases(2)


@pytest.mark.parametrize(
    "schedule", [*ALL[:3], AutoLinearSchedule(number_of_phases=5)], ids=[*_BY_KIND[:3], "auto-linear"]
)
def test_solved_noise_meets_the_target(schedule: schedules.Schedule) -> None:
    """The last multiplier is solved so that the whole schedule costs epsilon 3: at most 3, and within 0.5 %.

    The wrong answer is rejected: with one phase's noise taken for all, the cost is off by more than that.
    """

    def event(noise: float) -> DpSgdEvent:
        runs = schedules.segments(schedule, steps=60, final_noise_multiplier=noise, final_l2_clip_norm=1.0)
        return DpSgdEvent(sampling_prob=0.1, segments=runs)

    noise = gaussian_cost.calibrate(event, target_epsilon=3.0, delta=1e-3)
    epsilon = gaussian_cost.pld_epsilon(event(noise), delta=1e-3)
    assert 3.0 * 0.995 <= epsilon <= 3.0
    constant = DpSgdEvent(
        sampling_prob=0.1,
        segments=schedules.segments(ConstantSchedule(), steps=60, final_noise_multiplier=noise, final_l2_clip_norm=1.0),
    )
    off = abs(gaussian_cost.pld_epsilon(constant, delta=1e-3) / 3.0 - 1)
    assert (off > 0.05) == (schedule.kind != "constant")


def test_clips_cost_nothing() -> None:
    """Noise is scaled by the clip, so a schedule of clips alone leaves epsilon where it is."""
    runs = schedules.segments(
        SadSchedule(noise_decay=1.0, clip_growth=3.0), steps=60, final_noise_multiplier=1.5, final_l2_clip_norm=1.0
    )
    still = schedules.segments(ConstantSchedule(), steps=60, final_noise_multiplier=1.5, final_l2_clip_norm=1.0)
    moving = gaussian_cost.pld_epsilon(DpSgdEvent(sampling_prob=0.1, segments=runs), delta=1e-3)
    assert math.isclose(
        moving, gaussian_cost.pld_epsilon(DpSgdEvent(sampling_prob=0.1, segments=still), delta=1e-3), rel_tol=1e-3
    )
