"""Runs a flow of a command: through Prefect where a server is named or one is started, otherwise as a function.

The stages, their locks, keys and files, and the ledger are the same either way. What only Prefect has is a record of
the run, and the page that shows it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from flows.server.ephemeral import ephemeral_server
from tasks.running.flow_run import PlainJob

if TYPE_CHECKING:
    from prefect import Flow

R = TypeVar("R")
Server = Literal["none", "own"]
"""Servers of a command without PREFECT_API_URL."""


def run_flow(job: Flow[..., R] | PlainJob[..., R], server: Server, **parameters: Any) -> R:
    """Runs a flow with these parameters, which are checked as Prefect checks them."""
    if not _is_server_named() and server == "none":
        return job.fn(**(job.validate_parameters(parameters) if job.should_validate_parameters else parameters))
    flow: Callable[..., R] = job.flow() if isinstance(job, PlainJob) else job
    if _is_server_named():
        return flow(**parameters)
    with ephemeral_server():
        return flow(**parameters)


def _is_server_named() -> bool:
    if "prefect" not in sys.modules:  # its import takes a second
        return "PREFECT_API_URL" in os.environ
    from prefect.settings import PREFECT_API_URL

    return bool(PREFECT_API_URL.value())
