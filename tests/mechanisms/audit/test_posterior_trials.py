"""An audit's reruns of exact samplers: each trial's draw is one of the posterior of its own records."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mechanisms.audit import posterior_trials, trials
from mechanisms.audit.trials import Records
from mechanisms.bounded_posterior import BoundedPosterior
from mechanisms.errors import MechanismError
from mechanisms.exact_posterior import ExactPosterior, ExactPosteriorEvent
from mechanisms.formal_posterior import FormalPosterior
from mechanisms.mechanism import Mechanism, Task
from mechanisms.model.bounded import BoundedLikelihood
from mechanisms.model.fields import Fields
from mechanisms.posterior import hmc
from mechanisms.posterior.config import PseudoPosteriorConfig
from mechanisms.posterior.gibbs import Evaluation, SoftmaxPosterior
from mechanisms.privacy import noise

CLASSES, WIDTH, N = 3, 4, 60
TASK = Task(records=30, classes=CLASSES, target_epsilon=4.0, delta=1e-4)


@pytest.fixture(autouse=True)
def _fixed_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "new_key", lambda: bytes(range(32)))


def pool(included: Tensor) -> Records:
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (N,), generator=g)
    features = torch.eye(CLASSES, WIDTH)[labels] + torch.randn(N, WIDTH, generator=g)
    return Records(features, labels, included, seeds=tuple(range(len(included))))


def halves(count: int) -> Tensor:
    """Trials on the first and on the last 35 records in turn."""
    first = torch.arange(N) < 35
    return torch.stack([first if trial % 2 == 0 else first.flip(0) for trial in range(count)])


@pytest.mark.parametrize("bound", [None, 2.0])
def test_a_trials_draw_is_one_of_its_own_posterior(bound: float | None) -> None:
    """150 trials on two sets of records in turn, against the whole sampler with 150 chains on each set: means and
    variances of all parameters within five standard errors (level 1e-4 over 60 comparisons). Against the sampler of the
    other set they are not: a rerun on another trial's records is found out."""
    given = pool(halves(150))
    bounded = None if bound is None else BoundedLikelihood(bound=bound)
    start = torch.zeros(CLASSES, WIDTH + 1)
    posteriors = [
        SoftmaxPosterior(given.with_bias[own], given.labels[own], start, 1.0, bounded=bounded) for own in given.included
    ]
    drawn, losses = posterior_trials.sample(posteriors, start)
    assert [len(one[0]) for one in losses] == [35] * 150
    config = hmc.SamplerConfig(warm_up=40)
    whole = [hmc.sample(posteriors[k], start, config, draws=1, chains=150, purpose=f"{k}").theta for k in (0, 1)]

    def apart(one: Tensor, two: Tensor) -> float:
        def error(x: Tensor) -> Tensor:
            return x.var(0) / len(x)

        moments = [(one, two), ((one - one.mean(0)).square(), (two - two.mean(0)).square())]
        return max(float(((a.mean(0) - b.mean(0)) / (error(a) + error(b)).sqrt()).abs().max()) for a, b in moments)

    for k in (0, 1):
        assert apart(drawn[k::2], whole[k]) < 5
        assert apart(drawn[k::2], whole[1 - k]) > 5


@pytest.mark.parametrize("mechanism", [FormalPosterior(), BoundedPosterior(), ExactPosterior()], ids=lambda m: m.kind)
def test_reruns_say_of_all_what_their_draws_do(mechanism: Mechanism, monkeypatch: pytest.MonkeyPatch) -> None:
    """Log-likelihoods are those of each trial's draw, for records in and out of it, as a fit's own model has them."""
    heads: list[Tensor] = []
    told = trials.log_likelihood

    def spied(theta: Tensor, with_bias: Tensor, labels: Tensor, fields: Fields | None = None) -> tuple[Tensor, Tensor]:
        heads.append(theta)
        return told(theta, with_bias, labels, fields)

    monkeypatch.setattr(trials, "log_likelihood", spied)
    if isinstance(mechanism, ExactPosterior):
        mechanism = mechanism.model_copy(
            update={"pseudo_posterior": PseudoPosteriorConfig(risk_draws=5, sensitivity_draws=5)}
        )
    plan, given = mechanism.plan(TASK), pool(halves(3))
    assert isinstance(plan.mechanism, FormalPosterior | BoundedPosterior | ExactPosterior)
    seen: list[tuple[int, int]] = []
    (found,) = plan.mechanism.fit_many(
        plan, given, torch.zeros(CLASSES, WIDTH + 1), progress=lambda done, total: seen.append((done, total))
    ).values()
    (theta,) = heads
    wanted = (given.with_bias @ theta[1].T).log_softmax(1).gather(1, given.labels[:, None])[:, 0]
    torch.testing.assert_close(found.ell[1], wanted, rtol=1e-4, atol=1e-4)
    assert not torch.isclose(theta[0], theta[2]).any()  # the same records, another draw
    assert seen[-1][0] == seen[-1][1]
    if plan.event is not None:
        assert found.events == (plan.event,) * 3
        return
    for event, own, ell in zip(found.events, given.included, found.ell, strict=True):
        assert isinstance(event, ExactPosteriorEvent)
        assert event.sensitivity_draws == 5
        assert float(-ell[own].max()) <= event.sensitivity <= 40


def test_a_chain_that_stands_still_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proposals whose energy is not finite are none."""
    target = SoftmaxPosterior(torch.ones(4, WIDTH), torch.tensor([0, 1, 2, 0]), torch.zeros(CLASSES, WIDTH), 1.0)
    evaluate = posterior_trials.SideBySide.evaluate

    def broken(self: posterior_trials.SideBySide, theta: Tensor) -> Evaluation:
        found = evaluate(self, theta)
        return replace(found, gradient=torch.full_like(found.gradient, torch.nan))

    monkeypatch.setattr(posterior_trials.SideBySide, "evaluate", broken)
    with pytest.raises(MechanismError, match="accepts none"):
        posterior_trials.sample([target], target.prior_mean)
