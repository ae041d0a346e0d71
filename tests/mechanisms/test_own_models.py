"""One call for a module of one's own: it runs, claims and adds noise as the pipeline's branch does."""

from __future__ import annotations

import copy
from typing import Any

import own_modules
import pytest
import torch
from pydantic import ValidationError
from small_heads import KEY, head_of, scale_p_value
from torch import Tensor, nn

from mechanisms import estimator, own_models
from mechanisms.dp_sgd import DpSgd
from mechanisms.errors import MechanismError
from mechanisms.mechanism import Records, Run, Task
from mechanisms.model.config import OptimiserPhase
from mechanisms.model.inputs import FeatureInputs
from mechanisms.own_models import Private, dp_sgd, swag_ppm
from mechanisms.posterior import risks
from mechanisms.posterior.config import PseudoPosteriorConfig, SwagConfig
from mechanisms.privacy.claims import claim_of
from mechanisms.privacy.events import Claim, DpSgdEvent, Event, SwagPpmEvent
from mechanisms.swag_ppm import SwagPpm

CE = nn.functional.cross_entropy
QUICK: dict[str, Any] = {
    "fine_tune": OptimiserPhase(optimiser="adamw", learning_rate=0.01, epochs=2, batch_size=8),
    "collect": OptimiserPhase(optimiser="sgd", learning_rate=0.05, epochs=3, batch_size=8),
    "moments": SwagConfig(rank=2),
}


def said_by(event: Event, delta: float | None, m: int = 1) -> Claim:
    return claim_of(event, delta=delta, privacy_unit="record", max_records_per_unit=m, unprotected_inputs=())


def same(claim: Claim, branch: Claim) -> bool:
    """All of a claim but the one line that only a given model needs."""
    assert [line for line in claim.assumptions if line not in branch.assumptions] == [
        f"public, read without cost: {own_models._PUBLIC}"
    ]
    return claim.model_copy(update={"assumptions": branch.assumptions}) == branch


@pytest.mark.parametrize(("m", "batch"), [(1, 20), (2, 60)])
def test_the_same_run_and_claim_as_the_branch(m: int, batch: int) -> None:
    """DP-SGD of a linear layer, by the call and by the mechanism: the same event, claim and, with one key, parameters,
    bit for bit; the claim is formal, of add/remove neighbours, and of the unit."""
    module, x, y = own_modules.made("linear", 60)
    branch = DpSgd(target_epsilon=4, delta=1e-5, epochs=3, batch_size=batch)
    plan = branch.plan(Task(records=60, classes=3, records_per_unit=m, features=x.shape[1]))
    run = Run(classes=3, seed=9, classifier=lambda: head_of(copy.deepcopy(module)), key=KEY)
    fitted = plan.fit(Records(FeatureInputs(x), y), run)
    private = dp_sgd(
        module, CE, (x, y), target_epsilon=4, delta=1e-5, epochs=3, batch_size=batch, records_per_unit=m, key=KEY
    )
    assert private.event == fitted.event == plan.event
    assert same(private.claim, said_by(fitted.event, 1e-5, m))
    claim = private.claim
    assert (claim.guarantee_kind, claim.neighbouring_relation, claim.delta) == ("formal", "add-remove", 1e-5)
    assert (claim.privacy_unit, claim.max_records_per_unit) == ("record", m)
    assert claim.epsilon is not None
    assert 3.9 < claim.epsilon <= 4
    said = fitted.model.log_probabilities(FeatureInputs(x))
    assert torch.equal(private.model(x).double().log_softmax(-1), said)


@pytest.mark.parametrize("name", ["convolutional", "attention", "layered"])
def test_every_way_to_gradients_claims_what_the_branch_does(name: str) -> None:
    """The claim is of noise, sampling and steps, and of no layer."""
    module, x, y = own_modules.made(name, 40)
    private = dp_sgd(module, CE, (x, y), target_epsilon=2, delta=1e-4, epochs=2, batch_size=10)
    plan = DpSgd(target_epsilon=2, delta=1e-4, epochs=2, batch_size=10).plan(Task(records=40, classes=3))
    assert private.event == plan.event
    assert plan.event is not None
    assert same(private.claim, said_by(plan.event, 1e-4))
    assert private.figures["steps"] == 8


def nothing(output: Tensor, target: Tensor) -> Tensor:
    """A loss without a gradient."""
    return 0 * output.sum()


@pytest.mark.parametrize("name", ["convolutional", "layered"])
@pytest.mark.parametrize(("factor", "accepted"), [(1.0, True), (2 / 3, False), (1.5, False)])
def test_the_noise_has_the_claimed_scale(name: str, factor: float, accepted: bool) -> None:
    """Where no record has a gradient, one step of SGD at rate 1 moves the parameters by sigma C z / L alone, with sigma
    the event's. A chi-square test at level 1e-6 (its false-alarm rate with a fresh key) accepts that and rejects two
    thirds and three halves of it, on the 350 (97) parameters of a module by `torch.func` (by ghost clipping), 12 steps
    of it."""
    module, x, y = own_modules.made(name, 30)
    before = torch.cat([p.detach().flatten() for p in module.parameters()])
    how: dict[str, Any] = {"optimiser": "sgd", "learning_rate": 1.0, "epochs": 12, "batch_size": 30, "key": KEY}
    private = dp_sgd(module, nothing, (x, y), target_epsilon=3, l2_clip_norm=0.7, **how)
    assert isinstance(private.event, DpSgdEvent)
    (segment,) = private.event.segments
    assert (segment.steps, segment.l2_clip_norm) == (12, 0.7)
    moved = torch.cat([p.detach().flatten() for p in private.model.parameters()]) - before
    std = segment.noise_multiplier * 0.7 / 30 * 12**0.5
    assert (scale_p_value(moved, std=factor * std) > 1e-6) == accepted


def test_no_seed_and_the_given_model_as_it_was() -> None:
    """Two calls differ in every parameter, however torch is seeded; what was given is not written to, and what comes
    back is in evaluation mode and can be saved."""
    module, x, y = own_modules.made("convolutional", 20)
    given = copy.deepcopy(module.state_dict())
    ends = []
    for _ in range(2):
        torch.manual_seed(0)
        private = dp_sgd(module, CE, (x, y), target_epsilon=5, epochs=1, batch_size=20, optimiser="sgd")
        ends.append(torch.cat([p.detach().flatten() for p in private.model.parameters()]))
        assert not private.model.training
        assert all(p.untyped_storage().nbytes() == p.nbytes for p in private.model.parameters()), "no views"
    assert not torch.any(ends[0] == ends[1])
    assert module.training
    assert all(torch.equal(value, given[name]) for name, value in module.state_dict().items())


def test_nothing_that_training_left_in_the_module_comes_back() -> None:
    """A module that keeps what it last saw hands no record on."""

    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)
            self.kept: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            self.kept = x
            return self.linear(x)

    x, y = torch.randn(20, 6), torch.arange(20) % 3
    for private in (
        dp_sgd(Keeping(), CE, (x, y), target_epsilon=5, epochs=1),
        swag_ppm(Keeping(), CE, (x, y), draws=3, **QUICK),
    ):
        assert isinstance(private.model, Keeping)
        assert private.model.kept is None


def swag_branch(module: nn.Module, x: Tensor, y: Tensor, *, draws: int, **how: Any) -> Any:
    """The mechanism at the call's settings, on a classifier of the pipeline."""
    config = PseudoPosteriorConfig(risk_draws=draws, sensitivity_draws=draws)
    branch = SwagPpm(pseudo_posterior=config, **QUICK, **how)
    plan = branch.plan(Task(records=len(x), classes=3, target_epsilon=4.0 if branch.has_target else None))
    run = Run(classes=3, seed=3, classifier=lambda: head_of(copy.deepcopy(module)), key=KEY)
    return plan.fit(Records(FeatureInputs(x), y), run)


@pytest.mark.parametrize("round_name", ["weighted", "reweighted"])
@pytest.mark.parametrize("name", ["linear", "layered"])
def test_a_draw_claims_what_the_branch_does(name: str, round_name: Any) -> None:
    """The same Delta over the same draws; the released draw, which nobody can repeat, may raise it and does not lower
    it. The kind is asymptotic-local, without a delta."""
    module, x, y = own_modules.made(name, 45)
    fitted = swag_branch(module, x, y, draws=7, round=round_name)
    private = swag_ppm(module, CE, (x, y), draws=7, round=round_name, seed=3, **QUICK)
    figures, event = private.figures, private.event
    assert figures["sensitivity"] == fitted.figures["sensitivity"]
    assert isinstance(event, SwagPpmEvent)
    assert event.sensitivity == max(figures["sensitivity"], figures["sensitivity_at_draw"])
    assert event == fitted.event.model_copy(update={"sensitivity": event.sensitivity})
    assert same(private.claim, said_by(event, None))
    assert private.claim.epsilon == 2 * event.sensitivity
    assert (private.claim.guarantee_kind, private.claim.delta) == ("asymptotic-local", None)
    assert private.claim.mc_failure_prob == pytest.approx(1 / 8)


def test_delta_is_measured_at_the_draw_with_the_risk_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a draw twenty standard deviations out the loss of some record is larger than at any that was measured: the
    claim follows it, and is max alpha |l| of the model that came out, by hand."""
    module, x, y = own_modules.made("attention", 45)
    kept: list[Tensor] = []
    real = risks.at_draw

    def spied(*args: Any, weights: Tensor) -> float:
        kept.append(weights)
        return real(*args, weights=weights)

    monkeypatch.setattr(risks, "at_draw", spied)
    monkeypatch.setattr(estimator, "system_normal", lambda out: out.normal_().mul_(20))
    private = swag_ppm(module, CE, (x, y), draws=4, **QUICK)
    with torch.no_grad():
        by_hand = float((kept[0] * CE(private.model(x), y, reduction="none")).max())
    assert by_hand > private.figures["sensitivity"]
    assert private.claim.sensitivity == pytest.approx(by_hand, rel=1e-4)


def test_two_draws_differ_and_are_of_the_systems_entropy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same seed gives the same posterior; the draw of it has none, and is as wide as the posterior."""
    module, x, y = own_modules.made("linear", 45)
    first, second = (swag_ppm(module, CE, (x, y), draws=3, seed=3, **QUICK) for _ in range(2))
    assert first.figures["sensitivity"] == second.figures["sensitivity"]
    ours, theirs = (torch.cat([p.flatten() for p in found.model.parameters()]) for found in (first, second))
    assert not torch.any(ours == theirs)
    monkeypatch.setattr(estimator, "system_normal", lambda out: out.zero_())
    mean = swag_ppm(module, CE, (x, y), draws=3, seed=3, **QUICK)
    assert mean.figures["sensitivity_at_draw"] != first.figures["sensitivity_at_draw"]


def test_another_loss_says_that_it_is_one() -> None:
    """A claim of exp(-loss) has a line for it; one that is below zero is no likelihood, and is refused."""
    module, x, y = own_modules.made("linear", 45)

    def brier(output: Tensor, target: Tensor) -> Tensor:
        return (output.softmax(-1) - (target[:, None] == torch.arange(3)).float()).square().sum()

    private = swag_ppm(module, brier, (x, y), draws=3, **QUICK)
    assert own_models._GIBBS in private.claim.assumptions
    assert 0 < private.figures["sensitivity"] <= 2, "the largest that this loss can be"
    with pytest.raises(MechanismError, match="below 0 for some records"):
        swag_ppm(module, lambda output, target: brier(output, target) - 1, (x, y), draws=3, **QUICK)


def test_a_regression_learns() -> None:
    """Nothing here needs classes: real targets, a loss of squares, hardly any noise."""
    torch.manual_seed(0)
    x = torch.randn(200, 4)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5], [0.0]])
    how: dict[str, Any] = {"epochs": 100, "batch_size": 200, "learning_rate": 0.1, "l2_clip_norm": 5.0}
    private = dp_sgd(nn.Linear(4, 1), nn.functional.mse_loss, (x, y), target_epsilon=20, **how)
    with torch.no_grad():
        assert nn.functional.mse_loss(private.model(x), y) < 0.1 * y.var()
    assert isinstance(private, Private)


def test_a_checkpoint_goes_on(tmp_path: Any) -> None:
    """A folder that holds a finished run is not trained in again."""
    module, x, y = own_modules.made("layered", 30)
    first, again = (
        dp_sgd(module, CE, (x, y), target_epsilon=5, epochs=2, batch_size=30, folder=tmp_path) for _ in range(2)
    )
    assert all(map(torch.equal, first.model.parameters(), again.model.parameters()))


@pytest.mark.parametrize(
    ("call", "how", "said"),
    [
        (dp_sgd, {"target_epsilon": 5.0, "batch_size": 31}, "batch_size is 31, larger than the data"),
        (dp_sgd, {"target_epsilon": 1e-9}, "no noise multiplier"),
        (dp_sgd, {"target_epsilon": 5.0, "delta": 1.0}, "delta"),
        (dp_sgd, {"target_epsilon": 5.0, "learning_rate": -1.0}, "learning_rate"),
        (dp_sgd, {"target_epsilon": 5.0, "momentum": 0.9}, "momentum goes with optimiser `sgd`"),
        (swag_ppm, {"draws": 0}, "risk_draws"),
    ],
)
def test_a_setting_is_refused_by_name(call: Any, how: dict[str, Any], said: str) -> None:
    module, x, y = own_modules.made("linear", 30)
    with pytest.raises((MechanismError, ValidationError), match=said):
        call(module, CE, (x, y), **how)


def test_batch_normalisation_is_refused_by_both() -> None:
    module = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
    for call in (lambda *a: dp_sgd(*a, target_epsilon=5.0), swag_ppm):
        with pytest.raises(MechanismError, match="mixes records"):
            call(module, CE, (torch.randn(8, 6), torch.arange(8) % 3))
