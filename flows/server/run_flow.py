"""Runs a flow of a command: through Prefect where a server is named or one is started, otherwise as a function.

The stages, their locks, keys and files, and the ledger are the same either way. What only Prefect has is a record of
the run, and the page that shows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar

from flows.server.ephemeral import ephemeral_server

if TYPE_CHECKING:
    from prefect import Flow

R = TypeVar("R")
Server = Literal["none", "own"]
"""Servers of a command without PREFECT_API_URL."""


def run_flow(flow: Flow[..., R], server: Server, **parameters: Any) -> R:
    """Runs a flow with these parameters, which are checked as Prefect checks them."""
    from prefect.settings import PREFECT_API_URL

    if PREFECT_API_URL.value():
        return flow(**parameters)
    if server == "own":
        with ephemeral_server():
            return flow(**parameters)
    return flow.fn(**(flow.validate_parameters(parameters) if flow.should_validate_parameters else parameters))
