"""Runs on the stack: starting one, waiting for its states, finding its processes
and its release.
"""

import copy
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import psutil
import yaml
from stacks import Stack

from storage.ledger import Ledger, ReleaseRow

SMALL = {
    "method": {
        "fine_tune": {"epochs": 2},
        "collect": {"epochs": 4},
        "moments": {"rank": 3},
        "pseudo_posterior": {"risk_draws": 40, "sensitivity_draws": 40},
    },
}
ENDS = ("COMPLETED", "FAILED", "CANCELLED")


def with_settings(parameters: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The form with settings in its YAML text, beside those that are there."""
    form = parameters["parameters"]
    advanced = merged(yaml.safe_load(form["advanced"]), settings)
    return parameters | {
        "parameters": form | {"advanced": yaml.safe_dump(advanced, default_flow_style=True)}
    }


def merged(sections: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """Sections with the values of others in their places."""
    found = dict(sections)
    for name, value in others.items():
        found[name] = merged(found.get(name, {}), value) if isinstance(value, dict) else value
    return found


def small(stack: Stack, *, seed: int | None = None) -> dict[str, Any]:
    """The form of `retrain/demo` with small sizes; with a seed, stages and a release of its own."""
    parameters = with_settings(copy.deepcopy(stack.deployment("retrain/demo")["parameters"]), SMALL)
    if seed is None:
        return parameters
    return with_settings(parameters, {"seed": seed, "release": {"label": f"seed-{seed}"}})


def start(
    stack: Stack, name: str, parameters: dict[str, Any], *, after: float = 0.0
) -> httpx.Response:
    """What the page does when its form is sent, or the scheduler with a moment to come."""
    moment = (datetime.now(UTC) + timedelta(seconds=after)).isoformat()
    state = {"type": "SCHEDULED", "state_details": {"scheduled_time": moment}}
    path = f"/deployments/{stack.deployment(name)['id']}/create_flow_run"
    return stack.post(path, {"parameters": parameters, "state": state})


def processes_of(run: dict[str, Any]) -> list[psutil.Process]:
    """Processes that execute a run: their environment names it."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("PREFECT__FLOW_RUN_ID", "").replace("-", "") == run[
                "id"
            ].replace("-", ""):
                found.append(process)
        except psutil.Error:
            continue
    return found


def ended(stack: Stack, run_id: str) -> dict[str, Any] | None:
    """The run once it has come to an end that is none of a crash, which is resumed."""
    run = stack.run(run_id)
    return run if run["state_type"] in ENDS else None


def in_state(stack: Stack, run_id: str, state: str) -> dict[str, Any] | None:
    """The run once it is in a state; it must not fail before."""
    run = stack.run(run_id)
    assert run["state_type"] not in ("FAILED", "CANCELLED"), run["state"]
    return run if run["state_type"] == state else None


def release_run(stack: Stack, retrain_id: str) -> dict[str, Any] | None:
    """The release run that a training run asked for: its key ends with the retrain's id."""
    found = [r for r in stack.runs("release") if (r["idempotency_key"] or "").endswith(retrain_id)]
    assert len(found) <= 1, "one retrain asked for two releases"
    return found[0] if found else None


def releases(stack: Stack, *, of_run: str | None = None) -> list[ReleaseRow]:
    """Releases in the ledger, those of one training run where it is named."""
    rows = Ledger.open(stack.ledger_url()).releases()
    return [row for row in rows if of_run is None or row.plan.prefect_run_id == of_run]
