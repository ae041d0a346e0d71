"""Refits without a record against the training loop; what they say of a draw against draws of all parameters."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from scipy.stats import kstest
from small_heads import MakeLinear

from mechanisms.audit.leave_one_out import (
    FullFit,
    log_likelihood_draws,
    privacy_losses,
    records_to_leave_out,
    refit,
    refuted_delta,
    trial_weights,
)
from mechanisms.model.config import OptimiserPhase
from mechanisms.model.fields import Fields
from mechanisms.model.seeding import generator
from mechanisms.model.training import train
from mechanisms.posterior import swag

ADAMW = OptimiserPhase(optimiser="adamw", learning_rate=0.05, epochs=2, batch_size=5, weight_decay=0.01)
SGD = OptimiserPhase(optimiser="sgd", learning_rate=0.1, epochs=4, batch_size=5)


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_equals_the_training_loop(linear: MakeLinear, tmp_path: Path, schedule: str) -> None:
    """Each batched trial equals `training.train` on the same weights to float32 rounding; a rate that falls
    included.
    """
    adamw = ADAMW.model_copy(update={"schedule": schedule})
    made, inputs, labels = linear(23)
    alpha = 0.3 + 0.7 * torch.rand(23, generator=torch.Generator().manual_seed(4))
    rows = trial_weights(alpha, torch.tensor([3, 17]), records=23)
    start = made.flat.clone()
    got = refit(
        made,
        inputs,
        labels,
        weights=rows,
        adamw=adamw,
        sgd=SGD,
        rank=3,
        std_scale=1.0,
        seed=7,
    )
    assert torch.equal(made.flat, start), "the classifier is left as it was"
    for trial, weights in enumerate(rows):
        made.flat.copy_(start)
        how = {"seed": 7, "weights": weights}
        train(made, inputs, labels, phase=adamw, purpose="fine-tune", **how)
        state = swag.init(made.num_parameters, rank=3, folder=tmp_path / str(trial))
        train(made, inputs, labels, phase=SGD, purpose="swag", state=state, **how)
        swag.save(state)
        want = swag.load(tmp_path / str(trial))
        torch.testing.assert_close(got[trial].mean, want.mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(got[trial].diag_std, want.diag_std, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(torch.stack(got[trial].deviations), torch.stack(want.deviations), atol=1e-5, rtol=0)


def test_the_record_left_out_does_not_matter(linear: MakeLinear) -> None:
    """Another label for it changes nothing; for a record left in it does."""
    made, inputs, labels = linear(12)
    rows = trial_weights(None, torch.tensor([2]), records=12)
    how = {"weights": rows, "adamw": ADAMW, "sgd": SGD, "rank": 3, "std_scale": 1.0, "seed": 1}
    (one,) = refit(made, inputs, labels, **how)
    for record, same in ((2, True), (3, False)):
        other = labels.clone()
        other[record] = (other[record] + 1) % 4
        (two,) = refit(made, inputs, other, **how)
        assert torch.equal(one.mean, two.mean) == same


def test_half_of_the_records_are_the_riskiest() -> None:
    """And none is taken twice, also where more are asked for than there are."""
    delta = torch.arange(10.0)
    indices = records_to_leave_out(delta, count=5, seed=0).tolist()
    assert indices[:3] == [9, 8, 7]
    assert len(set(indices)) == 5
    assert sorted(records_to_leave_out(delta, count=99, seed=0).tolist()) == list(range(10))


def posterior(shift: float = 0.0) -> swag.Posterior:
    """A linear head's, of 4 classes on 3 features."""
    g = torch.Generator().manual_seed(1)
    deviations = tuple(0.3 * torch.randn(16, generator=g) for _ in range(4))
    mean, m2 = torch.randn(16, generator=g), torch.rand(16, generator=g)
    return swag.posterior(mean + shift * torch.eye(16)[0], m2, deviations, count=4, std_scale=1.5)


def test_logits_may_be_drawn_in_the_place_of_parameters() -> None:
    """Log-likelihoods at 1,000 such draws and at 4,000 draws of all parameters are of one distribution, but not of
    another record's label: Kolmogorov-Smirnov, seeded, so no false alarms."""
    post, x = posterior(), torch.tensor([0.5, -1.0, 2.0])
    g = torch.Generator().manual_seed(0)
    thetas = torch.stack([swag.sample(post, normal=swag.seeded_normal(g)) for _ in range(4000)])
    ell = (thetas[:, :12].view(-1, 4, 3) @ x + thetas[:, 12:]).log_softmax(1)
    drawn = log_likelihood_draws(post, x, torch.tensor(2), g)
    assert kstest(drawn, ell[:, 2]).pvalue > 0.01
    assert kstest(drawn, ell[:, 1]).pvalue < 1e-6


def test_of_several_fields_it_is_the_sum_over_those_that_a_record_has() -> None:
    """Against draws of all parameters, by hand; not the distribution of one field alone, nor of all where one lacks."""
    post, x, fields = posterior(), torch.tensor([0.5, -1.0, 2.0]), Fields((2, 2))
    g = torch.Generator().manual_seed(0)
    thetas = torch.stack([swag.sample(post, normal=swag.seeded_normal(g)) for _ in range(4000)])
    logits = thetas[:, :12].view(-1, 4, 3) @ x + thetas[:, 12:]
    first, second = logits[:, :2].log_softmax(1)[:, 1], logits[:, 2:].log_softmax(1)[:, 0]
    both = log_likelihood_draws(post, x, torch.tensor([1, 0]), g, fields=fields)
    assert kstest(both, first + second).pvalue > 0.01
    assert kstest(both, first).pvalue < 1e-6
    one = log_likelihood_draws(post, x, torch.tensor([1, -1]), g, fields=fields)
    assert kstest(one, first).pvalue > 0.01
    assert kstest(one, first + second).pvalue < 1e-6


def test_effect_of_a_record() -> None:
    """None where its absence changed nothing but noise; a loss, and a larger one of all parameters, where it did."""
    full, x = FullFit(posterior(), seed=0), torch.tensor([1.0, 0.0, 0.0])
    same, other = (full.effect(x, torch.tensor(0), without=posterior(shift)) for shift in (0.0, -3.0))
    assert same.density_loss == 0
    assert abs(same.own_loss) < 0.1
    assert other.without_mean < other.with_mean == same.with_mean
    assert 0.1 < other.own_loss < other.density_loss


def test_privacy_losses_are_of_both_directions_and_exact() -> None:
    """Two SWAG Gaussians in full (torch's own density): the same ratios; none where nothing changed."""
    one, two = posterior(), posterior(-0.5)
    losses = privacy_losses(one, two, draws=20, seed=3)
    assert losses.shape == (2, 20)
    assert privacy_losses(one, one, draws=5, seed=3).abs().max() == 0

    def dense(post: swag.Posterior) -> torch.distributions.MultivariateNormal:
        columns = torch.stack([d.double() for d in post.deviations]) * post.std_scale / (2 * (post.rank - 1)) ** 0.5
        diagonal = post.std_scale**2 / 2 * post.diag_std.double().square()
        return torch.distributions.MultivariateNormal(post.mean.double(), diagonal.diag() + columns.T @ columns)

    normal = swag.seeded_normal(generator(3, "privacy-losses", "without", 0))
    theta = swag.sample(two, normal=normal).double()
    ratio = dense(two).log_prob(theta) - dense(one).log_prob(theta)
    assert float(losses[1, 0]) == pytest.approx(float(ratio), rel=1e-6, abs=1e-6)
    assert losses.mean() > 0, "a divergence"


def test_the_delta_that_losses_refute() -> None:
    """All of 200 draws far beyond epsilon: every delta up to 0.05^(1/200) = 0.985, each direction at half of alpha. Of
    a Gaussian mechanism whose delta at this epsilon is Phi(1) = 0.841, a larger one is refuted in at most 5 % of 200
    audits (more than 19 have 0.3 %), and a smaller one, 0.5, in all.
    """
    assert refuted_delta(torch.full((2, 200), 1e4), epsilon=5.0, alpha=0.1) == pytest.approx(0.98513 * 0.999, abs=1e-4)
    assert refuted_delta(torch.full((2, 200), 5.1), epsilon=5.0, alpha=0.1) == 0.0
    assert refuted_delta(torch.stack([torch.zeros(200), torch.full((200,), 1e4)]), epsilon=5.0, alpha=0.1) > 0.98
    pick = torch.Generator().manual_seed(0)
    mu = 18.0  # of N(0, 1) from N(mu, 1): losses are N(mu^2 / 2, mu^2)
    epsilon = mu**2 / 2 - mu  # delta at this epsilon is Phi(1) - e^epsilon Phi(1 - mu), to 1e-6 Phi(1) = 0.841
    found = [
        refuted_delta(mu**2 / 2 + mu * torch.randn(2, 200, generator=pick), epsilon=epsilon, alpha=0.05)
        for _ in range(200)
    ]
    assert sum(delta > 0.8413 for delta in found) <= 19
    assert min(found) > 0.5
