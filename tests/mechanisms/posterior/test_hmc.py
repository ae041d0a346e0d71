"""The sampler draws from the density it is given: conjugate cases, a long run of another sampler, calibration.

Statistical tests have fixed noise, so that they cannot fail by chance; the level that they would have with other noise
is stated with each.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from mechanisms.model.bounded import BoundedLikelihood
from mechanisms.posterior import hmc
from mechanisms.posterior.gibbs import Evaluation, SoftmaxPosterior, mode
from mechanisms.posterior.hmc import Metric, SamplerConfig, trajectory
from mechanisms.privacy import noise

CLASSES, WIDTH = 3, 4


@pytest.fixture(autouse=True)
def _fixed_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "new_key", lambda: bytes(range(32)))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def posterior(n: int = 40, *, seed: int = 0, **how: Any) -> SoftmaxPosterior:
    g = generator(seed)
    features = torch.cat([torch.randn(n, WIDTH - 1, generator=g), torch.ones(n, 1)], 1)
    labels = torch.randint(CLASSES, (n,), generator=g)
    made = SoftmaxPosterior(features, labels, torch.zeros(CLASSES, WIDTH), 1.0)
    return replace(made, **how)


def metric_of(target: SoftmaxPosterior) -> Metric:
    found = mode(target, target.prior_mean)
    return Metric.of(found, target.curvature(found[None]))


def chain(
    target: SoftmaxPosterior | Gaussian,
    metric: Metric,
    theta: Tensor,
    *,
    trajectories: int,
    step_size: float,
    seed: int = 1,
    corrected: bool = True,
) -> Tensor:
    """Every state, [trajectories, K, classes, width]."""
    g, seen = generator(seed), []
    at = target.evaluate(theta)
    for number in range(trajectories):
        theta, at, _ = trajectory(
            target,
            metric,
            theta,
            at,
            step_size=step_size,
            angle=hmc.QUARTER * (1 + 0.2 * math.sin(2.4 * number)),
            normal=torch.randn(theta.shape, generator=g),
            log_uniform=torch.rand(len(theta), generator=g, dtype=torch.float64).log(),
            corrected=corrected,
        )
        seen.append(theta)
    return torch.stack(seen)


class Gaussian:
    """A posterior that is known: N(mean, covariance) of all parameters together."""

    def __init__(self) -> None:
        size = CLASSES * WIDTH
        root = torch.randn(size, size, generator=generator(5), dtype=torch.float64)
        self.covariance = root @ root.T / size + 0.2 * torch.eye(size, dtype=torch.float64)
        self.mean = torch.arange(size, dtype=torch.float64) / size
        self.precision = torch.linalg.inv(self.covariance)

    def evaluate(self, theta: Tensor) -> Evaluation:
        off = theta.flatten(1).double() - self.mean
        pull = off @ self.precision
        return Evaluation((off * pull).sum(1) / 2, pull.float().view_as(theta), torch.zeros(len(theta), 1))


@pytest.mark.parametrize(
    ("corrected", "step_size", "accepted"), [(True, 0.5, True), (True, 0.15, True), (False, 1.3, False)]
)
def test_a_conjugate_posterior_is_met(corrected: bool, step_size: float, accepted: bool) -> None:
    """500 chains end at independent draws of a Gaussian whose mean and covariance the metric has wrong: whitened by
    the truth they are standard normal, by a chi-square test of their squares and one of their mean, at level 1e-6.
    Without Metropolis, at a step that it would often refuse, they are not."""
    target = Gaussian()
    metric = Metric.of(torch.full((CLASSES, WIDTH), 0.3), torch.eye(WIDTH).repeat(CLASSES, 1, 1) * 2)
    start = torch.randn(500, CLASSES, WIDTH, generator=generator())
    last = chain(target, metric, start, trajectories=80, step_size=step_size, corrected=corrected)[-1]
    factor = torch.linalg.cholesky(target.precision)
    white = (last.flatten(1).double() - target.mean) @ factor
    square, mean = float(white.square().sum()), float(len(white) * white.mean(0).square().sum())
    both = [stats.chi2.cdf(square, white.numel()), stats.chi2.cdf(mean, white.shape[1])]
    p = min(2 * min(both[0], 1 - both[0]), 1 - both[1])
    assert (p > 1e-6) == accepted


def test_without_records_a_draw_is_one_of_the_prior() -> None:
    """Features of zero: the whole sampler, warm-up and starts included, ends at N(theta_0, tau^2), level 1e-6; at 2/3
    and 3/2 of tau it is rejected."""
    features, labels = torch.zeros(30, 200), torch.arange(30) % CLASSES
    mean = torch.randn(CLASSES, 200, generator=generator())
    target = SoftmaxPosterior(features, labels, mean, 0.7)
    theta = hmc.sample(target, mean, SamplerConfig(), draws=4, purpose="test").theta
    standard = float(((theta - mean) / 0.7).square().sum())
    for factor, accepted in ((1.0, True), (2 / 3, False), (1.5, False)):
        below = float(stats.chi2.cdf(standard / factor**2, theta.numel()))
        assert (2 * min(below, 1 - below) > 1e-6) == accepted


def ranks(
    *,
    temperature: float = 1.0,
    corrected: bool = True,
    step_size: float = 0.4,
    bounded: BoundedLikelihood | None = None,
) -> np.ndarray:
    """Simulation-based calibration: parameters of the prior, labels of them, and the parameters' rank among 19 draws.

    500 data sets, one chain each, from starts that know nothing of the truth; [500, statistics].
    """
    sets, kept, apart, burnt = 500, 19, 4, 24
    g = generator(3)
    features = torch.cat([torch.randn(12, WIDTH - 1, generator=g), torch.ones(12, 1)], 1)
    truth, start = torch.randn(2, sets, CLASSES, WIDTH, generator=g)
    scores = torch.einsum("nw,kcw->knc", features, truth)
    labels = torch.distributions.Categorical(logits=scores).sample()  # seeded below
    weights = None if temperature == 1 else torch.full((12,), 1 / temperature)
    target = SoftmaxPosterior(features, labels, torch.zeros(CLASSES, WIDTH), 1.0, weights=weights, bounded=bounded)
    metric = Metric.of(torch.zeros(CLASSES, WIDTH), target.curvature(start))
    states = chain(
        target, metric, start, trajectories=burnt + kept * apart, step_size=step_size, corrected=corrected, seed=4
    )[burnt::apart]

    def told(theta: Tensor) -> Tensor:
        """A weight, a bias, the length, and the mean log-likelihood: what is asked of each draw."""
        ell = target.evaluate(theta).ell.mean(1)
        return torch.stack([theta[:, 0, 0], theta[:, 1, -1], theta.square().sum((1, 2)), ell], 1)

    drawn = torch.stack([told(state) for state in states])
    return (drawn < told(truth)).sum(0).numpy()


def uniform_p_value(rank: np.ndarray) -> float:
    """The smallest chi-square p-value of uniform ranks 0 to 19, over statistics, times their number (Bonferroni)."""
    smallest = min(stats.chisquare(np.bincount(column, minlength=20)).pvalue for column in rank.T)
    return float(smallest * rank.shape[1])


@pytest.mark.parametrize(
    ("wrong", "accepted"),
    [
        ({}, True),
        ({"step_size": 0.1}, True),
        ({"corrected": False, "step_size": 1.5}, False),
        ({"temperature": 2.5}, False),
        ({"bounded": BoundedLikelihood(bound=1.0)}, False),
    ],
    ids=["exact", "small steps", "no Metropolis", "temperature", "another likelihood"],
)
def test_draws_are_calibrated(wrong: dict[str, Any], accepted: bool) -> None:
    """Talts et al. 2018: the rank of the truth among draws of its own posterior is uniform, by chi-square over 20 ranks
    at level 1e-4 over four statistics. A sampler that accepts everything at a large step, one of another temperature
    and one of another likelihood are found out."""
    torch.manual_seed(11)
    assert (uniform_p_value(ranks(**wrong)) > 1e-4) == accepted


@pytest.mark.parametrize("bound", [None, 2.5])
def test_two_samplers_agree_in_a_long_run(bound: float | None) -> None:
    """Against 2,000 steps of plain random-walk Metropolis in each of 200 chains, which shares no line with it: means
    and squares of all parameters within five standard errors of the difference (level 1e-5 over 24 comparisons).
    Further off are the same sampler of a likelihood raised to 0.4, and one that accepts everything at a large step."""
    bounded = None if bound is None else BoundedLikelihood(bound=bound)
    target = posterior(bounded=bounded, weights=torch.linspace(0.2, 1.0, 40))
    g = generator(7)
    theta = torch.randn(200, CLASSES, WIDTH, generator=g)
    potential = target.evaluate(theta).potential
    walked = []
    for step in range(2000):
        proposed = theta + 0.35 * torch.randn(theta.shape, generator=g)
        there = target.evaluate(proposed).potential
        taken = torch.rand(200, generator=g, dtype=torch.float64).log() < potential - there
        theta = torch.where(taken[:, None, None], proposed, theta)
        potential = torch.where(taken, there, potential)
        if step >= 400:
            walked.append(theta)
    slow = torch.stack(walked).double()  # [steps, chains, ...]
    start = torch.randn(200, CLASSES, WIDTH, generator=g)

    def apart(sampled: SoftmaxPosterior, step_size: float = 0.4, *, corrected: bool = True) -> float:
        """The largest difference of a mean or a mean square, in standard errors."""
        fast = chain(sampled, metric_of(sampled), start, trajectories=60, step_size=step_size, corrected=corrected)[
            10:
        ].double()
        largest = 0.0
        for moment in (lambda x: x, lambda x: x.square()):
            one, two = moment(slow).mean(0), moment(fast).mean(0)  # a mean a chain: chains are independent
            error = (one.var(0) / 200 + two.var(0) / 200).sqrt()
            largest = max(largest, float(((one.mean(0) - two.mean(0)) / error).abs().max()))
        return largest

    assert apart(target) < 5
    assert target.weights is not None
    assert apart(replace(target, weights=0.4 * target.weights)) > 5
    assert apart(target, 1.6, corrected=False) > 5


def test_gradient_and_curvature_are_the_potentials() -> None:
    """Against autograd: the gradient of U, with weights, bound and offset; the blocks of its Hessian."""
    weights, offset = torch.rand(40, generator=generator()), torch.randn(CLASSES, generator=generator(1))
    for bounded in (None, BoundedLikelihood(bound=3.0)):
        target = posterior(weights=weights, bounded=bounded, offset=offset)
        theta = torch.randn(2, CLASSES, WIDTH, generator=generator(2), requires_grad=True)
        ell = (torch.einsum("nw,kcw->knc", target.features, theta) + offset).log_softmax(-1)
        ell = ell.gather(2, target.labels.expand(2, -1)[..., None])[..., 0] * weights
        likelihood = ell if bounded is None else bounded(ell)
        potential = theta.square().sum((1, 2)) / 2 - likelihood.sum(1)
        (wanted,) = torch.autograd.grad(potential.sum(), theta)
        found = target.evaluate(theta.detach())
        torch.testing.assert_close(found.gradient, wanted, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found.potential.float(), potential.detach(), rtol=1e-5, atol=1e-4)
    target = posterior(weights=weights)

    def potential_of(flat: Tensor) -> Tensor:
        logs = (target.features @ flat.view(CLASSES, WIDTH).T).log_softmax(-1)
        at_label = logs.gather(1, target.labels[:, None])[:, 0]
        return flat.square().sum() / 2 - (weights * at_label).sum()

    at = torch.randn(CLASSES * WIDTH, generator=generator(3))
    hessian = torch.autograd.functional.hessian(potential_of, at).view(CLASSES, WIDTH, CLASSES, WIDTH)
    blocks = torch.stack([hessian[c, :, c] for c in range(CLASSES)])
    torch.testing.assert_close(target.curvature(at.view(1, CLASSES, WIDTH)), blocks, rtol=1e-4, atol=1e-4)


def test_a_new_level_is_a_draw_given_the_rest() -> None:
    """It changes no log-likelihood, the potential and gradient told are those of the new place, and over 2,000 chains
    the mean over classes is N(mean of theta_0, tau^2 / classes), level 1e-6."""
    target = posterior(prior_mean=torch.randn(CLASSES, WIDTH, generator=generator(8)), prior_std=0.6)
    theta = torch.randn(2000, CLASSES, WIDTH, generator=generator(1))
    before = target.evaluate(theta)
    after, told = target.shifted(theta, before, torch.randn(2000, WIDTH, generator=generator(2)))
    true = target.evaluate(after)
    torch.testing.assert_close(told.ell, true.ell, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(told.potential, true.potential, rtol=1e-6, atol=1e-4)
    torch.testing.assert_close(told.gradient, true.gradient, rtol=1e-4, atol=1e-4)
    white = (after.mean(1) - target.prior_mean.mean(0)) / (0.6 / math.sqrt(CLASSES))
    below = float(stats.chi2.cdf(float(white.double().square().sum()), white.numel()))
    assert 2 * min(below, 1 - below) > 1e-6


class Killed(BaseException):
    pass


@pytest.mark.parametrize("after", [3, 25, 47])
def test_a_run_that_goes_on_equals_an_unbroken_one(tmp_path: Path, after: int) -> None:
    """Bit for bit, killed in warm-up or among the draws; the key is gone when it ends."""
    target = posterior()
    given: dict[str, Any] = {"draws": 120, "purpose": "test"}
    config = SamplerConfig(warm_up=20)

    def kill(done: int, total: int | None) -> None:
        if done >= 4 * after:
            raise Killed

    whole = hmc.sample(target, target.prior_mean, config, **given)
    file = tmp_path / "chains.safetensors"
    with pytest.raises(Killed):
        hmc.sample(target, target.prior_mean, config, **given, file=file, progress=kill)
    assert "key" in hmc.checkpoint.load(file)[0]
    for _ in range(2):  # the second time it finds itself finished
        again = hmc.sample(target, target.prior_mean, config, **given, file=file)
        assert torch.equal(again.theta, whole.theta)
        assert torch.equal(again.ell, whole.ell)
        assert torch.equal(again.ell_last, whole.ell_last)
        assert torch.equal(again.energy_error, whole.energy_error)
    assert "key" not in hmc.checkpoint.load(file)[0]


def test_every_fit_draws_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """No seed: with keys of the operating system two runs of the same call share no draw."""
    monkeypatch.undo()
    target = posterior()
    one, two = (hmc.sample(target, target.prior_mean, SamplerConfig(), draws=8, purpose="test") for _ in range(2))
    assert not torch.isclose(one.theta, two.theta).any()
