"""A bounded likelihood through every stage: one fit or two, a bound that no draw exceeds, a release that says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_jobs
from pydantic import ValidationError

from mechanisms.posterior import swag
from mechanisms.posterior.config import PseudoPosteriorConfig
from mechanisms.privacy.events import BoundedSwagEvent
from tasks.branches.swag_chain import run_chain
from tasks.fitting.risks import running_maximum
from tasks.releasing import publish
from tasks.releasing.plan import PlannedRelease
from tasks.running.stage import Context


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Some invented narratives with their code list."""
    return tiny_jobs.demo(tmp_path_factory.mktemp("data"), population="demo")


@pytest.mark.parametrize(("mechanism", "rounds"), [("censored", ["censored"]), ("both", ["base", "both"])])
def test_from_file_to_release(
    data: dict[str, Any], tiny_roberta: Path, tmp_path: Path, mechanism: str, rounds: list[str]
) -> None:
    """epsilon is the target, in plan, ledger and bundle; the largest |u| seen lies below the bound in every draw."""
    context = tiny_jobs.workspace(tmp_path)
    chosen = tiny_jobs.retrain(data, tiny_roberta, rate=0.05, mechanism=mechanism, target_epsilon=3.0)
    made = tiny_jobs.fitted(context, chosen)
    assert list(made.posteriors) == rounds
    last, measured = made.posteriors[mechanism], made.measured[mechanism]
    assert last
    assert measured
    figures = context.store.figures(measured)
    assert figures["sensitivity"] == 1.5
    assert 0 < figures["largest_seen"] <= 1.5
    assert running_maximum(measured.path)[-1] == pytest.approx(figures["largest_seen"])
    assert swag.load(last.path).std_scale == pytest.approx((1 / 0.75) ** 0.5), "q B = 1/2 * 3/2 is left out of training"
    planned, file = publish.save_plan(context, tiny_jobs.planned(context, chosen, made), chosen.release)
    assert PlannedRelease.load(file) == planned
    assert isinstance(planned.plan.event, BoundedSwagEvent)
    assert planned.plan.claim.epsilon == 3.0
    assert planned.plan.event.weighted == (mechanism == "both")
    assert any("alpha" in line for line in planned.plan.claim.unprotected_inputs) == (mechanism == "both")
    done = publish.release(context, planned, chosen.release)
    assert (done.epsilon, done.sensitivity) == ("3", "1.5")
    (warned,) = done.warnings
    assert "no score reached 80% or 90% or 95% accuracy on 800 generated narratives" in warned
    statement = json.loads((Path(done.bundle) / "privacy_statement.json").read_text())
    assert statement["guarantee_kind"] == "asymptotic-local"
    assert "not proven" in " ".join(statement["assumptions"])
    theta = planned.candidate.take(context)
    at_draw = planned.candidate.sensitivity_at(context, theta * 1e3)
    assert at_draw is not None
    assert 1.4 < at_draw <= 1.5, "measured in bounded nats, however far the parameters are"


def test_another_bound_is_another_fit(data: dict[str, Any], tiny_roberta: Path, tmp_path: Path) -> None:
    """The bound is part of the stages' keys; the base fit of `both` knows none and is shared."""
    context = Context(home=str(tmp_path), device="cpu")
    keys = []
    for epsilon in (3.0, 6.0):
        steps: list[tuple[str, str]] = []

        def look(step: Any, steps: list[tuple[str, str]] = steps) -> None:
            steps.append((step.label, str(step.config)))

        run_chain(tiny_jobs.retrain(data, tiny_roberta, mechanism="both", target_epsilon=epsilon), look)
        keys.append(dict(steps))
    differ = {label for label in keys[0] if keys[0][label] != keys[1][label]}
    assert differ == {"fine-tune (both)", "SWAG (both)", "sensitivity (both)"}
    assert not context.workspace.private.exists()


@pytest.mark.parametrize("mechanism", ["censored", "both"])
def test_a_bound_needs_its_epsilon(mechanism: str) -> None:
    """Refused before work, and the text says what is missing."""
    with pytest.raises(ValidationError, match="needs target_epsilon"):
        PseudoPosteriorConfig.model_validate({"mechanism": mechanism})
