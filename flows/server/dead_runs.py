"""Finds runs on the Prefect server whose process, worker or host died, so that its scheduler
restarts them.

Only the heartbeat shows that a run died with its worker or host. The rule `zombies` of
deployments/automations.yaml waits for the next one, and forgets what it waits for when Prefect's
services are away. The database has both the run and its heartbeats, so this module finds there what
the rule missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.events.filters import EventFilter
from prefect.states import AwaitingRetry, Cancelled, Crashed

from flows.server.client import server
from flows.server.waiting_runs import newest_first

HEARTBEAT_STOPPED = "its heartbeat stopped"
"""Message of a run that is declared dead, here and by the rule `zombies`."""


def declare_dead(
    flows: Sequence[str], *, silent: timedelta, age: timedelta, now: datetime | None = None
) -> tuple[str, ...]:
    """Declare runs of deployments that are at work and send no heartbeat crashed; return their
    names.

    A run that lives all the same loses nothing: the second start waits for its locks, and finds its
    stages.

    Args:
        silent: time without a heartbeat.
        age: runs that died longer ago are left alone.
        now: the time to use in place of the clock.
    """
    now = now or datetime.now(UTC)
    dead = []
    with server() as client:
        for run in _runs(client, StateType.RUNNING, flows):
            if (
                run.deployment_id is None
                or not silent < min(_since(run, now), _since_heartbeat(client, run, now)) < age
            ):
                continue
            # Not forced: a run that has ended after all stays as it is.
            answer = client.set_flow_run_state(run.id, Crashed(message=HEARTBEAT_STOPPED))
            if answer.status is SetStateStatus.ACCEPT:
                dead.append(run.name)
    return tuple(dead)


def resume(
    flows: Sequence[str], *, attempts: int, age: timedelta, pending: timedelta
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Resume dead runs of these flows; return their names, and the names of those that died too
    often.

    Args:
        attempts: how often a run is started at most.
        age: runs that died longer ago are left alone.
        pending: how long a worker may take to start a run.
    """
    resumed, given_up = [], []
    now = datetime.now(UTC)
    with server() as client:
        dead = [run for run in _runs(client, StateType.CRASHED, flows) if _since(run, now) < age]
        dead += [
            run
            for run in _runs(client, StateType.PENDING, flows)
            if pending < _since(run, now) < age
        ]
        for run in dead:
            if run.deployment_id is None or run.parent_task_run_id is not None:
                continue  # anyone who started it manually, or its parent, starts it again
            if run.run_count >= attempts:
                given_up.append(run.name)
                continue
            if _stopped_by_hand(client, run):
                continue
            # Not forced: a run that started after all, or that another round resumed, stays as it
            # is.
            client.set_flow_run_state(
                run.id, AwaitingRetry(message=f"resumed after {run.run_count} starts")
            )
            resumed.append(run.name)
    return tuple(resumed), tuple(given_up)


def drop_missed(*, before: datetime) -> tuple[str, ...]:
    """Cancels runs of schedules that were missed, except for the newest of each deployment; returns
    their names.

    Args:
        before: runs whose time was earlier and that no worker has taken are missed.
    """
    missed = FlowRunFilter.model_validate(
        {
            "state": {"type": {"any_": [StateType.SCHEDULED]}},
            "expected_start_time": {"before_": before},
        }
    )
    dropped, newest = [], set()
    with server() as client:
        for run in newest_first(client, missed):
            if not run.auto_scheduled or run.deployment_id is None or run.run_count:
                continue
            if run.deployment_id not in newest:
                newest.add(run.deployment_id)
                continue
            # Not forced: a run that a worker takes meanwhile continues.
            client.set_flow_run_state(
                run.id, Cancelled(message="missed; a later run of the schedule takes its place")
            )
            dropped.append(run.name)
    return tuple(dropped)


def _runs(client: SyncPrefectClient, state: StateType, flows: Sequence[str]) -> list[FlowRun]:
    return client.read_flow_runs(
        flow_filter=FlowFilter.model_validate({"name": {"any_": list(flows)}}),
        flow_run_filter=FlowRunFilter.model_validate({"state": {"type": {"any_": [state]}}}),
    )


def _since(run: FlowRun, now: datetime) -> timedelta:
    return now - run.state.timestamp if run.state is not None else timedelta(0)


def _since_heartbeat(client: SyncPrefectClient, run: FlowRun, now: datetime) -> timedelta:
    """Returns the time since the server received the run's last heartbeat, by the server's clock."""
    heartbeats = {
        "occurred": {"since": now - timedelta(days=365), "until": now + timedelta(days=365)},
        "event": {"name": ["prefect.flow-run.heartbeat"]},
        "resource": {"id": [f"prefect.flow-run.{run.id}"]},
    }
    last = client.read_events(EventFilter.model_validate(heartbeats), limit=1).events
    return now - last[0].received if last else timedelta.max


def _stopped_by_hand(client: SyncPrefectClient, run: FlowRun) -> bool:
    """Checks for a person who cancelled the run, or suspended it, which silences it too."""
    states = sorted(client.read_flow_run_states(run.id), key=lambda state: state.timestamp)
    if len(states) < 2:
        return False
    before, last = states[-2:]
    return before.is_cancelling() or (before.is_paused() and last.message == HEARTBEAT_STOPPED)
