"""The DP noise is Langevin's noise: the right step size, no other; the claim; and the posterior where it is known."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from small_heads import MakeLinear, head_of
from torch import Tensor, nn

from mechanisms import dp_sgd
from mechanisms.mechanism import Fitted, Plan, Records, Run, Task
from mechanisms.model.classifier import Classifier
from mechanisms.model.inputs import FeatureInputs
from mechanisms.privacy.events import descent_of
from mechanisms.private_posterior import PrivatePosterior, step_size

CONFIG = PrivatePosterior(target_epsilon=4.0, steps=20, prior_std=0.5)
RUN = Run(classes=2, seed=0, classifier=lambda: head_of(nn.Linear(3, 2)))


def plan_of(records: int, config: PrivatePosterior = CONFIG) -> Plan:
    """Solved for the config's target."""
    return config.plan(Task(records=records, classes=2))


def fit(plan: Plan, classifier: Classifier, inputs: FeatureInputs, labels: Tensor, **how: Any) -> Fitted:
    run = Run(
        classes=classifier.flat.numel() // (inputs.features.shape[1] + 1),
        seed=0,
        classifier=lambda: classifier,
        key=bytes(range(32)),
        **how,
    )
    return plan.fit(Records(inputs, labels), run)


class TestCalibration:
    def test_step_size_is_langevins_at_temperature_one(self) -> None:
        """Noise added to theta in a step has standard deviation sqrt(eta), where eta/2 multiplies the gradient sum;
        seen in the descent that runs, whatever the number of records."""
        for records in (12, 500):
            plan, seen = plan_of(records), list[dp_sgd.DpSgd]()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(dp_sgd, "descend", lambda settings, *_, seen=seen, **__: seen.append(settings))
                CONFIG.fit(plan, Records(FeatureInputs(torch.zeros(records, 3)), torch.zeros(records).long()), RUN)
            (descent,) = seen
            noise = descent_of(plan.event).segments[0].noise_multiplier * CONFIG.l2_clip_norm
            assert descent.learning_rate is not None
            rate = descent.learning_rate / records
            assert descent.batch_size == records
            assert rate * noise == pytest.approx(math.sqrt(2 * rate))
            assert descent.learning_rate * descent.weight_decay == pytest.approx(rate / CONFIG.prior_std**2)

    def test_the_time_is_bought_by_epsilon_not_by_steps(self) -> None:
        """eta N is the same within 2 % for 20 and 200 steps, and more for a larger epsilon."""
        times = []
        for steps, epsilon in ((20, 4.0), (200, 4.0), (20, 8.0)):
            plan = plan_of(500, CONFIG.model_copy(update={"steps": steps, "target_epsilon": epsilon}))
            noise = descent_of(plan.event).segments[0].noise_multiplier
            times.append(step_size(noise, CONFIG.l2_clip_norm) * steps)
        assert times[1] == pytest.approx(times[0], rel=0.02)
        assert times[2] > 2 * times[0]


def snapshots(eta: float, *, steps: int, features: Tensor, labels: Tensor) -> Tensor:
    """One long chain, its parameters every 16 steps after the first tenth, [snapshots, P]."""
    made, found = head_of(nn.Linear(features.shape[1], 2)), list[Tensor]()
    config = PrivatePosterior(steps=steps, prior_std=1.0, l2_clip_norm=10.0)
    fit(
        Plan(mechanism=config, task=Task(records=len(labels), classes=2), noise=2 / math.sqrt(eta) / 10),
        made,
        FeatureInputs(features=features),
        labels,
        progress=lambda done, total: found.append(made.flat.clone()) if done > total // 10 else None,
    )
    return torch.stack(found)


class TestPosterior:
    def test_mixed_chains_have_the_posteriors_moments(self) -> None:
        """Two classes, one feature, 12 records, prior N(0, 1): the slope's mean and standard deviation along a chain of
        9,000 steps against summation over a grid. The key is fixed, so no false alarm; half and twice the temperature
        lie outside the bands."""
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


def test_a_neighbour_runs_with_the_noise_and_the_step_calibrated() -> None:
    """One record less, as an audit's reruns have it: the same event, and a start from the prior wherever the head was.

    A feature that is always 0 shows the start: 1,000 weights are N(0, s^2) (10 % of their standard deviation).
    """
    made, labels = head_of(nn.Linear(500, 2)), torch.arange(19) % 2
    with torch.no_grad():
        made.flat.fill_(9.0)
    plan = plan_of(20)
    ran = fit(plan, made, FeatureInputs(features=torch.zeros(19, 500)), labels, resampled=True)
    assert ran.event == plan.event
    assert float(made.flat[:1000].std()) == pytest.approx(CONFIG.prior_std, rel=0.1)
    assert abs(float(made.flat[:1000].mean())) < 0.1


def test_other_steps_are_paid_for(linear: MakeLinear) -> None:
    """The rate follows from the plan's noise, so no plan has another temperature."""
    longer = plan_of(12).model_copy(update={"mechanism": CONFIG.model_copy(update={"steps": 21})})
    assert descent_of(fit(longer, *linear(12)).event).steps == 21
