"""What the server says of runs: all of them, and those that wait in the order in which they began to."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import prefect_server
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Crashed, Suspended

from flows.server.waiting import overview, waiting_releases


@flow(name="release")
def release() -> None:
    """Stands for the flow of that name; it is not run."""


@pytest.mark.slow
def test_every_run_is_counted_and_the_oldest_waits_first(tmp_path: Path) -> None:
    """More runs than the server gives at once. Slow: it starts, and is given all of them."""
    with (
        prefect_server(tmp_path) as url,
        temporary_settings({PREFECT_API_URL: url}),
        get_client(sync_client=True) as client,
    ):
        for _ in range(205):
            client.create_flow_run(release, state=Crashed())
        made = [str(client.create_flow_run(release, state=Suspended(timeout_seconds=3600)).id) for _ in range(8)]
        assert [run.id for run in waiting_releases()] == made
        found = overview()
    assert found["runs"] == {"Crashed": 205, "Suspended": 8}
    assert [run["id"] for run in found["waiting"]] == made
