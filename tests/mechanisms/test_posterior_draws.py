"""What three mechanisms claim of one posterior draw: the conditions of each claim, and that its number is attained."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from scipy.optimize import brentq
from small_heads import KEY, claim, head_of, noisy_sums, scale_p_value
from torch import Tensor, nn

from mechanisms import exact_posterior
from mechanisms.audit import curves
from mechanisms.bounded_posterior import BoundedPosterior
from mechanisms.errors import MechanismError
from mechanisms.exact_posterior import ExactPosterior, ExactPosteriorEvent
from mechanisms.formal_posterior import FormalPosterior, FormalPosteriorEvent
from mechanisms.mechanism import ClassifierModel, Records, Run, Task
from mechanisms.model.bounded import BoundedLikelihood
from mechanisms.model.fields import Fields
from mechanisms.model.inputs import FeatureInputs
from mechanisms.posterior import hmc, risks, rounds
from mechanisms.posterior.config import PseudoPosteriorConfig
from mechanisms.posterior.gibbs import LIPSCHITZ, SoftmaxPosterior
from mechanisms.privacy.claims import claim_of
from mechanisms.privacy.noise import SecretStream
from mechanisms.privacy.scaled import noise_scaled
from tasks.auditing.bounds import event_to_test

WIDTH, CLASSES, N = 5, 3, 60
TASK = Task(records=N, classes=CLASSES, target_epsilon=4.0, delta=1e-4)


def records(n: int = N) -> Records:
    labels = torch.arange(n) % CLASSES
    features = torch.eye(CLASSES, WIDTH)[labels] + torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(0))
    return Records(FeatureInputs(features), labels)


def run(folder: Path | None = None) -> Run:
    return Run(classes=CLASSES, seed=0, classifier=lambda: head_of(nn.Linear(WIDTH, CLASSES)), folder=folder, key=KEY)


def one_record(label: int = 0, **how: Any) -> SoftmaxPosterior:
    """A record of norm 1, under a prior so wide that the potential is its likelihood."""
    features = torch.full((1, WIDTH), 1 / math.sqrt(WIDTH))
    return SoftmaxPosterior(features, torch.tensor([label]), torch.zeros(CLASSES, WIDTH), 1e9, **how)


class TestFormal:
    def test_a_records_gradient_is_within_its_lipschitz_constant(self) -> None:
        """At parameters near and far the norm is at most sqrt 2, and comes within 1 % of it where a wrong class is
        certain: the constant is one that binds."""
        theta = (
            torch.randn(500, CLASSES, WIDTH, generator=torch.Generator().manual_seed(1))
            * torch.logspace(-1, 3, 500)[:, None, None]
        )
        norms = one_record().evaluate(theta).gradient.flatten(1).norm(dim=1)
        assert float(norms.max()) <= LIPSCHITZ * (1 + 1e-5)
        assert float(norms.max()) > 0.99 * LIPSCHITZ

    def test_the_bound_is_attained(self) -> None:
        """Where a record's class is all but impossible, adding it moves the posterior by as much as the theorem allows:
        draws with and without it, by the sampler, are told apart at the AUC Phi(mu / sqrt 2) of mu = w L tau, within
        four standard errors (level 1e-4). A claim that took the Lipschitz constant for 1 would be refuted."""
        w, tau, draws = 1.0, 0.8, 8000
        offset = torch.tensor([-60.0, 0.0, -60.0])  # class 1 is certain, the record is of class 0
        told = []
        for present in (0.0, w):
            target = SoftmaxPosterior(
                torch.full((1, WIDTH), 1 / math.sqrt(WIDTH)),
                torch.tensor([0]),
                torch.zeros(CLASSES, WIDTH),
                tau,
                weights=torch.tensor([present]),
                offset=offset,
            )
            theta = hmc.sample(
                target, target.prior_mean, hmc.SamplerConfig(warm_up=20), draws=1, chains=draws, purpose=f"{present}"
            ).theta
            scores = theta @ torch.full((WIDTH,), 1 / math.sqrt(WIDTH))
            told.append((scores[:, 0] - scores[:, 1]).numpy())
        auc = stats.mannwhitneyu(told[1], told[0]).statistic / draws**2
        error = math.sqrt(1 / (6 * draws))  # of an AUC between groups of this size, at most about this
        assert abs(auc - stats.norm.cdf(w * LIPSCHITZ * tau / math.sqrt(2))) < 4 * error
        assert auc > stats.norm.cdf(w * 1.0 * tau / math.sqrt(2)) + 4 * error

    @pytest.mark.parametrize("w", [0.5, 1.0, 3.0])
    def test_the_claim_is_the_gaussians(self, w: float) -> None:
        """Release and draw together are mu-GDP with mu^2 the sum of theirs; epsilon by the closed form of Balle and
        Wang 2018, theorem 8, within 0.5 %. More weight on the likelihood leaves a narrower prior at the same cost."""
        plan = FormalPosterior(likelihood_weight=w).plan(TASK)
        event = plan.event
        assert isinstance(event, FormalPosteriorEvent)
        mu = math.hypot(1 / event.release.noise_multiplier, w * math.sqrt(2) * event.prior_std)

        def delta(epsilon: float) -> float:
            upper = stats.norm.cdf(mu / 2 - epsilon / mu)
            return float(upper - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu))

        wanted = brentq(lambda epsilon: delta(epsilon) - 1e-4, 0.1, 30)
        stated = claim(event, delta=1e-4)
        assert stated.epsilon == pytest.approx(wanted, rel=0.005)
        assert stated.guarantee_kind == "formal"
        assert "conditional on exact sampling" in " ".join(stated.assumptions)

    @pytest.mark.parametrize(("factor", "accepted"), [(1.0, True), (2 / 3, False), (1.5, False)])
    def test_the_release_before_the_draw(self, factor: float, accepted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        """A record far out moves mean and counts by no more than the event's sensitivity and nearly as much, and the
        noise has the event's scale (chi-square at level 1e-6; not 2/3 or 3/2 of it)."""
        classes, seen = 400, noisy_sums(monkeypatch)
        given = records()
        assert isinstance(given.inputs, FeatureInputs)
        features = given.inputs.features.clone()
        features[0] *= 1000
        plan = FormalPosterior().plan(TASK)
        assert isinstance(plan.event, FormalPosteriorEvent)
        mechanism, release = plan.mechanism, plan.event.release
        assert isinstance(mechanism, FormalPosterior)
        for kept in (slice(0, None), slice(1, None)):
            mechanism._release(release, features[kept], given.labels[kept], Fields((classes,)), SecretStream(KEY))
        (whole, z, _), (without, _, _) = seen["mean and counts"]
        assert 0.999 * release.l2_sensitivity < float((whole - without).norm()) <= release.l2_sensitivity * (1 + 1e-4)
        std = factor * release.noise_multiplier * release.l2_sensitivity
        assert (scale_p_value(z, std=std) > 1e-6) == accepted

    def test_the_released_head_is_the_sampled_function(self, tmp_path: Path) -> None:
        """On features that the clip leaves alone, the head's scores are theta z + b of the draw and the release."""
        mechanism = FormalPosterior(feature_clip_norm=50.0)
        plan = mechanism.plan(TASK)
        fitted = plan.fit(records(), run(tmp_path))
        assert isinstance(fitted.model, ClassifierModel)
        assert isinstance(plan.event, FormalPosteriorEvent)
        settled = plan.mechanism
        assert isinstance(settled, FormalPosterior)
        x = torch.randn(7, WIDTH)
        vector = hmc.checkpoint.load(tmp_path / "release.safetensors")[0]["vector"]
        mean, bias = settled._centre(vector, N, Fields((CLASSES,)))
        theta = hmc.checkpoint.load(tmp_path / "formal posterior.safetensors")[0]["theta"][0]
        wanted = ((x - mean) / 50.0) @ theta.T + bias
        found = fitted.model.classifier.predict(FeatureInputs(x))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)

    def test_an_audit_holds_it_against_its_gaussians(self) -> None:
        """The curve that guesses are held against is the claim's own, at half of the noise twice as wide; a plan at
        that noise fits, so that an audit can show what it would have said of it."""
        plan = FormalPosterior().plan(TASK)
        event = plan.event
        assert isinstance(event, FormalPosteriorEvent)
        tested = event_to_test(event)
        assert tested is not None
        whole, half = curves.curve_of(tested), curves.curve_of(tested, factor=0.5)
        assert isinstance(whole, curves.Gaussian)
        assert isinstance(half, curves.Gaussian)
        assert whole.epsilon(1e-4) == pytest.approx(claim(event, delta=1e-4).epsilon, rel=0.005)
        halved = noise_scaled(event, 0.5)
        assert isinstance(halved, FormalPosteriorEvent)
        drawn = curves.curve_of(halved.gaussian)
        assert isinstance(drawn, curves.Gaussian)
        assert drawn.mu == pytest.approx(half.mu) == pytest.approx(2 * whole.mu)
        assert plan.model_copy(update={"noise_factor": 0.5}).fit(records(), run()).event == halved


class TestBounded:
    def test_a_records_score_is_within_the_bound(self) -> None:
        """At all parameters, near it where the class is all but impossible."""
        target = one_record(bounded=BoundedLikelihood(bound=1.5))
        theta = 10.0 ** torch.linspace(-2, 4, 200)[:, None, None] * torch.randn(200, CLASSES, WIDTH)
        score = target.evaluate(theta).potential - (theta.double() / 1e9).square().sum((1, 2)) / 2
        assert -1e-9 <= float(score.min()) <= float(score.max()) <= 1.5 + 1e-9
        assert float(score.max()) > 1.49

    def test_the_claim(self) -> None:
        """2B for replacing a record, B for adding or removing one, delta 0 whatever is asked for, times a unit's m."""
        event = BoundedPosterior().plan(TASK).event
        for m in (1, 3):
            stated = claim(event, delta=1e-4, m=m)
            assert (stated.epsilon, stated.epsilon_add_remove, stated.delta) == (4.0 * m, 2.0 * m, 0.0)
            assert stated.neighbouring_relation == "replace-one"
            assert stated.guarantee_kind == "formal"
        assert event is not None
        again = claim_of(event, delta=0.0, privacy_unit="record", max_records_per_unit=1, unprotected_inputs=("n",))
        assert again == claim(event, delta=1e-4)

    def test_it_needs_a_target(self) -> None:
        """The bound is half of one."""
        with pytest.raises(MechanismError, match="needs a target epsilon"):
            BoundedPosterior().plan(TASK.model_copy(update={"target_epsilon": None}))


class TestExact:
    CONFIG = PseudoPosteriorConfig(risk_draws=5, sensitivity_draws=5)

    @pytest.mark.parametrize("last", ["base", "weighted", "reweighted"])
    def test_its_rounds_are_those_of_swag_ppm(self, last: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """The same fits on the same weights: every round's weights come from the draws of the one before, Delta is the
        last one's, and no draw looked at, the released one among them, exceeds it."""
        given: list[tuple[Tensor | None, Tensor]] = []
        look = exact_posterior.risk_pass

        def seen(drawn: hmc.Draws, weights: Tensor | None) -> object:
            result = look(drawn, weights)
            given.append((weights, result.risk))
            return result

        monkeypatch.setattr(exact_posterior, "risk_pass", seen)
        mechanism = ExactPosterior.model_validate({"round": last, "pseudo_posterior": self.CONFIG})
        fitted = mechanism.plan(TASK).fit(records(), run())
        assert len(given) == len(rounds.ROUNDS[last])
        assert given[0][0] is None
        for name, (weights, _), (before, risk) in zip(rounds.ROUNDS[last][1:], given[1:], given, strict=False):
            wanted = risks.weights_of(self.CONFIG, name, before, risk)
            assert weights is not None
            assert torch.equal(weights, wanted)
        event = fitted.event
        assert isinstance(event, ExactPosteriorEvent)
        assert event.risk_weights == (last != "base")
        alpha, scores = given[-1][0], fitted.model.log_probabilities(records().inputs)
        loss = -scores.gather(1, records().labels[:, None])[:, 0]
        assert float((loss if alpha is None else alpha * loss).max()) <= event.sensitivity * (1 + 1e-5)
        assert claim(event).epsilon == 2 * event.sensitivity

    def test_the_claim_has_no_delta(self) -> None:
        """It is asymptotic, as SWAG-PPM's."""
        event = ExactPosteriorEvent(round="weighted", prior_std=1, sensitivity_draws=500, sensitivity=2.5)
        stated = claim(event, m=2)
        assert (stated.guarantee_kind, stated.epsilon, stated.epsilon_add_remove) == ("asymptotic-local", 10.0, 5.0)
        with pytest.raises(MechanismError, match="Leave delta out"):
            claim(event, delta=1e-4)
