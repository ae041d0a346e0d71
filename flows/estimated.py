"""Runs SWAG-PPM as published from a form of its own: its epsilon is estimated, and a policy must allow that."""

from __future__ import annotations

from typing import Annotated

from flows.retrain import RetrainResult, run_form
from flows.server.form import RecordsForm, with_title
from tasks.running.flow_run import job


@job(
    name="retrain",
    description="SWAG-PPM: one private draw, whose epsilon is an estimate and is measured. The plan is audited, then "
    "approved and released.",
    flow_run_name="{parameters.population}, SWAG-PPM",
)
def retrain(parameters: Annotated[RecordsForm, with_title("Records")]) -> RetrainResult:
    """Run the published method; finished stages are reused.

    Args:
        parameters: records, code list, columns and population; the rest as YAML.
    """
    return run_form(parameters)
