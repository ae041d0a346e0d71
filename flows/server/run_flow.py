"""Runs the body of a command as a function, or in a flow run if PREFECT_API_URL is set.

Stages, their locks, keys and files, and the ledger are the same either way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TypeVar

from tasks.running.run import PLAIN, Run
from tasks.running.stage import Context

R = TypeVar("R")


def run_command(
    body: Callable[[Context], R],
    context: Context,
    *,
    name: str,
    label: str,
    parameters: Mapping[str, object],
) -> R:
    """Calls the body with the context, to which its run is added.

    Args:
        name: name of the flow, if there is a server.
        label: label of the run, such as the population.
        parameters: parameters that the run's page shows. They must not contain records.
    """

    def call(run: Run) -> R:
        return body(context.model_copy(update={"run": run}))

    if not os.environ.get("PREFECT_API_URL"):
        return call(PLAIN)
    from flows.server.prefect_run import in_flow_run

    return in_flow_run(call, name=name, label=label, home=context.home, parameters=parameters)
