"""A target epsilon through the real chain: settings found, fits reused and recorded; the claim says
it was tuned.
"""

from pathlib import Path
from typing import Any

import pytest
import tiny_jobs

from mechanisms.swag_ppm import SwagPpm
from storage.artifacts import ArtifactRef
from storage.json_values import Config
from storage.ledger import Evaluated, SearchFit
from tasks.branches.released import find_stages
from tasks.fitting.fits import search_of
from tasks.fitting.ingest import ingest_records
from tasks.parameters import RetrainParameters
from tasks.releasing import publish
from tasks.releasing.claims import SEARCHED
from tasks.releasing.ledger_access import open_ledger
from tasks.retraining import run as retraining
from tasks.running.stage import Step, run_step


@pytest.fixture
def parameters(tiny_roberta: Path, tmp_path: Path) -> RetrainParameters:
    """A job of seconds with a target."""
    how = {"target_epsilon": 3.0, "risk_draws": 20, "sensitivity_draws": 20}
    return tiny_jobs.retrain(
        tiny_jobs.demo(tmp_path, records=200), tiny_roberta, epochs=(2, 3), rate=0.05, **how
    )


def test_found_recorded_and_reused(parameters: RetrainParameters, tmp_path: Path) -> None:
    """The fit meets the target, over the base round of any c; each fit of the search is a row with
    its claim, and running again fits nothing.
    """
    context = tiny_jobs.workspace(tmp_path / "home")
    ran: list[str] = []

    def run_known(step: Step) -> ArtifactRef:
        known = step.find(context.store)
        if known is None:
            ran.append(step.label)
        return known or run_step(context, step)

    def rows() -> list[Evaluated]:
        all_rows = open_ledger(context, parameters.release).measurements()
        return [row for row in all_rows if isinstance(row.evaluation.subject, SearchFit)]

    done = retraining.run(context, parameters, run_known)
    seed = parameters.seed
    fits = [label for label in ran if label.endswith(f", seed {seed}") and " of " not in label]
    assert fits == [f"swag-ppm-reweighted{part}, seed {seed}" for part in (": base", "")]
    found = search_of(done.planned.candidate.fitted.path)
    assert found is not None
    assert [row.evaluation.details["c"] for row in rows()] == [
        pytest.approx(trial.settings["c"]) for trial in found.trials
    ]
    assert all(row.evaluation.kind == "evaluation" and row.epsilon for row in rows())
    planned = publish.save_plan(context, done.planned, parameters.release).planned
    assert planned.selection.searched
    assert planned.selection.fits == 1 + len(found.trials), "the base round, and each trial once"
    assert SEARCHED in planned.plan.claim.unprotected_inputs
    assert 2.0 < (planned.plan.claim.epsilon or 0) <= 3.0
    ran.clear()
    before = len(rows())
    assert (
        retraining.run(context, parameters, run_known).planned.plan.event == done.planned.plan.event
    )
    assert (ran, len(rows())) == ([], before)
    ran.clear()
    plain = with_config(parameters, target_epsilon=None, c=0.5)
    retraining.run(context, plain, run_known)
    assert f"swag-ppm-reweighted: base, seed {seed}" not in ran, "it depends on no c"


def with_config(parameters: RetrainParameters, **changes: Any) -> RetrainParameters:
    """Changes of the pseudo posterior, and of the target that c is searched for."""
    swag = parameters.method.mechanism
    assert isinstance(swag, SwagPpm)
    assert swag.pseudo_posterior is not None
    target = changes.pop("target_epsilon", swag.target_epsilon)
    config = swag.pseudo_posterior.model_copy(update=changes)
    return tiny_jobs.with_settings(parameters, target_epsilon=target, pseudo_posterior=config)


def test_one_target_is_one_method(parameters: RetrainParameters, tmp_path: Path) -> None:
    """Whatever c was given; without a target c is the method."""
    context = tiny_jobs.workspace(tmp_path / "home")
    run_step(context, ingest_records(parameters.data))

    def method(**changes: Any) -> Config:
        chosen = with_config(parameters, **changes)
        return find_stages(context, chosen, lambda step: step.find(context.store))[0].method

    assert method() == method(c=0.5, g=0.1)
    assert method() != method(target_epsilon=4.0)
    assert method(target_epsilon=None) != method(target_epsilon=None, c=0.5)
