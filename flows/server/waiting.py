"""Release runs that wait for a decision, as the Prefect server has them."""

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

from flows.server.client import server
from storage.errors import InputError

_PAGE = 200
"""Runs that the server gives at once; by default it gives no more."""


@dataclass(frozen=True)
class Waiting:
    """One run that waits, and for which plan."""

    id: str
    name: str
    plan: str


def waiting_releases() -> list[Waiting]:
    """Suspended runs of the release flow, oldest first.

    Raises:
        StorageError: the server does not answer, or refuses us.
    """
    with server() as client:
        runs = client.read_flow_runs(
            flow_filter=FlowFilter(name=FlowFilterName(any_=["release"])),
            flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=StateTypes(any_=[StateType.PAUSED]))),
            sort=FlowRunSort.EXPECTED_START_TIME_ASC,
        )
    return [Waiting(str(run.id), run.name, str(run.parameters.get("plan", ""))) for run in runs]


def answer(run: str, decision: str) -> None:
    """Hand a signed decision to a waiting run.

    Raises:
        InputError: the server refuses it, or the run waits no more.
    """
    with server() as client:
        response = client.resume_flow_run(UUID(run), run_input={"decision": decision})
    if response.status is not SetStateStatus.ACCEPT:
        raise InputError(f"run {run}: {getattr(response.details, 'reason', 'not accepted')}")


def overview() -> dict[str, Any]:
    """Runs of the last seven days by state, workers online by pool, pools that lack one, and releases that wait.

    A pool that no worker ever served lacks none until runs of it are late: a house without a card has none for `gpu`.

    Raises:
        StorageError: the server does not answer, or refuses us.
    """
    now = datetime.now(UTC)
    recent = FlowRunFilter.model_validate({"expected_start_time": {"after_": now - timedelta(days=7), "before_": now}})
    with server() as client:
        runs = _by_state(client, recent)
        online, unserved = {}, []
        for pool in client.read_work_pools():
            known = client.read_workers_for_work_pool(pool.name)
            told = [str(getattr(worker.status, "value", worker.status)).upper() for worker in known]
            online[pool.name] = told.count("ONLINE")
            if not online[pool.name] and (known or _late(client, pool.name)):
                unserved.append(pool.name)
    return {
        "runs": dict(runs),
        "workers": online,
        "unserved": sorted(unserved),
        "waiting": [asdict(run) for run in waiting_releases()],
    }


def _late(client: SyncPrefectClient, pool: str) -> bool:
    """Whether runs wait for a worker of the pool."""
    late = FlowRunFilter(state=FlowRunFilterState(name=FlowRunFilterStateName(any_=["Late"])))
    there = WorkPoolFilter(name=WorkPoolFilterName(any_=[pool]))
    return bool(client.read_flow_runs(flow_run_filter=late, work_pool_filter=there, limit=1))


def _by_state(client: SyncPrefectClient, chosen: FlowRunFilter) -> Counter[str]:
    """How many runs are in each state, by the state's name: its type does not tell late runs from scheduled ones."""
    runs: Counter[str] = Counter()
    for offset in count(0, _PAGE):
        page = client.read_flow_runs(flow_run_filter=chosen, sort=FlowRunSort.ID_DESC, limit=_PAGE, offset=offset)
        runs.update(run.state_name or "unknown" for run in page)
        if len(page) < _PAGE:
            break
    return runs
