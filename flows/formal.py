"""Runs a formal retrain from a form of its own, in which nothing of anybody's records is filled in."""

from __future__ import annotations

from typing import Annotated

from flows.retrain import RetrainResult, run_form
from flows.server.form import FormalForm, with_title
from tasks.running.flow_run import job


@job(
    name="retrain",
    description="Train on your own records with a formal guarantee, and plan the release. The plan is audited, then "
    "approved and released.",
    flow_run_name="{parameters.population}, formal ε {parameters.target_epsilon}",
)
def retrain(parameters: Annotated[FormalForm, with_title("Records and epsilon")]) -> RetrainResult:
    """Run the formal method; finished stages are reused.

    Args:
        parameters: records, code list, columns, population and epsilon; the rest as YAML.
    """
    return run_form(parameters)
