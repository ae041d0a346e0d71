"""What is asked of the server and told by it: dead runs resumed, answers kept, runs counted. And
the nightly check of the ledger, called as its deployment calls it.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
import yaml
from in_process import command
from jobs import Job, environment, prefect_server
from prefect import flow, task
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate, WorkPoolCreate
from prefect.client.schemas.filters import FlowFilter, FlowRunFilter
from prefect.client.schemas.objects import State, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.events.filters import EventFilter
from prefect.events.worker import EventsWorker
from prefect.exceptions import Pause, TerminationSignal
from prefect.flow_engine import run_flow
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import (
    AwaitingRetry,
    Cancelled,
    Cancelling,
    Completed,
    Crashed,
    Late,
    Running,
    Suspended,
)
from real_workers import deployed, kill_with_worker, workers
from refusals import of_kind

from flows import deployed as deployed_flows
from flows.commands.status import _needs_a_person
from flows.deployed import release
from flows.housekeeping import housekeeping
from flows.ledger_verify import ledger_verify
from flows.server import waiting_runs
from flows.server.automations import apply_pools
from flows.server.dead_runs import HEARTBEAT_STOPPED, RESUMED, declare_dead
from flows.server.heartbeats import SECONDS, TOLD
from flows.server.prefect_run import PrefectRun
from flows.server.waiting_runs import answer, overview, waiting_releases
from flows.server.watch import SILENT_HEARTBEATS, Watch
from storage.errors import StorageError, Unavailable
from storage.ledger import Ledger, Policy
from storage.paths import Workspace
from tasks.catalogue import CATALOGUE

pytestmark = pytest.mark.servers

WEEK = timedelta(days=7)


@pytest.fixture(scope="module")
def ephemeral_server(
    tmp_path_factory: pytest.TempPathFactory, migrated: Callable[[Path], Path]
) -> Iterator[str]:
    """A server that no one else uses: these tests look at all that it has. It has events as soon as
    it got them.
    """
    at_once = {"PREFECT_SERVER_SERVICES_EVENT_PERSISTER_FLUSH_INTERVAL": "0.1"}
    folder = tmp_path_factory.mktemp("upkeep")
    migrated(folder / "server")
    with prefect_server(folder, **at_once) as url:
        EventsWorker.drain_all(
            timeout=60
        )  # a process has one sender, which stays with the server of an earlier file
        yield url


@pytest.fixture
def client(ephemeral_server: str) -> Iterator[SyncPrefectClient]:
    with (
        temporary_settings({PREFECT_API_URL: ephemeral_server}),
        get_client(sync_client=True) as client,
    ):
        yield client


def test_a_row_cut_off_since_the_night_before_is_found(tmp_path: Path) -> None:
    """From inside the ledger a cut tail cannot be seen; the head that the last
    check kept shows it.
    """
    workspace = Workspace(tmp_path / "home").create()
    ledger = Ledger.open(workspace.ledger_url)
    for epsilon in (5, 6, 7):
        policy = Policy.parse(
            {"name": f"p{epsilon}", "default": {"asymptotic-local": {"epsilon": epsilon}}}
        )
        ledger.change_policy(policy, requester="lead", reason="test")
    assert ledger_verify.fn(home=str(workspace.home)).rows == 3
    assert ledger_verify.fn(home=str(workspace.home)).sequence == 3, "again changes nothing"
    engine = sa.create_engine(workspace.ledger_url)
    with engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM ledger_row WHERE sequence = 3")
    engine.dispose()
    assert Ledger.open(workspace.ledger_url).verify().ok, "the ledger alone does not tell"
    with pytest.raises(StorageError, check=of_kind("bad-rows", saying=("row 3", "missing"))):
        ledger_verify.fn(home=str(workspace.home))


def happened(client: SyncPrefectClient, name: str, run: UUID | None = None) -> datetime:
    """Send an event, of a run or of no one; when the server received it, once it tells."""
    event = {"id": str(uuid4()), "event": name, "occurred": datetime.now(UTC).isoformat()}
    resource = {"prefect.resource.id": f"prefect.flow-run.{run}" if run else "autocoder.test"}
    client.request("POST", "/events", json=[event | {"resource": resource}])
    wanted = EventFilter.model_validate(
        {"id": {"id": [event["id"]]}, "occurred": {"until": datetime.now(UTC) + WEEK}}
    )
    while True:
        for found in client.read_events(wanted, limit=1).events:
            return datetime.fromisoformat(found.received.isoformat())
        time.sleep(0.05)


def test_releases_at_work_are_taken_up_after_their_time_and_waiting_ones_never(
    client: SyncPrefectClient, tmp_path: Path
) -> None:
    """Of what is at work housekeeping declares dead what sends no heartbeat, whether it ever sent
    one or not, and takes it up. What waits, is cancelled, was started manually or sends heartbeats
    is left alone, and so is what was declared dead after someone had stopped it.
    """
    home = str(tmp_path / "home")
    Workspace(tmp_path / "home").create()

    def made(flow: str, *states: State[Any]) -> UUID:
        deployment = client.create_deployment(client.create_flow_from_name(flow), name="own")
        run = client.create_flow_run_from_deployment(deployment, state=states[0]).id
        for state in states[1:]:
            client.set_flow_run_state(run, state)
        return run

    runs = {
        "fell silent": made("release", Running()),
        "never a word": made("retrain", Running()),
        "crashed": made("retrain", Crashed()),
        "waits": made("release", Suspended(timeout_seconds=3600)),
        "is cancelled": made("retrain", Running(), Cancelling()),
        "was cancelled": made("retrain", Running(), Cancelling(), Crashed()),
        "was suspended": made(
            "retrain", Suspended(timeout_seconds=3600), Crashed(message=HEARTBEAT_STOPPED)
        ),
        "manually": client.create_flow_run(release, state=Running()).id,
        "alive": made("retrain", Running()),
    }
    names = {client.read_flow_run(run).name: key for key, run in runs.items()}

    def states() -> dict[str, str | None]:
        return {key: client.read_flow_run(run).state_name for key, run in runs.items()}

    before = states()
    assert {names.get(name) for name in housekeeping.fn(home=home).resumed} == {"crashed"}, (
        "the others' time is to come"
    )
    before["crashed"] = "AwaitingRetry"
    assert states() == before

    last = happened(client, "prefect.flow-run.heartbeat", runs["fell silent"])
    while (
        True
    ):  # until a silence that ends now, and in which there was a noise, begins after the last word
        noise = happened(client, "autocoder.noise")
        now = happened(client, "prefect.flow-run.heartbeat", runs["alive"])
        silent = 4 * (now - noise)
        if last < now - silent:
            break
    dead = declare_dead(RESUMED, before=now - silent, age=WEEK)
    assert {names[name] for name in dead if name in names} == {"fell silent", "never a word"}
    assert {names.get(name) for name in housekeeping.fn(home=home).resumed} >= {
        "fell silent",
        "never a word",
    }
    taken_up = {"fell silent": "AwaitingRetry", "never a word": "AwaitingRetry"}
    assert states() == before | taken_up
    for run in runs.values():
        client.delete_flow_run(
            run
        )  # what the server does about them later is not for others to count


def until(client: SyncPrefectClient, run: UUID, state: StateType) -> None:
    while client.read_flow_run(run).state_type != state:
        time.sleep(0.2)


def test_a_run_is_dead_after_ten_heartbeats_of_the_watch_and_none_of_its_own(
    client: SyncPrefectClient, ephemeral_server: str
) -> None:
    """The watch counts its own heartbeats and reads no clock: until ten of them have arrived,
    nothing is dead, however long the server was away. Then a silent run is crashed, with the task
    and the bar on its page, and resumed at once; one that beats goes on. The task of a cancelled
    run that was killed is cancelled with it.
    """
    deployment = client.create_deployment(client.create_flow_from_name("audit"), name="silent")
    silent, alive = (
        client.create_flow_run_from_deployment(deployment, state=Running()).id for _ in range(2)
    )
    stage = client.create_task_run(
        task(lambda: None), flow_run_id=silent, dynamic_key="0", state=Running()
    )
    bar = client.create_artifact(ArtifactCreate(type="progress", data=40, flow_run_id=silent))
    cancelled = client.create_flow_run_from_deployment(deployment, state=Cancelled()).id
    killed = client.create_task_run(
        task(lambda: None), flow_run_id=cancelled, dynamic_key="0", state=Running()
    )
    try:
        watch = Watch({PREFECT_API_URL: ephemeral_server})
        rounds = 0
        while client.read_flow_run(silent).state_type is StateType.RUNNING:
            happened(client, "prefect.flow-run.heartbeat", alive)
            watch.look()
            rounds += 1
        assert rounds >= SILENT_HEARTBEATS
        states = sorted(client.read_flow_run_states(silent), key=lambda state: state.timestamp)
        assert [state.name for state in states[-2:]] == ["Crashed", "AwaitingRetry"]
        assert states[-2].message == HEARTBEAT_STOPPED
        assert client.read_task_run(stage.id).state_type is StateType.CRASHED
        assert client.read_task_run(killed.id).state_type is StateType.CANCELLED
        assert client.read_flow_run(cancelled).state_type is StateType.CANCELLED
        assert bar.id not in {found.id for found in client.read_artifacts()}
        assert client.read_flow_run(alive).state_type is StateType.RUNNING
    finally:
        for run in (silent, alive, cancelled):
            client.delete_flow_run(run)


def test_a_run_that_had_finished_is_put_back_and_never_resumed(
    client: SyncPrefectClient, tmp_path: Path
) -> None:
    """Something declares it crashed after its end, as Prefect does with late messages. A run that
    someone started again after its end, and that crashed then, is resumed.
    """
    Workspace(tmp_path / "home").create()
    deployment = client.create_deployment(client.create_flow_from_name("retrain"), name="finished")

    def made(*states: State[Any]) -> Any:
        run = client.create_flow_run_from_deployment(deployment, state=states[0])
        for state in states[1:]:
            client.set_flow_run_state(run.id, state, force=True)
        return run

    finished = made(Running(), Completed(), Crashed(message="its heartbeat stopped"))
    again = made(Running(), Completed(), AwaitingRetry(), Running(), Crashed())
    try:
        report = housekeeping.fn(home=str(tmp_path / "home"))
        assert finished.name in report.put_back
        assert finished.name not in report.resumed
        assert client.read_flow_run(finished.id).state_type is StateType.COMPLETED
        assert again.name in report.resumed
        assert again.name not in report.put_back
    finally:
        for run in (finished, again):
            client.delete_flow_run(run.id)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_run_that_dies_with_its_worker_is_taken_up_and_a_living_one_goes_on(
    client: SyncPrefectClient,
    ephemeral_server: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """By SIGKILL to worker and run, before the first heartbeat: the watch, as it is deployed, finds
    it within seven minutes, and leaves alone a run that is older and only sends heartbeats. Takes
    six minutes.
    """
    folders = {name: tmp_path / name for name in ("lives", "dies")}
    apply_pools(["watched"])
    env = environment(
        PREFECT_API_URL=ephemeral_server,
        PREFECT_WORKER_QUERY_SECONDS="1",
        PYTHONPATH=str(Path(__file__).parent),
    )
    watching = subprocess.Popen([sys.executable, "-m", "flows.server.watch"], env=env)
    try:
        with workers(env, tmp_path, 3, pool="watched") as started:
            runs = {}
            for still, (name, folder) in enumerate(folders.items()):
                folder.mkdir()
                runs[name] = client.create_flow_run_from_deployment(
                    deployed(client, "watched"), parameters={"folder": str(folder), "still": still}
                )
                while not (folder / "start-0").exists():
                    time.sleep(0.1)
            kill_with_worker(folders["dies"], 0, started)
            while not (folders["dies"] / "start-1").exists():
                time.sleep(1)
            for name, folder in folders.items():
                (folder / "go").touch()
                until(client, runs[name].id, StateType.COMPLETED)
            states = sorted(
                client.read_flow_run_states(runs["dies"].id), key=lambda state: state.timestamp
            )
    finally:
        watching.terminate()
        watching.wait(60)
    began, died = (
        next(state.timestamp for state in states if state.type is kind)
        for kind in (StateType.RUNNING, StateType.CRASHED)
    )
    record_property("seconds until it was crashed", (died - began).total_seconds())
    assert {name: client.read_flow_run(run.id).run_count for name, run in runs.items()} == {
        "lives": 1,
        "dies": 2,
    }


def test_a_run_without_its_ledger(
    client: SyncPrefectClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has crashed, and one that is told what is wrong has failed, whatever the words."""
    Workspace(tmp_path / "home").create()
    home = str(tmp_path / "home")
    deployment = client.create_deployment(client.create_flow_from_name("release"), name="away")
    for error, state in (
        (Unavailable("no answer"), StateType.CRASHED),
        (StorageError("no answer"), StateType.FAILED),
    ):

        def away(*_: Any, error: Exception = error, **__: Any) -> None:
            raise error

        monkeypatch.setattr(deployed_flows.releasing, "release_plan", away)
        asked = {"plan": "/w/plan.json", "home": home}
        run = client.create_flow_run_from_deployment(deployment, parameters=asked)
        run_flow(release, flow_run=run, parameters=asked, return_type="state")
        assert client.read_flow_run(run.id).state_type is state
        assert (run.name in housekeeping.fn(home=home).resumed) is (state is StateType.CRASHED)


def test_every_run_is_told_how_often_to_send_heartbeats() -> None:
    """By its deployment, so that it does not depend on who started the worker. Ten fit into each
    silence that counts, and the watch's is over within the seven minutes that are promised.
    """
    delivered = yaml.safe_load((CATALOGUE / "prefect.yaml").read_text())["deployments"]
    assert all(entry["work_pool"]["job_variables"] == TOLD for entry in delivered)
    assert int(TOLD["env"]["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"]) == SECONDS
    form = housekeeping.parameters.model_dump()["properties"]["silent_minutes"]
    assert form["default"] >= form["minimum"] >= 10 * SECONDS / 60
    assert 10 * SECONDS <= SILENT_HEARTBEATS * SECONDS <= 420 - 2 * SECONDS


def test_crashes_between_question_and_answer_lose_neither(
    client: SyncPrefectClient,
    ephemeral_server: str,
    site: tuple[Job, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prefect forgets that it asked when a run that crashed is resumed; the answer that came counts
    all the same. A run that is suspended in earnest, answered and resumed by housekeeping: once
    when the answer was there and not read, once before there was an answer.
    """
    job, plan = site
    parameters = {"plan": plan, "home": str(job.home), "device": "cpu"}
    deployment = client.create_deployment(client.create_flow_from_name("release"), name="release")
    run = client.create_flow_run_from_deployment(deployment, parameters=parameters).id

    def go_on() -> str | None:
        with suppress(Pause):
            run_flow(
                release,
                flow_run=client.read_flow_run(run),
                parameters=parameters,
                return_type="state",
            )
        return client.read_flow_run(run).state_name

    def crash() -> None:
        client.set_flow_run_state(run, Crashed(), force=True)
        assert housekeeping.fn(home=str(job.home)).resumed

    def signed(name: str) -> str:
        key = str(tmp_path / name / "signing-key.pem")
        return command("approve", plan, "--key", key, "--yes", "--print").strip()

    def asked() -> set[str]:
        return {
            entry.key
            for entry in client.filter_flow_run_input(run, "", limit=20, exclude_keys=set())
        }

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
    monkeypatch.setenv("PREFECT_API_URL", ephemeral_server)
    key = str(tmp_path / "director" / "signing-key.pem")
    assert str(run) in command(
        *("approve", str(copy), "--home", str(job.home), "--key", key, "--yes", "--post")
    ), "from a copy of the plan"
    assert go_on() == "Completed"
    (row,) = Ledger.open(Workspace(job.home).ledger_url).releases()
    assert row.state == "committed"
    assert len(row.reserved.approvals) == 2


def test_runs_are_counted_and_the_oldest_is_first(
    client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More runs than one request asks for; as many as it asks for, the server gives."""
    waited, before = [run.id for run in waiting_releases()], overview()["runs"]
    monkeypatch.setattr(waiting_runs, "_PAGE", 20)
    for _ in range(25):
        client.create_flow_run(release, state=Crashed())
    made = [
        str(client.create_flow_run(release, state=Suspended(timeout_seconds=3600)).id)
        for _ in range(8)
    ]
    assert [run.id for run in waiting_releases()] == waited + made
    found = overview()
    gained = {"Crashed": 25, "Suspended": 8}
    assert found["runs"] == before | {
        state: before.get(state, 0) + number for state, number in gained.items()
    }
    assert [run["id"] for run in found["waiting"]] == waited + made


def test_a_pool_needs_a_worker_once_runs_are_late(client: SyncPrefectClient) -> None:
    """`gpu` of a house without a card is no alarm; runs that wait for a worker are one, until it is
    there. How long they waited is told.
    """
    client.create_work_pool(WorkPoolCreate(name="idle", type="process"))
    assert "idle" not in overview()["unserved"]
    flow = client.create_flow_from_name("late")
    deployment = client.create_deployment(flow, name="late", work_pool_name="idle")
    due = datetime.now(UTC) - timedelta(seconds=90)
    run = client.create_flow_run_from_deployment(deployment, state=Late(scheduled_time=due))
    found = overview()
    assert (found["workers"]["idle"], "idle" in found["unserved"]) == (0, True)
    client.send_worker_heartbeat("idle", "one", heartbeat_interval_seconds=30)
    found = overview()
    assert (found["workers"]["idle"], "idle" in found["unserved"]) == (1, False)
    client.set_flow_run_state(run.id, Running())
    waited = overview()["waits"]["idle"]
    assert waited["begun"] == 1
    assert waited["longest"] == waited["seconds"] >= 90


def test_a_silent_run_wants_a_person(
    client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told with the command that resumes and the one that cancels, and not to repeat its
    command: the server resumes it.
    """
    deployment = client.create_deployment(client.create_flow_from_name("compare"), name="silent")
    run = client.create_flow_run_from_deployment(deployment, state=Running())
    try:
        found = overview()
        assert "compare" in found["unended"]
        assert run.name not in {entry["name"] for entry in found["stopped"]}
        monkeypatch.setattr(waiting_runs, "SILENT", timedelta(0))
        found = overview()
        (entry,) = [entry for entry in found["stopped"] if entry["id"] == str(run.id)]
        assert entry["state"] == "Silent"
        assert "prefect deployment run housekeeping/housekeeping" in entry["remedy"]
        assert f"prefect flow-run cancel {run.id}" in entry["remedy"]
        assert "autocoder" not in entry["remedy"]
        nothing: Any = {"open_releases": [], "plans": []}
        assert _needs_a_person(
            nothing | {"server": found | {"runs": {}, "unserved": [], "unserved_queues": []}}
        )
        assert not _needs_a_person(
            nothing
            | {"server": found | {"runs": {}, "unserved": [], "unserved_queues": [], "silent": 0}}
        )
    finally:
        client.delete_flow_run(run.id)


@pytest.mark.parametrize(
    ("asked", "shown"), [(True, StateType.CANCELLED), (False, StateType.CRASHED)]
)
def test_the_stage_of_a_cancelled_run_is_cancelled_too(
    asked: bool, shown: StateType, client: SyncPrefectClient
) -> None:
    """It is stopped by a signal, as one whose worker is stopped, whose stages have crashed; the
    flow's own end is the same with both.
    """

    @flow
    def stopped() -> None:
        def stage() -> None:
            run = PrefectRun()
            if asked:
                client.set_flow_run_state(UUID(run.id), Cancelling())
            raise TerminationSignal(signal.SIGTERM)

        PrefectRun().call("stage", "stage", stage)

    # not in the main thread, where Prefect hands the signal on to this process
    with ThreadPoolExecutor(1) as thread, pytest.raises(TerminationSignal):
        thread.submit(copy_context().run, stopped).result()
    (run,) = client.read_flow_runs(
        flow_filter=FlowFilter.model_validate({"name": {"any_": ["stopped"]}}),
        sort=FlowRunSort.START_TIME_DESC,
        limit=1,
    )
    of_run = FlowRunFilter.model_validate({"id": {"any_": [run.id]}})
    while not [
        stage
        for stage in client.read_task_runs(flow_run_filter=of_run)
        if stage.state_type is shown
    ]:
        time.sleep(0.1)  # the server learns of stages by events
