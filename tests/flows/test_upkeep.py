"""The nightly check of the ledger and the taking up of dead runs, called as their deployments call them."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa
from jobs import prefect_server
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Crashed, Running, Suspended

from flows.housekeeping import housekeeping
from flows.ledger_verify import ledger_verify
from storage.errors import StorageError
from storage.ledger import Ledger, Policy
from storage.paths import Workspace


def test_a_row_cut_off_since_the_night_before_is_found(tmp_path: Path) -> None:
    """From inside the ledger a cut tail cannot be seen; the head that the last check kept shows it."""
    workspace = Workspace(tmp_path / "home").create()
    ledger = Ledger.open(workspace.ledger_url)
    for epsilon in (5, 6, 7):
        policy = Policy.parse({"name": f"p{epsilon}", "default": {"asymptotic-local": {"epsilon": epsilon}}})
        ledger.change_policy(policy, requester="lead", reason="test")
    assert ledger_verify.fn(home=str(workspace.home)).rows == 3
    assert ledger_verify.fn(home=str(workspace.home)).sequence == 3, "again changes nothing"
    engine = sa.create_engine(workspace.ledger_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TRIGGER ledger_row_no_delete")
        connection.exec_driver_sql("DELETE FROM ledger_row WHERE sequence = 3")
    engine.dispose()
    assert Ledger.open(workspace.ledger_url).verify().ok, "the ledger alone does not tell"
    with pytest.raises(StorageError, match="row 3 missing"):
        ledger_verify.fn(home=str(workspace.home))


def test_releases_at_work_are_taken_up_after_their_time_and_waiting_ones_never(tmp_path: Path) -> None:
    """Rule `zombies` leaves releases to housekeeping; of retrains only a crashed one is its business."""
    Workspace(tmp_path / "home").create()
    with prefect_server(tmp_path) as url, temporary_settings({PREFECT_API_URL: url}), get_client(sync_client=True) as c:
        runs = {}
        for flow in ("release", "retrain"):
            deployment = c.create_deployment(c.create_flow_from_name(flow), name="own")
            for state in (Running(), Suspended(timeout_seconds=3600), Crashed()):
                runs[flow, state.name] = c.create_flow_run_from_deployment(deployment, state=state).id
        assert set(housekeeping.fn(home=str(tmp_path / "home")).resumed) == {
            c.read_flow_run(runs[flow, "Crashed"]).name for flow in ("release", "retrain")
        }, "an hour has not passed"
        resumed = housekeeping.fn(home=str(tmp_path / "home"), release_minutes=0).resumed
        assert resumed == (c.read_flow_run(runs["release", "Running"]).name,)
        states = {key: c.read_flow_run(run).state_name for key, run in runs.items()}
    assert states == {
        ("release", "Running"): "AwaitingRetry",
        ("release", "Suspended"): "Suspended",
        ("release", "Crashed"): "AwaitingRetry",
        ("retrain", "Running"): "Running",
        ("retrain", "Suspended"): "Suspended",
        ("retrain", "Crashed"): "AwaitingRetry",
    }
