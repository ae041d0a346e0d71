"""Finds release runs that wait for a decision on the Prefect server, and sums up its runs and workers."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateName,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.filters import FlowRunFilterStateType as StateTypes
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.client.schemas.sorting import FlowRunSort

from flows.commands.next_steps import command_of
from flows.server.client import server
from storage.errors import InputError

_PAGE = 200
"""Runs per page of the server, its default limit."""


@dataclass(frozen=True)
class WaitingRelease:
    """Identifies a waiting run and its plan."""

    id: str
    name: str
    plan: str


@dataclass(frozen=True)
class StoppedRun:
    """Names a run that does not go on, why, and the command that a person types next."""

    id: str
    name: str
    flow: str
    state: str
    since: str
    """UTC, to the minute."""
    reason: str
    """First line of what the server has about its state; may be empty."""
    remedy: str


_STOPPED = (StateType.FAILED, StateType.CRASHED, StateType.CANCELLED)


def stopped_runs(client: SyncPrefectClient, chosen: FlowRunFilter) -> list[StoppedRun]:
    """Returns runs that failed, crashed, were cancelled or are late, the newest first, one page of them at most."""
    flows = {flow.id: flow.name for flow in client.read_flows()}
    stopped = []
    for run in client.read_flow_runs(flow_run_filter=chosen, sort=FlowRunSort.EXPECTED_START_TIME_DESC, limit=_PAGE):
        state = run.state
        if state is None or not (state.type in _STOPPED or state.name == "Late"):
            continue
        flow = flows.get(run.flow_id, "")
        if state.name == "Late":
            remedy = f"prefect worker start --pool {run.work_pool_name or 'cpu'}"
        elif run.deployment_id is None:
            remedy = (
                f"repeat its command, `autocoder {command_of(flow)}` with the same options; finished stages are reused"
            )
        elif state.type is StateType.CRASHED:
            remedy = "prefect deployment run housekeeping/housekeeping"
        else:
            remedy = f"prefect flow-run retry {run.id}"
        reason = (state.message or "").strip().split("\n")[0][:300]
        since = state.timestamp.astimezone(UTC).strftime("%Y-%m-%d %H:%M")
        stopped.append(StoppedRun(str(run.id), run.name, flow, state.name or state.type.value, since, reason, remedy))
    return stopped


def waiting_releases() -> list[WaitingRelease]:
    """Returns suspended runs of the release flow, oldest first."""
    with server() as client:
        runs = client.read_flow_runs(
            flow_filter=FlowFilter(name=FlowFilterName(any_=["release"])),
            flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=StateTypes(any_=[StateType.PAUSED]))),
            sort=FlowRunSort.EXPECTED_START_TIME_ASC,
        )
    return [WaitingRelease(str(run.id), run.name, str(run.parameters.get("plan", ""))) for run in runs]


def answer(run: str, decision: str) -> None:
    """Hand a signed decision to a run; refuse one that no longer waits."""
    with server() as client:
        response = client.resume_flow_run(UUID(run), run_input={"decision": decision})
    if response.status is not SetStateStatus.ACCEPT:
        raise InputError(f"run {run}: {getattr(response.details, 'reason', 'not accepted')}")


def overview() -> dict[str, Any]:
    """Returns runs of the last seven days by state, workers online by pool, pools that lack one, and runs that wait or
    stopped.

    A pool that never had a worker lacks none until its runs are late: without a GPU, `gpu` needs no worker.
    """
    now = datetime.now(UTC)
    recent = FlowRunFilter.model_validate({"expected_start_time": {"after_": now - timedelta(days=7), "before_": now}})
    with server() as client:
        (runs, waits), stopped = _by_state(client, recent), stopped_runs(client, recent)
        online, unserved = {}, []
        for pool in client.read_work_pools():
            workers = client.read_workers_for_work_pool(pool.name)
            states = [str(getattr(worker.status, "value", worker.status)).upper() for worker in workers]
            online[pool.name] = states.count("ONLINE")
            if not online[pool.name] and (workers or _late(client, pool.name)):
                unserved.append(pool.name)
    return {
        "runs": dict(runs),
        "waits": waits,
        "workers": online,
        "unserved": sorted(unserved),
        "waiting": [asdict(run) for run in waiting_releases()],
        "stopped": [asdict(run) for run in stopped],
    }


def _late(client: SyncPrefectClient, pool: str) -> bool:
    """Checks for runs that wait for a worker of the pool."""
    late = FlowRunFilter(state=FlowRunFilterState(name=FlowRunFilterStateName(any_=["Late"])))
    of_pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[pool]))
    return bool(client.read_flow_runs(flow_run_filter=late, work_pool_filter=of_pool, limit=1))


def _by_state(client: SyncPrefectClient, chosen: FlowRunFilter) -> tuple[Counter[str], dict[str, dict[str, float]]]:
    """Counts runs by the name of their state, whose type is the same for late and scheduled runs.

    Returns also by pool how many runs have begun, the seconds that they waited for it in all, and the longest wait.
    """
    runs: Counter[str] = Counter()
    waits: dict[str, dict[str, float]] = {}
    for offset in count(0, _PAGE):
        page = client.read_flow_runs(flow_run_filter=chosen, sort=FlowRunSort.ID_DESC, limit=_PAGE, offset=offset)
        runs.update(run.state_name or "unknown" for run in page)
        for run in page:
            if run.work_pool_name is None or run.start_time is None or run.expected_start_time is None:
                continue
            waited = max(0.0, (run.start_time - run.expected_start_time).total_seconds())
            pool = waits.setdefault(run.work_pool_name, {"begun": 0, "seconds": 0.0, "longest": 0.0})
            pool["begun"] += 1
            pool["seconds"] += waited
            pool["longest"] = max(pool["longest"], waited)
        if len(page) < _PAGE:
            break
    return runs, waits
