"""A target epsilon through the real chain: settings found, fits reused and recorded; the claim says
it was tuned.
"""

from pathlib import Path
from typing import Any

import pytest
import tiny_jobs

from storage.artifacts import ArtifactRef
from storage.ledger import Row
from tasks.branches import search
from tasks.branches.swag_chain import run_chain
from tasks.parameters import RetrainParameters
from tasks.releasing.claims import SEARCHED, claim, release_method, swag_event
from tasks.releasing.ledger_access import open_ledger
from tasks.running.stage import Context, Step, run_step


@pytest.fixture
def parameters(tiny_roberta: Path, tmp_path: Path) -> RetrainParameters:
    """A job of seconds with a target."""
    how = {"target_epsilon": 3.0, "risk_draws": 20, "sensitivity_draws": 20}
    return tiny_jobs.retrain(
        tiny_jobs.demo(tmp_path, records=200), tiny_roberta, epochs=(2, 3), rate=0.05, **how
    )


def test_found_recorded_and_reused(parameters: RetrainParameters, tmp_path: Path) -> None:
    """The chain of the settled parameters meets the target without one new fit; each trial is a row
    with its claim.
    """
    context = tiny_jobs.workspace(tmp_path / "home")
    ran: list[str] = []

    def do(step: Step) -> ArtifactRef:
        known = step.find(context.store)
        if known is None:
            ran.append(step.label)
        return known or run_step(context, step)

    def settle() -> RetrainParameters:
        return search.meet_target(context, parameters, do)

    settled = settle()
    fits = [label for label in ran if label.startswith("fine-tune")]
    assert fits[:2] == ["fine-tune (base)", "fine-tune (weighted)"]
    assert fits.count("fine-tune (base)") == ran.count("risks") == 1, "risks do not depend on c"
    assert "evaluate" not in ran, "tuning does not look at the test half"
    ran.clear()
    made = run_chain(settled, do)
    assert ran == ["evaluate"]
    figures = context.store.figures(made.measured["reweighted"])

    def tuning_rows() -> list[Row]:
        return [
            row
            for row in open_ledger(context, parameters.release).measurements()
            if row.label.startswith("tuning")
        ]

    rows = tuning_rows()
    assert len(rows) == fits.count("fine-tune (reweighted)")
    assert all(row.state == "internal" and row.epsilon for row in rows)
    assert settle() == settled, "running again finds the same"
    assert len(tuning_rows()) == len(rows)
    event = swag_event(settled, "reweighted", {"snapshots": 3, "rank": 2}, figures)
    claimed = claim(settled, event, context.store.figures(made.dataset))
    assert 2.0 < (claimed.epsilon or 0) <= 3.0
    assert SEARCHED in claimed.unprotected_inputs


def test_method_is_the_same_before_and_after(parameters: RetrainParameters) -> None:
    """So that one target is one release, whatever settings were found; without a target c is the
    method.
    """
    config: Any = parameters.pseudo_posterior
    other = parameters.model_copy(update={"pseudo_posterior": config.model_copy(update={"c": 0.5})})
    assert release_method(parameters) == release_method(other)
    plain = [
        p.model_copy(
            update={
                "pseudo_posterior": p.pseudo_posterior.model_copy(update={"target_epsilon": None})
            }
        )
        for p in (parameters, other)
    ]
    assert release_method(plain[0]) != release_method(plain[1])


def test_without_a_target_nothing_is_fitted(parameters: RetrainParameters, tmp_path: Path) -> None:
    """The parameters come back as they are."""
    config = parameters.pseudo_posterior.model_copy(update={"target_epsilon": None})
    plain = parameters.model_copy(update={"pseudo_posterior": config})

    def never(*_: Any) -> Any:
        raise AssertionError("nothing is to be fitted")

    assert search.meet_target(Context(home=str(tmp_path)), plain, never) is plain
