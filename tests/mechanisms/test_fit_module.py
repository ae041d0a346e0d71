"""One call for a module of one's own: it runs, claims and adds noise as the
pipeline's branch does.
"""

import copy
from typing import Any

import own_modules
import pytest
import torch
from pydantic import ValidationError
from refusals import of_kind
from small_heads import KEY, head_of
from torch import Tensor, nn

from mechanisms import estimator, fit_module
from mechanisms.errors import MechanismError
from mechanisms.fit_module import swag_ppm
from mechanisms.mechanism import Records, Run, Task
from mechanisms.model.config import OptimiserPhase
from mechanisms.model.inputs import FeatureInputs
from mechanisms.posterior import risks
from mechanisms.posterior.config import PseudoPosteriorConfig, SwagConfig
from mechanisms.privacy.claims import claim_of
from mechanisms.privacy.events import Claim, Event, SwagPpmEvent
from mechanisms.swag_ppm import SwagPpm

CE = nn.functional.cross_entropy
QUICK: dict[str, Any] = {
    "fine_tune": OptimiserPhase(optimiser="adamw", learning_rate=0.01, epochs=2, batch_size=8),
    "collect": OptimiserPhase(optimiser="sgd", learning_rate=0.05, epochs=3, batch_size=8),
    "moments": SwagConfig(rank=2),
}


def said_by(event: Event, delta: float | None, m: int = 1) -> Claim:
    return claim_of(
        event, delta=delta, privacy_unit="record", max_records_per_unit=m, unprotected_inputs=()
    )


def same(claim: Claim, branch: Claim) -> bool:
    """All of a claim but the one line that only a given model needs."""
    assert [line for line in claim.assumptions if line not in branch.assumptions] == [
        f"public, read without cost: {fit_module._PUBLIC}"
    ]
    return claim.model_copy(update={"assumptions": branch.assumptions}) == branch


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
    private = swag_ppm(Keeping(), CE, (x, y), draws=3, **QUICK)
    assert isinstance(private.model, Keeping)
    assert private.model.kept is None


def swag_branch(module: nn.Module, x: Tensor, y: Tensor, *, draws: int, **how: Any) -> Any:
    config = PseudoPosteriorConfig(risk_draws=draws, sensitivity_draws=draws)
    branch = SwagPpm(pseudo_posterior=config, **QUICK, **how)
    plan = branch.plan(
        Task(records=len(x), classes=3, target_epsilon=4.0 if branch.needs_target_epsilon else None)
    )
    run = Run(classes=3, seed=3, classifier=lambda: head_of(copy.deepcopy(module)), key=KEY)
    return plan.fit(Records(FeatureInputs(x), y), run)


@pytest.mark.parametrize("round_name", ["weighted", "reweighted"])
@pytest.mark.parametrize("name", ["linear", "layered"])
def test_a_draw_claims_what_the_branch_does(name: str, round_name: Any) -> None:
    """The same Delta over the same draws; the released draw, which no one can repeat, may raise it
    and does not lower it. The kind is asymptotic-local, without a delta.
    """
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


def test_delta_is_measured_at_the_draw_with_the_risk_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At a draw twenty standard deviations out the loss of some record is larger than at any that
    was measured: the claim follows it, and is max alpha |l| of the model that came out, manually.
    """
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
    """The same seed gives the same posterior; the draw of it has none, and is as wide as the
    posterior.
    """
    module, x, y = own_modules.made("linear", 45)
    first, second = (swag_ppm(module, CE, (x, y), draws=3, seed=3, **QUICK) for _ in range(2))
    assert first.figures["sensitivity"] == second.figures["sensitivity"]
    ours, theirs = (
        torch.cat([p.flatten() for p in found.model.parameters()]) for found in (first, second)
    )
    assert not torch.any(ours == theirs)
    monkeypatch.setattr(estimator, "system_normal", lambda out: out.zero_())
    mean = swag_ppm(module, CE, (x, y), draws=3, seed=3, **QUICK)
    assert mean.figures["sensitivity_at_draw"] != first.figures["sensitivity_at_draw"]


def test_another_loss_says_that_it_is_one() -> None:
    """A claim of exp(-loss) has a line for it; one that is below zero is no likelihood, and is
    refused.
    """
    module, x, y = own_modules.made("linear", 45)

    def brier(output: Tensor, target: Tensor) -> Tensor:
        return (output.softmax(-1) - (target[:, None] == torch.arange(3)).float()).square().sum()

    private = swag_ppm(module, brier, (x, y), draws=3, **QUICK)
    assert fit_module._GIBBS in private.claim.assumptions
    assert 0 < private.figures["sensitivity"] <= 2, "the largest that this loss can be"
    with pytest.raises(MechanismError, check=of_kind("negative-loss")):
        swag_ppm(module, lambda output, target: brier(output, target) - 1, (x, y), draws=3, **QUICK)


def test_a_setting_is_refused_by_name() -> None:
    module, x, y = own_modules.made("linear", 30)
    with pytest.raises((MechanismError, ValidationError), match="risk_draws"):
        swag_ppm(module, CE, (x, y), draws=0)


def test_the_given_model_stays_as_it_was() -> None:
    """What was given is not written to; what comes back is in evaluation mode and holds no view of
    more.
    """
    module, x, y = own_modules.made("convolutional", 20)
    given = copy.deepcopy(module.state_dict())
    private = swag_ppm(module, CE, (x, y), draws=3, **QUICK)
    assert not private.model.training
    assert all(p.untyped_storage().nbytes() == p.nbytes for p in private.model.parameters()), (
        "no views"
    )
    assert module.training
    assert all(torch.equal(value, given[name]) for name, value in module.state_dict().items())
