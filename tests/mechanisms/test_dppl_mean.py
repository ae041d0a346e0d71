"""DPPL-Mean: what one record moves, the noise of its one release, and that it tells classes apart."""

from __future__ import annotations

import pytest
import torch
from small_heads import KEY, head_of, noisy_sums, scale_p_value
from torch import Tensor, nn

from mechanisms.dppl_mean import DpplMean, class_sums
from mechanisms.mechanism import Plan, Records, Run, Task
from mechanisms.model.fields import Fields
from mechanisms.model.inputs import FeatureInputs
from mechanisms.privacy.events import GaussianReleaseEvent

WIDTH, CLASSES = 8, 3


def problem(n: int, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    return torch.eye(CLASSES, WIDTH)[labels] + 0.4 * torch.randn(n, WIDTH, generator=g), labels


def planned(epsilon: float, n: int) -> Plan:
    return DpplMean().plan(Task(records=n, classes=CLASSES, target_epsilon=epsilon, delta=1e-5))


def accuracy(epsilon: float) -> float:
    features, labels = problem(900)
    run = Run(classes=CLASSES, seed=0, classifier=lambda: head_of(nn.Linear(WIDTH, CLASSES)), key=KEY)
    fitted = planned(epsilon, 900).fit(Records(FeatureInputs(features), labels), run)
    test, truth = problem(600, seed=9)
    return float((fitted.model.log_probabilities(FeatureInputs(test)).argmax(1) == truth).double().mean())


def test_a_record_moves_the_sums_by_one_however_long_it_is() -> None:
    """On every neighbour of 60 records; and the bound binds."""
    features, labels = problem(60)
    features *= torch.logspace(-3, 3, 60)[:, None]
    whole = class_sums(features, labels, fields=Fields((CLASSES,)))
    moves = []
    for i in range(60):
        kept = torch.arange(60) != i
        moves.append(float((whole - class_sums(features[kept], labels[kept], fields=Fields((CLASSES,)))).norm()))
    assert max(moves) <= 1 + 1e-5
    assert min(moves) > 0.999


@pytest.mark.parametrize(("factor", "accepted"), [(1.0, True), (0.5, False), (2 / 3, False), (1.5, False)])
def test_the_noise_is_the_events(factor: float, accepted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chi-square over 24,000 coordinates at level 1e-6: the event's standard deviation passes, half of it does not."""
    seen = noisy_sums(monkeypatch)
    plan = planned(2.0, 60)
    run = Run(classes=CLASSES, seed=0, classifier=lambda: head_of(nn.Linear(8000, CLASSES)), key=KEY)
    plan.fit(Records(FeatureInputs(torch.ones(60, 8000)), torch.arange(60) % CLASSES), run)
    assert isinstance(plan.event, GaussianReleaseEvent)
    ((_, noise, _),) = (release for releases in seen.values() for release in releases)  # one release and no other
    assert (scale_p_value(noise, std=factor * plan.event.noise_multiplier) > 1e-6) == accepted


def test_it_learns_at_epsilon_4_and_not_at_epsilon_one_thousandth() -> None:
    """At 0.001 the noise must show, or it is not there."""
    assert accuracy(4.0) > 0.9
    assert accuracy(0.001) < 0.7
