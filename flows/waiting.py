"""Release runs that wait for a decision, as the Prefect server has them."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
)
from prefect.client.schemas.filters import FlowRunFilterStateType as StateTypes
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.exceptions import PrefectHTTPStatusError

from storage.errors import InputError, StorageError


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
    try:
        with get_client(sync_client=True) as client:
            runs = client.read_flow_runs(
                flow_filter=FlowFilter(name=FlowFilterName(any_=["release"])),
                flow_run_filter=FlowRunFilter(
                    state=FlowRunFilterState(type=StateTypes(any_=[StateType.PAUSED])),
                ),
            )
    except (httpx.HTTPError, PrefectHTTPStatusError) as error:
        raise StorageError(f"Prefect server: {_said(error)}") from None
    return [Waiting(str(run.id), run.name, str(run.parameters.get("plan", ""))) for run in runs]


def answer(run: str, decision: str) -> None:
    """Hand a signed decision to a waiting run.

    Raises:
        InputError: the server refuses it, or the run waits no more.
    """
    try:
        with get_client(sync_client=True) as client:
            response = client.resume_flow_run(UUID(run), run_input={"decision": decision})
    except (httpx.HTTPError, PrefectHTTPStatusError) as error:
        raise StorageError(f"Prefect server: {_said(error)}") from None
    if response.status is not SetStateStatus.ACCEPT:
        raise InputError(f"run {run}: {getattr(response.details, 'reason', 'not accepted')}")


def _said(error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError):
        code = error.response.status_code
        return f"it answers {code}" + ("; set PREFECT_API_AUTH_STRING" if code == 401 else "")
    return f"no answer ({type(error).__name__}); is PREFECT_API_URL right?"


def overview() -> dict[str, Any]:
    """Runs of the last seven days by state, workers online by pool, and releases that wait.

    Raises:
        StorageError: the server does not answer, or refuses us.
    """
    now = datetime.now(UTC)
    recent = FlowRunFilter.model_validate({"expected_start_time": {"after_": now - timedelta(days=7), "before_": now}})
    try:
        with get_client(sync_client=True) as client:
            runs = client.read_flow_runs(flow_run_filter=recent, limit=200)
            pools = client.read_work_pools()
            online = {
                pool.name: sum(
                    str(getattr(worker.status, "value", worker.status)).upper() == "ONLINE"
                    for worker in client.read_workers_for_work_pool(pool.name)
                )
                for pool in pools
            }
    except (httpx.HTTPError, PrefectHTTPStatusError) as error:
        raise StorageError(f"Prefect server: {_said(error)}") from None
    return {
        "runs": dict(Counter(run.state_name or "unknown" for run in runs)),
        "workers": online,
        "waiting": [asdict(run) for run in waiting_releases()],
    }
