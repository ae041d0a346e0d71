"""Finds release runs that wait for a decision on the Prefect server, and sums up its runs and
workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.client.schemas.sorting import FlowRunSort

from flows.commands.terminal import command_of
from flows.server.client import server
from storage.errors import InputError

_PAGE = 200
"""Runs per page of the server, its default limit."""


@dataclass(frozen=True)
class WaitingRelease:
    id: str
    name: str
    plan: str


def _stopped(run: FlowRun, flow: str) -> dict[str, str] | None:
    """Names a run that does not go on, why, and the command that a person types next; None for
    another run.
    """
    state = run.state
    if state is None or not (
        state.is_failed() or state.is_crashed() or state.is_cancelled() or state.name == "Late"
    ):
        return None
    if state.name == "Late":
        remedy = f"prefect worker start --pool {run.work_pool_name or 'cpu'}"
    elif run.deployment_id is None:
        remedy = (
            f"repeat its command, `autocoder {command_of(flow)}` with the same options; "
            "finished stages are reused"
        )
    elif state.is_crashed():
        remedy = "prefect deployment run housekeeping/housekeeping"
    else:
        remedy = f"prefect flow-run retry {run.id}"
    reason = (state.message or "").strip().split("\n")[0][:300]
    since = state.timestamp.astimezone(UTC).strftime("%Y-%m-%d %H:%M")
    shown = {
        "id": str(run.id),
        "name": run.name,
        "flow": flow,
        "state": state.name or state.type.value,
    }
    return shown | {"since": since, "reason": reason, "remedy": remedy}


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
    """Hand a signed decision to a run; refuse one that no longer waits."""
    with server() as client:
        response = client.resume_flow_run(UUID(run), run_input={"decision": decision})
    if response.status is not SetStateStatus.ACCEPT:
        raise InputError(f"run {run}: {getattr(response.details, 'reason', 'not accepted')}")


def overview() -> dict[str, Any]:
    """Returns runs of the last seven days by state, workers online by pool, pools that lack one,
    and runs that wait or stopped, the newest first.

    A pool that never had a worker lacks none until its runs are late: without a GPU, `gpu` needs no
    worker.
    """
    now = datetime.now(UTC)
    recent = FlowRunFilter.model_validate(
        {"expected_start_time": {"after_": now - timedelta(days=7), "before_": now}}
    )
    with server() as client:
        flows = {flow.id: flow.name for flow in client.read_flows()}
        runs = newest_first(client, recent)
        online = {}
        served = set()
        for pool in client.read_work_pools():
            workers = client.read_workers_for_work_pool(pool.name)
            states = [
                str(getattr(worker.status, "value", worker.status)).upper() for worker in workers
            ]
            online[pool.name] = states.count("ONLINE")
            served |= {pool.name} if workers else set()
    late = {run.work_pool_name for run in runs if run.state_name == "Late"}
    stopped = [_stopped(run, flows.get(run.flow_id, "")) for run in runs]
    return {
        "runs": dict(Counter(run.state_name or "unknown" for run in runs)),
        "waits": _waits(runs),
        "workers": online,
        "unserved": sorted(
            pool for pool, count in online.items() if not count and pool in served | late
        ),
        "waiting": [asdict(run) for run in waiting_releases()],
        "stopped": [entry for entry in stopped if entry is not None],
    }


def newest_first(client: SyncPrefectClient, chosen: FlowRunFilter) -> list[FlowRun]:
    """Returns all runs of a filter, more than one page of the server too."""
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


def _waits(runs: Sequence[FlowRun]) -> dict[str, dict[str, float]]:
    waits: dict[str, dict[str, float]] = {}
    for run in runs:
        if run.work_pool_name is None or run.start_time is None or run.expected_start_time is None:
            continue
        waited = max(0.0, (run.start_time - run.expected_start_time).total_seconds())
        pool = waits.setdefault(run.work_pool_name, {"begun": 0, "seconds": 0.0, "longest": 0.0})
        pool["begun"] += 1
        pool["seconds"] += waited
        pool["longest"] = max(pool["longest"], waited)
    return waits
