"""Gradient canaries: they find half of the noise, or a clip that does not hold, and pass what ran as stated."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_heads import KEY, MakeLinear

from mechanisms import dp_sgd
from mechanisms.audit import curves, gradient_canaries
from mechanisms.audit.gradient_canaries import GradientCanaries
from mechanisms.dp_sgd import DpSgd
from mechanisms.mechanism import Mechanism, Plan, Records, Run, Task
from mechanisms.prior_descent import PriorDescent
from mechanisms.privacy.events import NoiseSegment, descent_of
from mechanisms.privacy.noise import SecretStream

DELTA, ALPHA = 1e-4, 1e-3
TASK = Task(records=60, classes=4, target_epsilon=4.0, delta=DELTA)
MECHANISMS: dict[str, Mechanism] = {
    "full batch": DpSgd(optimiser="sgd", learning_rate=1.0, epochs=10, sampling_prob=1.0),
    "sampled": DpSgd(learning_rate=0.01, epochs=10, batch_size=30),
    "prior descent": PriorDescent(align_steps=3, steps=8),
}


def audit(linear: MakeLinear, plan: Plan) -> GradientCanaries:
    """One fit of the plan with 800 canaries among 4,004 parameters."""
    head, inputs, labels = linear(60, width=1000)
    toss = torch.Generator().manual_seed(3)
    coins = GradientCanaries.toss(parameters=head.num_parameters, canaries=800, generator=toss)
    plan.fit(Records(inputs, labels), Run(classes=4, seed=1, classifier=lambda: head, canaries=coins, key=KEY))
    return coins


def noise_found(plan: Plan, right: int) -> float:
    """The upper bound on the noise of the plan's descent, relative to what it states."""
    descent = descent_of(plan.event)
    return gradient_canaries.noise_at_most(descent, right=right, coins=800, alpha=ALPHA)


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_stated_noise_passes_and_half_of_it_is_caught(linear: MakeLinear, name: str) -> None:
    """False alarm 0.1 % for each mechanism (and the key is fixed). With half of the noise of its plan a mechanism is
    refuted."""
    plan = MECHANISMS[name].plan(TASK)
    honest = audit(linear, plan)
    assert noise_found(plan, honest.right()) >= 1.0
    cheat = plan.model_copy(update={"noise_factor": 0.5})
    assert noise_found(plan, audit(linear, cheat).right()) < 1.0


def test_the_bound_is_below_what_is_claimed_and_near_it(linear: MakeLinear) -> None:
    """For a descent that is all of its mechanism: more than half of the epsilon that it costs."""
    plan = MECHANISMS["full batch"].plan(TASK)
    noise = noise_found(plan, audit(linear, plan).right())
    assert 2.0 < curves.epsilon_at(descent_of(plan.event), factor=noise, delta=DELTA) < 4.0


def test_a_clip_that_does_not_hold_is_caught(linear: MakeLinear, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients that come through ten times as long are recognised, one in and all."""
    plan = MECHANISMS["full batch"].plan(TASK)

    def uncut(*_: Any) -> Any:
        return torch.ones_like

    monkeypatch.setattr(dp_sgd, "_coefficients", uncut)
    assert noise_found(plan, audit(linear, plan).right()) < 0.7


def test_coins_that_are_out_add_nothing(linear: MakeLinear) -> None:
    """The sum before noise moves along the axes of canaries that are in, by the clip each, and nowhere else."""
    axes = torch.tensor([1, 4, 7])
    coins = GradientCanaries(axes, torch.tensor([True, False, True]))
    gradient = torch.zeros(10)
    stream = SecretStream(KEY)
    coins.insert(gradient, factors=lambda norms: 2.0 / norms, clip=2.0, sampling_prob=1.0, stream=stream, step=0)
    assert gradient.tolist() == [0, 2, 0, 0, 0, 0, 0, 2, 0, 0]


def test_in_a_shorter_gradient_the_first_canaries_lie_alone() -> None:
    """A phase of eight entries has room for two of three canaries; the third is neither added nor judged there."""
    coins = GradientCanaries(torch.tensor([1, 4, 17]), torch.tensor([True, False, True]))
    segment = NoiseSegment(steps=1, noise_multiplier=1.0, l2_clip_norm=2.0)
    gradient, stream = torch.zeros(8), SecretStream(KEY)
    coins.insert(gradient, factors=lambda norms: 2.0 / norms, clip=2.0, sampling_prob=1.0, stream=stream, step=0)
    assert gradient.tolist() == [2, 0, 0, 0, 0, 0, 0, 0]
    coins.look(gradient, segment=segment, sampling_prob=1.0)
    assert coins.seen.tolist() == [0.5, -0.5, 0.0]
    assert coins.steps == 1
