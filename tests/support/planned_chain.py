"""A plan of a finished chain, for tests that try to release other than it says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tasks.parameters import RetrainParameters
    from tasks.releasing.plan import PlannedRelease
    from tasks.running.stage import Context

SMALL = {"epochs": 2, "batch_size": 64}


@pytest.fixture(scope="module")
def chosen(
    tiny_roberta: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Context, RetrainParameters]:
    """A workspace, and the settings of a small training run in it."""
    from storage.demo_data import write_demo_data
    from tasks.parameters import RetrainParameters
    from tasks.running.stage import Context

    home = tmp_path_factory.mktemp("made")
    written = write_demo_data(home / "source", records=240, seed=3)
    context = Context(home=str(home / "home"), device="cpu")
    context.workspace.create()
    return context, RetrainParameters.model_validate(
        {
            "data": {
                "source": str(written.csv),
                "codelist": str(written.codelist),
                "population": "demo",
                "ingest": {},
            },
            "model": {
                "encoder": str(tiny_roberta),
                "trainable": "head",
                "pooling": "mean",
                "max_length": 32,
            },
            "method": {
                "name": "swag-ppm-reweighted",
                "fine_tune": {"optimiser": "adamw", "learning_rate": 0.01, **SMALL},
                "collect": {"optimiser": "sgd", "learning_rate": 0.05, **SMALL},
                "moments": {"rank": 2},
                "pseudo_posterior": {"risk_draws": 5, "sensitivity_draws": 5},
            },
        }
    )


@pytest.fixture(scope="module")
def made(chosen: tuple[Context, RetrainParameters]) -> tuple[Context, PlannedRelease]:
    """The plan of a finished chain, and its workspace."""
    from tasks.releasing import publish
    from tasks.releasing.plan import PlannedRelease

    context, parameters = chosen
    planned = planned_chain(context, parameters)
    case = publish.save_plan(context, planned, parameters.release)
    kept = case.planned
    assert PlannedRelease.load(case.file) == kept
    kept.check(context)
    return context, kept


def planned_chain(context: Context, parameters: RetrainParameters) -> PlannedRelease:
    """Run the chain; its last round, planned under no ledger yet."""
    import tiny_jobs

    return tiny_jobs.planned(context, parameters, tiny_jobs.fitted(context, parameters))


def nothing_charged(context: Context, planned: PlannedRelease | None = None) -> bool:
    """No release, of this plan if there is one, is in the ledger, in whatever state."""
    from tasks.parameters import BundleParameters
    from tasks.releasing import ledger_access

    return not [
        row
        for row in ledger_access.open_ledger(context, BundleParameters()).releases()
        if planned is None or row.plan.idempotency_key == planned.plan.idempotency_key
    ]
