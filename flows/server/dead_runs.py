"""Runs whose process, worker or host died, as the Prefect server has them; they are started again by its scheduler."""

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
from prefect.states import AwaitingRetry

from flows.server.client import server


def take_up(
    flows: Sequence[str], *, attempts: int, age: timedelta, pending: timedelta, release: timedelta
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Take up dead runs of these flows again; return the names of those, and of those that died too often.

    Args:
        attempts: how often a run is started in all.
        age: runs that died longer ago are left alone.
        pending: how long a worker may take to begin a run that it was handed.
        release: how long a run of the flow `release` may be at work.

    Raises:
        StorageError: the server does not answer, or refuses us.
    """
    resumed, given_up = [], []
    now = datetime.now(UTC)
    with server() as client:
        dead = [run for run in _runs(client, StateType.CRASHED, flows) if _since(run, now) < age]
        dead += [run for run in _runs(client, StateType.PENDING, flows) if pending < _since(run, now) < age]
        dead += [run for run in _runs(client, StateType.RUNNING, ["release"]) if release < _since(run, now) < age]
        for run in dead:
            if run.deployment_id is None or run.parent_task_run_id is not None:
                continue  # whoever started it by hand, or its parent, starts it again
            if run.run_count >= attempts:
                given_up.append(run.name)
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
