"""Finds release runs that wait for a decision on the Prefect server, and summarises
its runs and workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TypedDict
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.client.schemas.sorting import FlowRunSort
from prefect.utilities.urls import url_for

from flows.commands.terminal import command_of
from flows.server.client import REFUSED, server
from flows.server.heartbeats import last_sign
from storage.errors import InputError

_PAGE = 200
"""Runs per page of the server, its default limit."""
UNSERVED = timedelta(minutes=5)
"""A queue has lost its worker if one polled it before and none has polled it for this long."""
SILENT = timedelta(minutes=10)
"""A running run without a heartbeat for this long has died. With Prefect's own
interval, three are missing.
"""


@dataclass(frozen=True)
class WaitingRelease:
    id: str
    name: str
    plan: str


def _stopped(run: FlowRun, flow: str, silent: timedelta | None) -> StoppedRun | None:
    """Returns a run that does not continue, the reason, and the next command to type, or None for
    other runs.

    Args:
        silent: time since the last heartbeat of a run in the state running.
    """
    state = run.state
    if state is None:
        return None
    name = state.name or state.type.value
    reason = (state.message or "").strip().split("\n")[0][:300]
    repeat = (
        f"repeat its command, `autocoder {command_of(flow)}` with the same options; "
        "finished stages are reused"
    )
    if silent is not None:
        name, reason = "Silent", f"no heartbeat for {silent // timedelta(minutes=1)} minutes"
        remedy = (
            f"{repeat}. Then: prefect flow-run delete {run.id}"
            if run.deployment_id is None
            else f"prefect deployment run housekeeping/housekeeping, which resumes it; or: "
            f"prefect flow-run cancel {run.id}"
        )
    elif state.name == "Late":
        remedy = f"prefect worker start --pool {run.work_pool_name or 'cpu'}"
    elif not (state.is_failed() or state.is_crashed() or state.is_cancelled()):
        return None
    elif state.name == REFUSED and run.deployment_id is None:
        remedy = f"correct its command, `autocoder {command_of(flow)}`"
    elif state.name == REFUSED:
        remedy = f"correct its form: Copy to new run on {url_for('flow-run', obj_id=run.id)}"
    elif run.deployment_id is None:
        remedy = repeat
    elif state.is_crashed():
        remedy = "prefect deployment run housekeeping/housekeeping"
    else:
        remedy = f"prefect flow-run retry {run.id}"
    since = state.timestamp.astimezone(UTC).strftime("%Y-%m-%d %H:%M")
    return {
        "id": str(run.id),
        "name": run.name,
        "flow": flow,
        "state": name,
        "since": since,
        "reason": reason,
        "remedy": remedy,
    }


def _silence(client: SyncPrefectClient, run: FlowRun, now: datetime) -> timedelta | None:
    """Returns how long a run in the state running has been silent, or None for other runs."""
    if run.state is None or not run.state.is_running():
        return None
    silent = now - last_sign(client, run)
    return silent if silent > SILENT else None


def waiting_releases() -> list[WaitingRelease]:
    waiting = FlowRunFilter.model_validate({"state": {"type": {"any_": [StateType.PAUSED]}}})
    with server() as client:
        runs = client.read_flow_runs(
            flow_filter=FlowFilter.model_validate({"name": {"any_": ["release"]}}),
            flow_run_filter=waiting,
            sort=FlowRunSort.EXPECTED_START_TIME_ASC,
        )
    return [
        WaitingRelease(str(run.id), run.name, str(run.parameters.get("plan", ""))) for run in runs
    ]


def answer(run: str, decision: str) -> None:
    """Passes a signed decision to a run. Refuses a run that is no longer waiting."""
    with server() as client:
        response = client.resume_flow_run(UUID(run), run_input={"decision": decision})
    if response.status is not SetStateStatus.ACCEPT:
        raise InputError(
            f"run {run}: {getattr(response.details, 'reason', 'not accepted')}",
            kind="run-not-resumed",
        )


class StoppedRun(TypedDict):
    """A run that does not continue, the reason, and the next command to type."""

    id: str
    name: str
    flow: str
    state: str
    since: str
    reason: str
    remedy: str


class Waits(TypedDict):
    """Seconds that the runs of a pool waited for a worker."""

    begun: int
    seconds: float
    longest: float


class WaitingRun(TypedDict):
    id: str
    name: str
    plan: str


class LostQueue(TypedDict):
    pool: str
    queue: str


class Queue(LostQueue):
    polled: float
    """When a worker last polled it, in seconds since 1970."""


class ServerOverview(TypedDict):
    runs: dict[str, int]
    """Number of runs in the last seven days, by state."""
    waits: dict[str, Waits]
    """Waiting times by pool."""
    workers: dict[str, int]
    """Number of workers online, by pool."""
    queues: list[Queue]
    unserved_queues: list[LostQueue]
    unserved: list[str]
    """Pools without a worker that need one."""
    waiting: list[WaitingRun]
    stopped: list[StoppedRun]
    """Runs that stopped or fell silent, the newest first."""
    silent: int
    unended: list[str]
    """Flows with runs that continue or are resumed by the server."""
    releasing: list[str]
    """Plans of release runs that continue."""


def overview() -> ServerOverview:
    """Returns the server's runs, workers and queues.

    A pool that never had a worker is reported only if its runs are late. Without a GPU, for
    example, `gpu` needs no worker.
    """
    now = datetime.now(UTC)
    recent = FlowRunFilter.model_validate(
        {"expected_start_time": {"after_": now - timedelta(days=7), "before_": now}}
    )
    with server() as client:
        flow_of = {flow.id: flow.name for flow in client.read_flows()}
        runs = newest_first(client, recent)
        silent = {run.id: _silence(client, run, now) for run in runs}
        pools = client.read_work_pools()
        workers = {pool.name: _worker_states(client, pool.name) for pool in pools}
        queues: list[Queue] = []
        for pool in pools:
            queues += _polled_queues(client, pool.name)
    online = {pool: states.count("ONLINE") for pool, states in workers.items()}
    unended = [run for run in runs if _goes_on(run)]
    releasing = {
        str(run.parameters.get("plan", ""))
        for run in unended
        if flow_of.get(run.flow_id) == "release" and not silent[run.id]
    }
    return {
        "runs": _runs_by_state(runs),
        "waits": _waits(runs),
        "workers": online,
        "queues": queues,
        "unserved_queues": _unserved_queues(queues, online, now),
        "unserved": _unserved_pools(workers, runs),
        "waiting": _waiting_runs(),
        "stopped": _stopped_runs(runs, flow_of, silent),
        "silent": len(silent) - list(silent.values()).count(None),
        "unended": sorted({flow_of.get(run.flow_id, "") for run in unended}),
        "releasing": sorted(releasing),
    }


def _runs_by_state(runs: Sequence[FlowRun]) -> dict[str, int]:
    return dict(Counter(run.state_name or "unknown" for run in runs))


def _stopped_runs(
    runs: Sequence[FlowRun], flow_of: Mapping[UUID, str], silent: Mapping[UUID, timedelta | None]
) -> list[StoppedRun]:
    entries = [_stopped(run, flow_of.get(run.flow_id, ""), silent[run.id]) for run in runs]
    return [entry for entry in entries if entry is not None]


def _waiting_runs() -> list[WaitingRun]:
    return [{"id": run.id, "name": run.name, "plan": run.plan} for run in waiting_releases()]


def _worker_states(client: SyncPrefectClient, pool: str) -> list[str]:
    workers = client.read_workers_for_work_pool(pool)
    return [str(getattr(worker.status, "value", worker.status)).upper() for worker in workers]


def _polled_queues(client: SyncPrefectClient, pool: str) -> list[Queue]:
    """Returns the queues of a pool that a worker has polled before."""
    queues: list[Queue] = []
    for queue in client.read_work_queues(work_pool_name=pool):
        if queue.last_polled is not None:
            polled = queue.last_polled.timestamp()
            queues.append({"pool": pool, "queue": queue.name, "polled": polled})
    return queues


def _unserved_queues(
    queues: Sequence[Queue], online: Mapping[str, int], now: datetime
) -> list[LostQueue]:
    """Returns the queues that no worker polls any more, in pools with a worker."""
    earliest = now.timestamp() - UNSERVED.total_seconds()
    return [
        {"pool": queue["pool"], "queue": queue["queue"]}
        for queue in queues
        if online[queue["pool"]] and queue["polled"] < earliest
    ]


def _unserved_pools(workers: Mapping[str, Sequence[str]], runs: Sequence[FlowRun]) -> list[str]:
    """Returns the pools without a worker that had one before, or that have late runs."""
    late = {run.work_pool_name for run in runs if run.state_name == "Late"}
    return sorted(
        pool
        for pool, states in workers.items()
        if "ONLINE" not in states and (states or pool in late)
    )


def _goes_on(run: FlowRun) -> bool:
    """Whether a run continues or a worker will start it (again), because crashed
    runs are resumed.
    """
    state = run.state
    if state is None or state.is_paused() or (run.deployment_id is None and state.is_crashed()):
        return False
    return not state.is_final() or state.is_crashed()


def newest_first(client: SyncPrefectClient, chosen: FlowRunFilter) -> list[FlowRun]:
    """Returns all runs of a filter, even if they exceed one page of the server."""
    runs: list[FlowRun] = []
    for offset in count(0, _PAGE):
        page = client.read_flow_runs(
            flow_run_filter=chosen,
            sort=FlowRunSort.EXPECTED_START_TIME_DESC,
            limit=_PAGE,
            offset=offset,
        )
        runs += page
        if len(page) < _PAGE:
            break
    return runs


def _waits(runs: Sequence[FlowRun]) -> dict[str, Waits]:
    waits: dict[str, Waits] = {}
    for run in runs:
        if run.work_pool_name is None or run.start_time is None or run.expected_start_time is None:
            continue
        waited = max(0.0, (run.start_time - run.expected_start_time).total_seconds())
        pool = waits.setdefault(run.work_pool_name, {"begun": 0, "seconds": 0.0, "longest": 0.0})
        pool["begun"] += 1
        pool["seconds"] += waited
        pool["longest"] = max(pool["longest"], waited)
    return waits
