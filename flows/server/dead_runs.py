"""Runs whose process, worker or host died, as the Prefect server has them; they are started again by its scheduler.

Of a run that died with its worker, or its whole host, only its heartbeat tells. Prefect sends one when a run begins,
and then every 180 seconds, or as often as its worker was told (30, deployments/worker.env). The rule `zombies` of
deployments/automations.yaml waits for the next one. But Prefect drops what a rule waits for when its services are away
for a minute more than the rule's own time, and a host that takes the server with it may take along the very event that
the waiting begins with. The database has both the run and its heartbeats: what the rule missed is found there.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.events.filters import EventFilter
from prefect.states import AwaitingRetry, Crashed

from flows.server.client import server

_PAGE = 50
"""Events that the server gives at once."""
SILENT = "its heartbeat stopped"
"""What is said of a run that is declared dead, here and by the rule `zombies`."""


def declare_dead(
    flows: Sequence[str], *, silent: timedelta, age: timedelta, now: datetime | None = None
) -> tuple[str, ...]:
    """Declare crashed what of these flows is at work and sends no heartbeat; return the names of those runs.

    A run that waits, that is cancelled, or that somebody started by hand is none of them. Nor is any while it may be
    the server that heard nothing: it must have received an event, whosever, after the first fifth of the silence and
    before the last. In the fifth before it, or the one after it, came a heartbeat of each run that lives.

    Args:
        silent: for how long nothing came; a fifth of it has to be two heartbeats.
        age: runs that died longer ago are left alone.
        now: another moment than this one.

    Raises:
        StorageError: the server does not answer, or refuses us.
    """
    now = now or datetime.now(UTC)
    dead = []
    with server() as client:
        runs = [run for run in _runs(client, StateType.RUNNING, flows) if run.deployment_id is not None]
        runs = [run for run in runs if _since(run, now) > silent]
        if not runs or not _heard(client, now - silent * 4 / 5, now - silent / 5):
            return ()
        for run in runs:
            if not silent < min(_since(run, now), _since_heartbeat(client, run, now, age)) < age:
                continue
            # Not forced: a run that has ended after all stays as it is.
            answer = client.set_flow_run_state(run.id, Crashed(message=SILENT))
            if answer.status is SetStateStatus.ACCEPT:
                dead.append(run.name)
    return tuple(dead)


def take_up(
    flows: Sequence[str], *, attempts: int, age: timedelta, pending: timedelta
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Take up dead runs of these flows again; return the names of those, and of those that died too often.

    Args:
        attempts: how often a run is started in all.
        age: runs that died longer ago are left alone.
        pending: how long a worker may take to begin a run that it was handed.

    Raises:
        StorageError: the server does not answer, or refuses us.
    """
    resumed, given_up = [], []
    now = datetime.now(UTC)
    with server() as client:
        dead = [run for run in _runs(client, StateType.CRASHED, flows) if _since(run, now) < age]
        dead += [run for run in _runs(client, StateType.PENDING, flows) if pending < _since(run, now) < age]
        for run in dead:
            if run.deployment_id is None or run.parent_task_run_id is not None:
                continue  # whoever started it by hand, or its parent, starts it again
            if run.run_count >= attempts:
                given_up.append(run.name)
                continue
            if _stopped_by_hand(client, run):
                continue
            # Not forced: a run that began after all, or was taken up by another round, stays as it is.
            client.set_flow_run_state(run.id, AwaitingRetry(message=f"taken up again after {run.run_count} starts"))
            resumed.append(run.name)
    return tuple(resumed), tuple(given_up)


def _runs(client: SyncPrefectClient, state: StateType, flows: Sequence[str]) -> list[FlowRun]:
    return client.read_flow_runs(
        flow_filter=FlowFilter(name=FlowFilterName(any_=list(flows))),
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[state]))),
    )


def _since(run: FlowRun, now: datetime) -> timedelta:
    return now - run.state.timestamp if run.state is not None else timedelta(0)


def _heard(client: SyncPrefectClient, since: datetime, until: datetime) -> bool:
    """Whether the server received an event between two moments; not one that was kept back while it was away."""
    between = EventFilter.model_validate({"occurred": {"since": since, "until": until}})
    return any(event.received <= until for event in client.read_events(between, limit=_PAGE).events)


def _since_heartbeat(client: SyncPrefectClient, run: FlowRun, now: datetime, age: timedelta) -> timedelta:
    """How long ago the server received the run's last heartbeat, whatever the clock of its host says."""
    heartbeats = {
        "occurred": {"since": now - age, "until": now + age},
        "event": {"name": ["prefect.flow-run.heartbeat"]},
        "resource": {"id": [f"prefect.flow-run.{run.id}"]},
    }
    last = client.read_events(EventFilter.model_validate(heartbeats), limit=1).events
    return now - last[0].received if last else timedelta.max


def _stopped_by_hand(client: SyncPrefectClient, run: FlowRun) -> bool:
    """Whether somebody had cancelled the run, or had suspended it so that its silence was no death."""
    states = sorted(client.read_flow_run_states(run.id), key=lambda state: state.timestamp)
    if len(states) < 2:
        return False
    before, last = states[-2:]
    return before.is_cancelling() or (before.is_paused() and last.message == SILENT)
