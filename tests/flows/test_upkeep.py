"""What is asked of the server and told by it: dead runs taken up, answers kept, shards taken back, runs counted.

And the nightly check of the ledger, called as its deployment calls it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa
from in_process import command
from jobs import Job, prefect_server
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import StateType
from prefect.exceptions import Pause
from prefect.flow_engine import run_flow
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Crashed, Late, Running, Suspended

from flows.housekeeping import housekeeping
from flows.ledger_verify import ledger_verify
from flows.release import release
from flows.server.waiting import answer, overview, waiting_releases
from storage.errors import StorageError
from storage.ledger import Ledger, Policy
from storage.paths import Workspace
from tasks.running.shard_runs import ShardRuns


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that nobody else uses: these tests look at all that it has."""
    with prefect_server(tmp_path_factory.mktemp("upkeep")) as url:
        yield url


@pytest.fixture
def client(own_server: str) -> Iterator[SyncPrefectClient]:
    """The server's client, which is this process's server too."""
    with temporary_settings({PREFECT_API_URL: own_server}), get_client(sync_client=True) as client:
        yield client


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


def test_releases_at_work_are_taken_up_after_their_time_and_waiting_ones_never(
    client: SyncPrefectClient, tmp_path: Path
) -> None:
    """Rule `zombies` leaves releases to housekeeping; of retrains only a crashed one is its business."""
    Workspace(tmp_path / "home").create()
    runs = {}
    for flow in ("release", "retrain"):
        deployment = client.create_deployment(client.create_flow_from_name(flow), name="own")
        for state in (Running(), Suspended(timeout_seconds=3600), Crashed()):
            runs[flow, state.name] = client.create_flow_run_from_deployment(deployment, state=state).id
    assert set(housekeeping.fn(home=str(tmp_path / "home")).resumed) == {
        client.read_flow_run(runs[flow, "Crashed"]).name for flow in ("release", "retrain")
    }, "an hour has not passed"
    resumed = housekeeping.fn(home=str(tmp_path / "home"), release_minutes=0).resumed
    assert resumed == (client.read_flow_run(runs["release", "Running"]).name,)
    states = {key: client.read_flow_run(run).state_name for key, run in runs.items()}
    assert states == {
        ("release", "Running"): "AwaitingRetry",
        ("release", "Suspended"): "Suspended",
        ("release", "Crashed"): "AwaitingRetry",
        ("retrain", "Running"): "Running",
        ("retrain", "Suspended"): "Suspended",
        ("retrain", "Crashed"): "AwaitingRetry",
    }


def test_crashes_between_question_and_answer_lose_neither(
    client: SyncPrefectClient, own_server: str, site: tuple[Job, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefect forgets that it asked when a run that crashed is taken up; the answer that came counts all the same.

    A run that is suspended in earnest, answered and taken up by housekeeping: once when the answer was there and not
    read, once before there was an answer.
    """
    job, plan = site
    parameters = {"plan": plan, "home": str(job.home), "device": "cpu"}
    deployment = client.create_deployment(client.create_flow_from_name("release"), name="release")
    run = client.create_flow_run_from_deployment(deployment, parameters=parameters).id

    def go_on() -> str | None:
        with suppress(Pause):
            run_flow(release, flow_run=client.read_flow_run(run), parameters=parameters, return_type="state")
        return client.read_flow_run(run).state_name

    def crash() -> None:
        client.set_flow_run_state(run, Crashed(), force=True)
        assert housekeeping.fn(home=str(job.home)).resumed

    def signed(name: str) -> str:
        key = str(tmp_path / name / "signing-key.pem")
        return command("approve", plan, "--key", key, "--print").strip()

    def asked() -> set[str]:
        return {entry.key for entry in client.filter_flow_run_input(run, "", limit=20, exclude_keys=set())}

    assert go_on() == "Suspended"
    answer(str(run), signed("officer"))
    crash()
    assert go_on() == "Suspended", "the first answer counted, the second is asked for"
    crash()
    assert go_on() == "Suspended", "asked anew"
    assert {key for key in asked() if key.endswith("schema")} == {
        f"suspended-decision-{number}-schema" for number in (1, 2, 3)
    }
    copy = tmp_path / "elsewhere" / Path(plan).name
    copy.parent.mkdir()
    copy.write_bytes(Path(plan).read_bytes())
    monkeypatch.setenv("PREFECT_API_URL", own_server)
    key = str(tmp_path / "director" / "signing-key.pem")
    assert str(run) in command("approve", str(copy), "--key", key, "--post"), "from a copy of the plan"
    assert go_on() == "Completed"
    (row,) = [row for row in Ledger.open(Workspace(job.home).ledger_url).current() if row.kind == "release"]
    assert row.state == "committed"
    assert len(row.approvals) == 2


def test_what_is_taken_back_is_cancelled_by_the_server(client: SyncPrefectClient) -> None:
    """At once what has not begun, by its worker what runs; a run that nobody took back goes on; in several requests."""
    deployment = client.create_deployment(client.create_flow_from_name("risk-shard"), "risk-shard")
    states = [Running(), *[None] * 60]
    made = [client.create_flow_run_from_deployment(deployment, state=state) for state in states]
    ids = [str(run.id) for run in made]
    runs = ShardRuns(client, deployment, {})
    runs.cancel(ids[:-1])
    seen = runs.states(ids)
    expected = [StateType.CANCELLING, *[StateType.CANCELLED] * 59, StateType.SCHEDULED]
    assert [seen[run][0] for run in ids] == expected


def test_every_run_is_counted_and_the_oldest_waits_first(client: SyncPrefectClient) -> None:
    """More runs than the server gives at once."""
    waited, before = [run.id for run in waiting_releases()], overview()["runs"]
    for _ in range(205):
        client.create_flow_run(release, state=Crashed())
    made = [str(client.create_flow_run(release, state=Suspended(timeout_seconds=3600)).id) for _ in range(8)]
    assert [run.id for run in waiting_releases()] == waited + made
    found = overview()
    gained = {"Crashed": 205, "Suspended": 8}
    assert found["runs"] == before | {state: before.get(state, 0) + number for state, number in gained.items()}
    assert [run["id"] for run in found["waiting"]] == waited + made


def test_a_pool_needs_a_worker_once_runs_are_late(client: SyncPrefectClient) -> None:
    """`gpu` of a house without a card is no alarm; runs that wait for a worker are one, until it is there."""
    client.create_work_pool(WorkPoolCreate(name="idle", type="process"))
    assert "idle" not in overview()["unserved"]
    flow = client.create_flow_from_name("late")
    deployment = client.create_deployment(flow, name="late", work_pool_name="idle")
    client.create_flow_run_from_deployment(deployment, state=Late(scheduled_time=datetime.now(UTC)))
    found = overview()
    assert (found["workers"]["idle"], "idle" in found["unserved"]) == (0, True)
    client.send_worker_heartbeat("idle", "one", heartbeat_interval_seconds=30)
    found = overview()
    assert (found["workers"]["idle"], "idle" in found["unserved"]) == (1, False)
