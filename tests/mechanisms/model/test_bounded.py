"""The bound holds at every parameter vector; exact posteriors of neighbours keep to the claim; and it trains."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from small_heads import MakeLinear, claim
from torch import Tensor

from mechanisms.errors import MechanismError
from mechanisms.model import bounded
from mechanisms.model.bounded import BoundedLikelihood
from mechanisms.model.config import OptimiserPhase
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.training import train
from mechanisms.posterior import swag
from mechanisms.privacy.events import BoundedSwagEvent

EPSILONS = (0.5, 2.0, 4.0, 10.0, 40.0)


class TestBound:
    @pytest.mark.parametrize("epsilon", EPSILONS)
    def test_no_parameters_exceed_it(self, linear: MakeLinear, epsilon: float) -> None:
        """Random parameters on scales from 1e-3 to 1e6, with weights: |u| <= epsilon/2 in float32, and reached."""
        made, inputs, labels = linear(50)
        likelihood, g = BoundedLikelihood.for_epsilon(epsilon), torch.Generator().manual_seed(1)
        alpha, largest = torch.rand(50, generator=g), 0.0
        for scale in (1e-3, 1.0, 30.0, 1e3, 1e6):
            made.flat.copy_(scale * torch.randn(made.num_parameters, generator=g))
            ell = made.log_likelihood({"features": inputs.features}, labels).detach()
            for u in (likelihood(ell), likelihood(alpha * ell)):
                assert bool(((u <= 0) & (u >= -epsilon / 2)).all())
            largest = max(largest, float(-likelihood(ell).min()))
        assert largest == pytest.approx(epsilon / 2), "the bound is the supremum, not more"

    def test_certain_and_impossible(self) -> None:
        """l = 0 gives 0, l = -inf gives -B exactly, and both have a finite gradient."""
        ell = torch.tensor([0.0, -math.inf, -1e30], requires_grad=True)
        u = BoundedLikelihood.for_epsilon(4.0)(ell)
        u.sum().backward()
        assert u.tolist() == [0, -2, -2]
        assert ell.grad is not None
        assert ell.grad.tolist() == [1, 0, 0]

    def test_is_the_log_likelihood_where_little_is_at_stake(self) -> None:
        """u(l) = l + O(q l^2) for epsilon >= 4, and u -> l as epsilon grows."""
        ell = -torch.tensor([1e-3, 0.5, 3.0], dtype=torch.float64)
        torch.testing.assert_close(BoundedLikelihood.for_epsilon(4.0)(ell[:1]), ell[:1], rtol=1e-3, atol=0)
        torch.testing.assert_close(BoundedLikelihood.for_epsilon(1e6)(ell), ell, rtol=1e-5, atol=0)

    @pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
    def test_no_such_epsilon(self, epsilon: float) -> None:
        """Named in the refusal."""
        with pytest.raises(MechanismError, match="target_epsilon"):
            BoundedLikelihood.for_epsilon(epsilon)

    def test_largest_loss_is_enough(self) -> None:
        """`at` of the largest loss is the largest |u|: what a measured Delta becomes."""
        likelihood, losses = BoundedLikelihood.for_epsilon(4.0), torch.tensor([0.1, 7.0, 2.0])
        assert likelihood.at(7.0) == pytest.approx(float(-likelihood(-losses).min()))


class TestExactPosterior:
    """Privacy losses of exact posteriors on neighbouring data, all by summation over a grid of parameters."""

    GRID = torch.linspace(-6, 6, 401, dtype=torch.float64)

    def posterior(self, data: Tensor, likelihood: Callable[[Tensor], Tensor]) -> Tensor:
        """Log posterior [grid] of a Gaussian's mean, prior N(0, 4), unit variance, l without its constant: <= 0."""
        ell = -0.5 * (data[:, None] - self.GRID) ** 2
        log = -self.GRID.square() / 8 + likelihood(ell).sum(0)
        return log - log.logsumexp(0)

    def largest_loss(self, likelihood: Callable[[Tensor], Tensor], *, replaced: bool) -> float:
        """Largest |log density ratio| over parameters and neighbours, outliers among them."""
        g, worst = torch.Generator().manual_seed(0), 0.0
        for n in (1, 2, 5, 40):
            data = 2 * torch.randn(n, generator=g, dtype=torch.float64)
            for value in (-40.0, -6.0, -1.0, 0.0, 3.0, 6.0, 1e4):
                if replaced:
                    for other in (-1e4, -6.0, 6.0):
                        one = torch.cat([data, torch.tensor([value], dtype=torch.float64)])
                        two = torch.cat([data, torch.tensor([other], dtype=torch.float64)])
                        gap = self.posterior(one, likelihood) - self.posterior(two, likelihood)
                        worst = max(worst, float(gap.abs().max()))
                else:
                    more = torch.cat([data, torch.tensor([value], dtype=torch.float64)])
                    gap = self.posterior(more, likelihood) - self.posterior(data, likelihood)
                    worst = max(worst, float(gap.abs().max()))
        return worst

    @pytest.mark.parametrize("epsilon", EPSILONS)
    def test_realised_loss_keeps_to_the_claim(self, epsilon: float) -> None:
        """Half of epsilon for adding or removing, epsilon for replacing; and no quarter of it would do."""
        likelihood = BoundedLikelihood.for_epsilon(epsilon)
        added = self.largest_loss(likelihood, replaced=False)
        replaced = self.largest_loss(likelihood, replaced=True)
        assert epsilon / 8 < added <= epsilon / 2
        assert epsilon / 4 < replaced <= epsilon

    def test_without_the_bound_it_does_not(self) -> None:
        """The conjugate posterior of the same model: an outlier alone makes the ratio hundreds of times e^10."""
        assert self.largest_loss(lambda ell: ell, replaced=False) > 20

    def test_a_likelihood_bounded_for_draws_held_only_does_not(self) -> None:
        """Scaling by the largest loss among the records held, as an estimated Delta does, breaks with a new outlier."""
        g = torch.Generator().manual_seed(3)
        data = torch.randn(40, generator=g, dtype=torch.float64)
        held = float((0.5 * (data[:, None] - torch.linspace(-1, 1, 21)) ** 2).max())

        def likelihood(ell: Tensor) -> Tensor:
            return ell * (2.0 / held)

        more = torch.cat([data, torch.tensor([1e3], dtype=torch.float64)])
        gap = self.posterior(more, likelihood) - self.posterior(data, likelihood)
        assert float(gap.abs().max()) > 4.0


class TestTraining:
    PHASE = OptimiserPhase(optimiser="adamw", learning_rate=0.05, epochs=8, batch_size=8)

    def accuracy(self, linear: MakeLinear, likelihood: BoundedLikelihood) -> float:
        """Share right after training on 60 separable classes from the uniform classifier."""
        made, _, _ = linear(240, width=60, labels=60)
        labels = torch.arange(240) % 60
        inputs = FeatureInputs(features=torch.eye(60)[labels])
        made.flat.zero_()
        train(made, inputs, labels, phase=self.PHASE, seed=0, purpose="x", bounded=likelihood)
        return float((made.predict(inputs).argmax(1) == labels).float().mean())

    @pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0])
    def test_learns_from_the_uniform_start(self, linear: MakeLinear, epsilon: float) -> None:
        """60 classes start at l = -4.1, beyond -epsilon/2: the bounded likelihood learns them all."""
        assert self.accuracy(linear, BoundedLikelihood.for_epsilon(epsilon)) > 0.95

    def test_a_hard_clamp_learns_nothing(self, linear: MakeLinear) -> None:
        """The same start and bound, clamped: not one record has a gradient."""

        class Clamped(BoundedLikelihood):
            def objective(self, ell: Tensor) -> Tensor:
                return ell.clamp(min=-self.bound)

        assert self.accuracy(linear, Clamped(bound=2.0)) < 0.1

    def test_weights_come_before_the_bound(self, linear: MakeLinear) -> None:
        """One step of SGD equals the gradient of (exp(q alpha l) - 1)/q by hand."""
        made, inputs, labels = linear(6)
        alpha, before = torch.tensor([0.0, 0.2, 0.5, 0.7, 0.9, 1.0]), made.flat.clone()
        likelihood = BoundedLikelihood.for_epsilon(8.0)
        theta = before.clone().requires_grad_()
        weight, bias = theta[:12].view(4, 3), theta[12:]
        ell = (inputs.features @ weight.T + bias).log_softmax(1).gather(1, labels[:, None])[:, 0]
        ((torch.exp(0.25 * alpha * ell) - 1) / 0.25).mean().backward()
        assert theta.grad is not None
        phase = OptimiserPhase(optimiser="sgd", learning_rate=0.1, epochs=1, batch_size=6)
        train(made, inputs, labels, phase=phase, seed=0, purpose="x", weights=alpha, bounded=likelihood)
        torch.testing.assert_close(made.flat, before + 0.1 * theta.grad)


class TestTemperature:
    def test_a_lower_epsilon_widens_the_draws(self, tmp_path: Path) -> None:
        """epsilon 1: B = 1/2, q = 1/2, slope 1/4 left out of training, so every draw is twice as wide; from 4 on, 1."""
        assert BoundedLikelihood.for_epsilon(1.0).temperature == pytest.approx(4)
        assert BoundedLikelihood.for_epsilon(4.0).temperature == BoundedLikelihood.for_epsilon(9.0).temperature == 1
        state = swag.init(3, rank=2, folder=tmp_path)
        for step in range(3):
            swag.update(state, torch.tensor([1.0, -1.0, 2.0]) * (step**2))
        draws = []
        for temperature in (1.0, 4.0):
            swag.save(state, temperature=temperature)
            post = swag.load(tmp_path)
            normal = swag.seeded_normal(torch.Generator().manual_seed(0))
            draws.append(swag.sample(post, normal=normal) - post.mean)
        torch.testing.assert_close(draws[1], 2 * draws[0])

    def test_power_is_capped_where_the_start_would_stall(self) -> None:
        """q = 1/B above epsilon 4, never more than the cap."""
        assert [BoundedLikelihood.for_epsilon(e).power for e in (0.1, 4.0, 8.0)] == [bounded.MAX_POWER, 0.5, 0.25]


class TestClaim:
    EVENT = BoundedSwagEvent(weighted=False, bound=2.0, snapshots=20, rank=20)

    def test_twice_the_bound(self) -> None:
        """No draw count and no measured maximum: the bound holds by construction. The kind is no better than SWAG's."""
        made = claim(self.EVENT)
        assert (made.epsilon, made.epsilon_add_remove, made.sensitivity) == (4, 2, 2)
        assert made.guarantee_kind == "asymptotic-local"
        assert made.delta is made.draws is made.mc_failure_prob is None
        assert any("not proven" in line for line in made.assumptions)
        assert not any("alpha" in line for line in made.assumptions)

    def test_weights_and_units(self) -> None:
        """Weights from the data are an assumption; a unit of three records costs three times as much."""
        made = claim(self.EVENT.model_copy(update={"weighted": True}), m=3)
        assert (made.epsilon, made.epsilon_add_remove) == (12, 6)
        assert any("alpha" in line for line in made.assumptions)

    def test_a_delta_is_refused(self) -> None:
        """delta 0 belongs to an exact draw, which SWAG's is not."""
        with pytest.raises(MechanismError, match="leave delta out"):
            claim(self.EVENT, delta=1e-5)
