"""A formal posterior knows its own plans, whatever the last bit of a width, and no others."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mechanisms.formal_posterior import FormalPosterior, _event
from mechanisms.mechanism import Task

TASK = Task(records=100, classes=3)


def test_a_plan_is_known_again_at_any_noise() -> None:
    """At hundreds of multipliers, of which some do not survive a root taken and squared; another setting is refused."""
    config, other = FormalPosterior(), FormalPosterior(release_share=0.31)
    events = [_event(config, 1, float(noise)) for noise in np.geomspace(0.1, 50, 400)]
    root = math.sqrt(config.release_share)
    assert any(event != _event(config, 1, event.release.noise_multiplier * root) for event in events)
    assert all(config.makes(event, TASK) for event in events)
    assert not any(other.makes(event, TASK) for event in events)
    assert not any(config.makes(event, TASK.model_copy(update={"fields": (2, 1)})) for event in events)


@pytest.mark.parametrize("factor", [1 + 1e-9, 0.5, 2.0])
def test_no_float_of_a_plan_can_be_moved(factor: float) -> None:
    """A wider prior, or less noise on the release, with the other left as it was."""
    config = FormalPosterior()
    event = _event(config, 1, 3.0)
    assert not config.makes(event.model_copy(update={"prior_std": event.prior_std * factor}), TASK)
    release = event.release.model_copy(update={"noise_multiplier": event.release.noise_multiplier * factor})
    assert not config.makes(event.model_copy(update={"release": release}), TASK)
