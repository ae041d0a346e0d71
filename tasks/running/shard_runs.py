"""Runs of the deployment that computes shards, as the Prefect server has them; what is asked of one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import StateType
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL
from pydantic import BaseModel, Field

from storage.errors import InputError, StorageError

_OUTAGE_SECONDS = 600.0
"""How long a server may not answer before the pass gives up; workers go on meanwhile."""
_PAGE = 200
_AT_ONCE = 50
"""Runs whose state the server sets in one request."""
_SET_STATES: Any = "/flow_runs/bulk_set_state"
"""Prefect's client has no method for it, nor the type of its routes."""
T = TypeVar("T")


class Asked(BaseModel, frozen=True, extra="forbid"):
    """What the run of a shard is told: numbers, settings, digests. Nothing of a record."""

    key: str = Field(
        pattern=r"^[0-9a-f]{32}$",
        title="Key",
        description="Of its output; a worker whose code is another version would give it another, and refuses.",
    )


@dataclass
class ShardRuns:
    """Starts, watches and cancels runs. Survives a server that does not answer for a while."""

    client: SyncPrefectClient
    deployment: UUID
    place: Mapping[str, Any]
    """Parameters that every run gets beside its shard: where it works."""

    @classmethod
    @contextmanager
    def at(cls, deployment: str, place: Mapping[str, Any]) -> Iterator[ShardRuns]:
        """The runs of a deployment, by its name.

        Raises:
            InputError: no server is named, or it knows no such deployment.
        """
        if not PREFECT_API_URL.value():
            raise InputError("shards: to be computed by workers they need Prefect's server; set PREFECT_API_URL")
        with get_client(sync_client=True) as client:
            try:
                found = _patiently(lambda: client.read_deployment_by_name(deployment))
            except ObjectNotFound:
                raise InputError(
                    f"shards: the server knows no deployment {deployment}; apply it with `autocoder deploy`"
                ) from None
            yield cls(client, found.id, place)

    def start(self, asked: Asked, *, label: str) -> str:
        """Ask for a shard, or adopt the run that was asked for it and goes on; return the run's id.

        Runs are named by the shard's key and a number: whoever asks for the same shard gets the same run. One that has
        ended is not adopted, nor one that is being cancelled: that is not its end yet, but no output will come of it.
        """
        parameters = {"shard": asked.model_dump(mode="json"), **self.place}
        for number in count(1):
            made = _patiently(
                lambda number=number: self.client.create_flow_run_from_deployment(
                    self.deployment,
                    parameters=parameters,
                    name=f"{label} ({asked.key[:8]}, {number})",
                    idempotency_key=f"{asked.key}-{number}",
                )
            )
            if made.state is None or not (made.state.is_final() or made.state.is_cancelling()):
                return str(made.id)
        raise AssertionError  # count never ends

    def states(self, runs: Sequence[str]) -> dict[str, tuple[StateType | None, str]]:
        """State and message of each run; one that is missing has been deleted."""
        found: dict[str, tuple[StateType | None, str]] = {}
        for start in range(0, len(runs), _PAGE):
            page = [UUID(run) for run in runs[start : start + _PAGE]]
            chosen = FlowRunFilter(id=FlowRunFilterId(any_=page))
            for run in _patiently(
                lambda chosen=chosen: self.client.read_flow_runs(flow_run_filter=chosen, limit=_PAGE)
            ):
                said = run.state.message if run.state is not None else None
                found[str(run.id)] = (run.state_type, said or "")
        return found

    def cancel(self, runs: Sequence[str]) -> None:
        """Take back what was asked for: at once what has not begun, by its worker what has.

        In few requests, since a run that is cancelled has seconds. A server that does not answer is left alone.
        """
        state = {"type": StateType.CANCELLING.value, "name": "Cancelling", "message": "no longer asked for"}
        for start in range(0, len(runs), _AT_ONCE):
            chosen = {"id": {"any_": list(runs[start : start + _AT_ONCE])}}
            try:
                self.client.request("POST", _SET_STATES, json={"flow_runs": chosen, "state": state})
            except (httpx.HTTPError, PrefectHTTPStatusError):
                return


def _patiently(request: Callable[[], T]) -> T:
    """Ask until the server answers.

    Raises:
        StorageError: it did not for ten minutes, or refuses us.
    """
    deadline = time.monotonic() + _OUTAGE_SECONDS
    while True:
        try:
            return request()
        except PrefectHTTPStatusError as error:
            status = error.response.status_code
            if status == httpx.codes.NOT_FOUND:
                raise
            if status < httpx.codes.INTERNAL_SERVER_ERROR or time.monotonic() > deadline:
                raise StorageError(
                    f"Prefect server: it answers {status} to a shard's request; look at its log"
                ) from None
        except httpx.HTTPError as error:
            if time.monotonic() > deadline:
                raise StorageError(f"Prefect server: no answer ({type(error).__name__}); run again to go on") from None
        time.sleep(2)
