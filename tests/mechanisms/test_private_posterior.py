"""The DP noise is Langevin's noise: the right step size, no other; the claim; and the posterior where it is known."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from small_heads import MakeLinear, claim, head_of
from torch import Tensor, nn

from mechanisms import dp_sgd
from mechanisms.dp_sgd import DpSgdConfig, DpSgdPlan
from mechanisms.errors import MechanismError
from mechanisms.model.inputs import FeatureInputs
from mechanisms.privacy.events import DpSgdEvent, NoiseSegment
from mechanisms.private_posterior import PrivatePosteriorConfig, calibrate, run, step_size

CONFIG = PrivatePosteriorConfig(target_epsilon=4.0, steps=20, prior_std=0.5)


def plan_of(config: PrivatePosteriorConfig, noise_multiplier: float, records: int) -> DpSgdPlan:
    """A plan of this noise, its step size as the sampler wants it."""
    segment = NoiseSegment(steps=config.steps, noise_multiplier=noise_multiplier, l2_clip_norm=config.l2_clip_norm)
    descent = DpSgdConfig(
        optimiser="sgd",
        learning_rate=step_size(noise_multiplier, config.l2_clip_norm) / 2 * records,
        weight_decay=1 / (records * config.prior_std**2),
        epochs=config.steps,
        batch_size=records,
        l2_clip_norm=config.l2_clip_norm,
    )
    return DpSgdPlan(config=descent, event=DpSgdEvent(sampling_prob=1.0, segments=(segment,)), num_records=records)


class TestCalibration:
    def test_the_claim_is_formal_and_meets_the_target(self) -> None:
        """From the event alone, as for any DP-SGD run."""
        plan = calibrate(CONFIG, num_records=500)
        made = claim(plan.event, delta=1e-4)
        assert made.guarantee_kind == "formal"
        assert made.epsilon == pytest.approx(4.0, rel=0.005)
        assert made.epsilon is not None
        assert made.epsilon <= 4.0

    def test_step_size_is_langevins_at_temperature_one(self) -> None:
        """Noise added to theta in a step has standard deviation sqrt(eta), where eta/2 multiplies the gradient sum."""
        plan = calibrate(CONFIG, num_records=500)
        noise = plan.sgd.segments[0].noise_multiplier * CONFIG.l2_clip_norm
        eta = 2 * plan.config.learning_rate / plan.config.batch_size
        assert plan.config.learning_rate / plan.config.batch_size * noise == pytest.approx(math.sqrt(eta))
        assert plan.config.learning_rate * plan.config.weight_decay == pytest.approx(eta / 2 / CONFIG.prior_std**2)

    def test_the_time_is_bought_by_epsilon_not_by_steps(self) -> None:
        """eta N is the same within 2 % for 20 and 200 steps, and more for a larger epsilon."""
        times = []
        for steps, epsilon in ((20, 4.0), (200, 4.0), (20, 8.0)):
            plan = calibrate(CONFIG.model_copy(update={"steps": steps, "target_epsilon": epsilon}), num_records=500)
            times.append(2 * plan.config.learning_rate / 500 * steps)
        assert times[1] == pytest.approx(times[0], rel=0.02)
        assert times[2] > 2 * times[0]


def snapshots(eta: float, *, steps: int, features: Tensor, labels: Tensor) -> Tensor:
    """One long chain, its parameters every 16 steps after the first tenth, [snapshots, P]."""
    made, found = head_of(nn.Linear(features.shape[1], 2)), list[Tensor]()
    config = PrivatePosteriorConfig(steps=steps, prior_std=1.0, l2_clip_norm=10.0)
    plan = plan_of(config, 2 / math.sqrt(eta) / 10, len(labels))
    run(
        made,
        FeatureInputs(features=features),
        labels,
        config=config,
        plan=plan,
        num_labels=2,
        seed=0,
        progress=lambda done, total: found.append(made.flat.clone()) if done > total // 10 else None,
    )
    return torch.stack(found)


class TestPosterior:
    def test_mixed_chains_have_the_posteriors_moments(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two classes, one feature, 12 records, prior N(0, 1): the slope's mean and standard deviation along a chain of
        9,000 steps against summation over a grid. The key is fixed, so no false alarm; half and twice the temperature
        lie outside the bands."""
        monkeypatch.setattr(dp_sgd, "new_key", lambda: bytes(range(32)))
        x = torch.linspace(-2, 2, 12)
        labels = (x + torch.tensor([0.9, -0.9] * 6) > 0).long()
        # logit difference d = a x + b with a, b ~ N(0, 2): differences of two independent N(0, 1)
        axis = torch.linspace(-7, 7, 281, dtype=torch.float64)
        a, b = torch.meshgrid(axis, axis, indexing="ij")
        sign = (2 * labels - 1).double()
        log = -(a.square() + b.square()) / 4
        for value, s in zip(x.double(), sign, strict=True):
            log = log + nn.functional.logsigmoid(s * (a * value + b))
        weight = (log - log.max()).exp()
        weight /= weight.sum()
        mean = float((weight * a).sum())
        std = float((weight * a.square()).sum() - mean**2) ** 0.5
        theta = snapshots(0.05, steps=9_000, features=x[:, None], labels=labels)
        slope = theta[:, 1] - theta[:, 0]
        assert float(slope.mean()) == pytest.approx(mean, abs=0.3 * std)
        assert float(slope.std()) == pytest.approx(std, rel=0.17)
        assert not math.isclose(float(slope.std()), std * math.sqrt(2), rel_tol=0.17)
        assert not math.isclose(float(slope.std()), std / math.sqrt(2), rel_tol=0.17)

    def test_directions_without_data_are_prior_draws(self) -> None:
        """A feature that is always 0: its weights are N(0, s^2), whatever time was bought (1,000 weights, 5 %)."""
        made, labels = head_of(nn.Linear(500, 2)), torch.arange(20) % 2
        inputs = FeatureInputs(features=torch.zeros(20, 500))
        plan = calibrate(CONFIG, num_records=20)
        run(made, inputs, labels, config=CONFIG, plan=plan, num_labels=2, seed=0)
        assert float(made.flat[:1000].std()) == pytest.approx(CONFIG.prior_std, rel=0.1)


def test_a_neighbour_runs_with_the_noise_and_the_step_calibrated() -> None:
    """One record less, as an audit's reruns have it: the same event, and a start from the prior wherever the head was.

    A feature that is always 0 shows the start: 1,000 weights are N(0, s^2) (10 % of their standard deviation).
    """
    made, labels = head_of(nn.Linear(500, 2)), torch.arange(19) % 2
    with torch.no_grad():
        made.flat.fill_(9.0)
    plan = calibrate(CONFIG, num_records=20)
    fewer = DpSgdPlan(config=plan.config, event=plan.event, num_records=19)
    ran = run(
        made, FeatureInputs(features=torch.zeros(19, 500)), labels, config=CONFIG, plan=fewer, num_labels=2, seed=0
    )
    assert ran.event == plan.event
    assert float(made.flat[:1000].std()) == pytest.approx(CONFIG.prior_std, rel=0.1)
    assert abs(float(made.flat[:1000].mean())) < 0.1


class TestRefusals:
    def test_another_temperature(self, linear: MakeLinear) -> None:
        """A plan whose rate was turned up would sample from something else: refused."""
        made, inputs, labels = linear(12)
        plan = calibrate(CONFIG, num_records=12)
        louder = DpSgdPlan(
            config=plan.config.model_copy(update={"learning_rate": 2 * plan.config.learning_rate}),
            event=plan.event,
            num_records=12,
        )
        with pytest.raises(MechanismError, match="calibrate again"):
            run(made, inputs, labels, config=CONFIG, plan=louder, num_labels=4, seed=0)

    def test_resumes_with_the_same_noise(self, linear: MakeLinear, tmp_path: Path) -> None:
        """A finished folder returns the same draw; the key is gone from it."""
        made, inputs, labels = linear(12)
        plan = calibrate(CONFIG, num_records=12)
        how = {"config": CONFIG, "plan": plan, "num_labels": 4, "seed": 0, "folder": tmp_path}
        run(made, inputs, labels, **how)
        first = made.flat.clone()
        made.flat.zero_()
        run(made, inputs, labels, **how)
        assert torch.equal(made.flat, first)
