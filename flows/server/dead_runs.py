"""Finds runs on the Prefect server with a dead process, worker or host, so that its scheduler
restarts them.

Only the heartbeat shows that a run died together with its worker or host. The server has both the
run and its heartbeats. `flows.server.watch` checks them every half minute, and housekeeping three
times an hour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    ArtifactFilter,
    FlowFilter,
    FlowRunFilter,
    TaskRunFilter,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.states import AwaitingRetry, Cancelled, Completed, Crashed

from flows.server.client import server
from flows.server.heartbeats import last_sign
from flows.server.waiting_runs import newest_first

RESUMED = (
    "retrain",
    "compare",
    "audit",
    "release",
    "code-batch",
    "handover",
    "revoke",
    "ledger-verify",
)
"""Flows with runs that are resumed: all except housekeeping."""
ATTEMPTS = 4
"""Starts of a run after which a person must act."""
PENDING = timedelta(minutes=15)
"""A run that was assigned to a worker and has not started for this long has lost its worker."""
HEARTBEAT_STOPPED = "its heartbeat stopped"
"""Message of a run that is marked as dead."""


@dataclass(frozen=True)
class Resumed:
    """Names of runs by the action taken."""

    resumed: tuple[str, ...] = ()
    given_up: tuple[str, ...] = ()
    """Runs that died too often."""
    put_back: tuple[str, ...] = ()
    """Finished runs that were marked as crashed afterwards."""


def declare_dead(flows: Sequence[str], *, before: datetime, age: timedelta) -> tuple[str, ...]:
    """Marks silent running deployments as crashed, and returns their names.

    Tasks of these runs, and of cancelled runs, that still look active are ended with them.

    If such a run is alive after all, nothing is lost: the second start waits for its locks and
    finds its stages.

    Args:
        before: a run is dead if it started, and sent its last heartbeat, before this time.
        age: runs that died longer ago are ignored.
    """
    dead = []
    with server() as client:
        for run in _runs(client, StateType.RUNNING, flows):
            if run.deployment_id is None or not before - age < last_sign(client, run) < before:
                continue
            # Not forced: a run that has ended in the meantime keeps its state.
            answer = client.set_flow_run_state(run.id, Crashed(message=HEARTBEAT_STOPPED))
            if answer.status is SetStateStatus.ACCEPT:
                _end_tasks(client, run, Crashed(message=HEARTBEAT_STOPPED))
                dead.append(run.name)
        for run in _runs(client, StateType.CANCELLED, flows):
            if _since(run, datetime.now(UTC)) < age:
                # A task that did not end by itself was killed, and reported nothing.
                _end_tasks(client, run, Cancelled(message="its run was cancelled"))
    return tuple(dead)


def _end_tasks(client: SyncPrefectClient, run: FlowRun, state: State) -> None:
    """Ends the remains of a killed run on its page: tasks that look active, and their
    progress bars.
    """
    of_run = FlowRunFilter.model_validate({"id": {"any_": [run.id]}})
    at_work = {"state": {"type": {"any_": [StateType.RUNNING]}}}
    for task in client.read_task_runs(
        flow_run_filter=of_run, task_run_filter=TaskRunFilter.model_validate(at_work)
    ):
        client.set_task_run_state(task.id, state, force=True)
    bars = ArtifactFilter.model_validate(
        {"type": {"any_": ["progress"]}, "flow_run_id": {"any_": [run.id]}}
    )
    for bar in client.read_artifacts(artifact_filter=bars):
        client.delete_artifact(bar.id)


def resume(
    flows: Sequence[str],
    *,
    age: timedelta,
    attempts: int = ATTEMPTS,
    pending: timedelta = PENDING,
) -> Resumed:
    """Resumes dead runs of these flows.

    A run that had finished before it was marked as crashed (Prefect does so if its messages arrive
    late) is put back, because starting it again would repeat finished work.

    Args:
        age: runs that died longer ago are ignored.
        attempts: most starts of a run.
        pending: time that a worker may take to start a run.
    """
    resumed, given_up, put_back = [], [], []
    now = datetime.now(UTC)
    with server() as client:
        dead = [run for run in _runs(client, StateType.CRASHED, flows) if _since(run, now) < age]
        dead += [
            run
            for run in _runs(client, StateType.PENDING, flows)
            if pending < _since(run, now) < age
        ]
        for run in dead:
            states = sorted(client.read_flow_run_states(run.id), key=lambda state: state.timestamp)
            if _has_finished(states):
                # Forced: a run in a final state does not change otherwise.
                client.set_flow_run_state(
                    run.id,
                    Completed(message="it had finished before it was marked as crashed"),
                    True,
                )
                put_back.append(run.name)
            elif run.deployment_id is None or run.parent_task_run_id is not None:
                continue  # it was started manually or by a parent, which starts it again
            elif run.run_count >= attempts:
                given_up.append(run.name)
            elif not _stopped_by_hand(states):
                # Not forced: a run that started in the meantime, or that another round resumed,
                # keeps its state.
                client.set_flow_run_state(
                    run.id, AwaitingRetry(message=f"resumed after {run.run_count} starts")
                )
                resumed.append(run.name)
    return Resumed(tuple(resumed), tuple(given_up), tuple(put_back))


def _has_finished(states: Sequence[State]) -> bool:
    """Whether the run completed after it was last started or requested."""
    for state in reversed(states):
        if state.is_completed():
            return True
        if state.is_scheduled() or state.is_pending() or state.is_running():
            return False
    return False


def drop_missed(*, before: datetime) -> tuple[str, ...]:
    """Cancels missed runs of schedules, except for the newest of each deployment, and returns their
    names.

    Args:
        before: runs that were due earlier and that no worker has taken are missed.
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
            # Not forced: a run that a worker takes in the meantime continues.
            client.set_flow_run_state(
                run.id, Cancelled(message="missed; a later run of the schedule replaces it")
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


def _stopped_by_hand(states: Sequence[State]) -> bool:
    """Whether a person cancelled the run, or suspended it, which also stops its heartbeats."""
    if len(states) < 2:
        return False
    before, last = states[-2:]
    return before.is_cancelling() or (before.is_paused() and last.message == HEARTBEAT_STOPPED)
