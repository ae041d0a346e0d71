"""Class weights from private counts, and what they cost."""

import math

import pytest
import torch
from pydantic import ValidationError
from small_heads import KEY, scale_p_value

from mechanisms.dp_sgd import DpSgd
from mechanisms.mechanism import Task
from mechanisms.privacy import class_counts, gaussian_cost
from mechanisms.privacy.class_counts import ClassWeightsConfig
from mechanisms.privacy.events import ComposedEvent, descent_of
from mechanisms.privacy.noise import SecretStream


def test_weights_by_hand() -> None:
    """For counts 10, 20, 40 the inverses go 4 : 2 : 1 (Rosenblatt et al., section 4.2; here the
    largest is 1).
    """
    counts = torch.tensor([10.0, 20.0, 40.0])
    by_max = class_counts.class_weights(counts, ClassWeightsConfig(smallest_count=1))
    assert by_max.tolist() == pytest.approx([1, 1 / 2, 1 / 4])
    tempered = class_counts.class_weights(counts, ClassWeightsConfig(power=0.5, smallest_count=1))
    assert tempered.tolist() == pytest.approx([1, 2**-0.5, 1 / 2])


def test_weights_never_exceed_one() -> None:
    """Negative and zero noisy counts are raised first: whatever the noise, weights
    are in (0, 1].
    """
    noisy = torch.tensor([-30.0, 0.0, 3.0, 500.0])
    weights = class_counts.class_weights(noisy, ClassWeightsConfig())
    assert bool(((weights > 0) & (weights <= 1)).all())


@pytest.mark.parametrize(("factor", "accepted"), [(1.0, True), (2 / 3, False), (1.5, False)])
def test_noise_on_the_counts(factor: float, accepted: bool) -> None:
    """Chi-square test at level 1e-6 on 3,000 empty classes: the stated noise passes, 2/3 and 3/2 of
    it do not.
    """
    labels = torch.zeros(7, dtype=torch.int64)
    event = ClassWeightsConfig(noise_multiplier=4.0).event
    noisy = class_counts.noisy_counts(labels, 3001, event=event, stream=SecretStream(KEY))
    assert (scale_p_value(noisy[1:], std=4.0 * factor) > 1e-6) == accepted


def test_one_record_moves_the_histogram_by_the_sensitivity() -> None:
    """With the same noise, leaving a record out moves the released vector by l2 norm 1, the stated
    sensitivity.
    """

    def counts(labels: list[int]) -> torch.Tensor:
        event = ClassWeightsConfig(noise_multiplier=2.0).event
        return class_counts.noisy_counts(
            torch.tensor(labels), 5, event=event, stream=SecretStream(KEY)
        )

    moved = float((counts([0, 1, 1, 4]) - counts([0, 1, 4])).norm())
    assert moved == pytest.approx(class_counts.L2_SENSITIVITY, abs=1e-5)


def test_the_counts_are_paid_for() -> None:
    """With class weights the event holds the release, the steps get more noise, and the whole meets
    the target.
    """
    task = Task(records=640, classes=5, target_epsilon=4.0)
    plain = DpSgd(batch_size=64).plan(task)
    weighted = DpSgd(batch_size=64, class_weights=ClassWeightsConfig(noise_multiplier=3.0)).plan(
        task
    )
    assert isinstance(weighted.event, ComposedEvent)
    assert weighted.event.events[0].mechanism == "gaussian-release"
    noisier, quieter = (
        descent_of(plan.event).segments[0].noise_multiplier for plan in (weighted, plain)
    )
    assert noisier > quieter
    epsilon = gaussian_cost.epsilon_of_event(weighted.event, delta=1e-4)
    assert 4 * 0.995 <= epsilon <= 4
    assert gaussian_cost.epsilon_of_event(descent_of(weighted.event), delta=1e-4) < 4 * 0.995


def test_bad_settings_are_refused_by_name() -> None:
    for bad in (
        {"noise_multiplier": 0},
        {"noise_multiplier": math.inf},
        {"smallest_count": 0},
        {"power": 2},
    ):
        with pytest.raises(ValidationError, match=next(iter(bad))):
            ClassWeightsConfig.model_validate(bad)
