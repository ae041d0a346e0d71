"""Starts, watches and cancels the runs of the deployment that computes shards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar
from uuid import UUID

from pydantic import BaseModel, Field, model_validator

from storage.artifacts import ArtifactRef
from storage.errors import InputError, StorageError

if TYPE_CHECKING:  # its import takes a second, which a run without workers need not wait
    from prefect.client.orchestration import SyncPrefectClient

_OUTAGE_SECONDS = 600.0
"""Longest outage of the server that a pass survives; workers go on meanwhile."""
_PAGE = 200
_BATCH = 50
"""Runs whose state one request sets."""
_SET_STATES: Any = "/flow_runs/bulk_set_state"
"""A route for which Prefect's client has neither method nor type."""
T = TypeVar("T")
S = TypeVar("S", bound=BaseModel)


class Part(BaseModel, frozen=True, extra="forbid"):
    """Selects consecutive units of one computation: draws of a pass, reruns of an audit, pieces of a table."""

    first: int = Field(default=0, ge=0, title="First", description="Number of the first unit, from 0.")
    end: int = Field(ge=1, le=1_000_000, title="End", description="Number of the first unit that is left out.")

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if self.end <= self.first:
            raise ValueError("end must be above first")
        return self

    @property
    def size(self) -> int:
        """Returns the number of units."""
        return self.end - self.first

    def split(self, shards: int, *, chunk: int = 1) -> list[Self]:
        """Splits into consecutive shards of nearly the same size, each of whole chunks; at most one per chunk."""
        chunks = -(-self.size // chunk)
        shards = min(shards, chunks)
        cuts = [self.first + chunk * (chunks * i // shards) for i in range(shards)] + [self.end]
        return [self.model_copy(update={"first": first, "end": end}) for first, end in pairwise(cuts)]


class StageRequest(BaseModel, Generic[S], frozen=True, extra="forbid", title="Shard"):
    """Requests a shard by its settings and the digests of its inputs. It holds nothing of a record."""

    settings: S = Field(title="Settings", description="Of the shard; their fields say what it computes.")
    inputs: dict[str, ArtifactRef] = Field(default={}, title="Inputs", description="Stages that it reads.")
    key: str = Field(
        pattern=r"^[0-9a-f]{32}$",
        title="Key",
        description="Key of the output. A worker whose code is another version computes another key and refuses.",
    )


@dataclass
class ShardRuns:
    """Starts, watches and cancels runs; survives an outage of the server."""

    client: SyncPrefectClient
    deployment: UUID
    place: Mapping[str, Any]
    """Parameters that every run gets in addition to its shard: workspace and device."""
    queue: str | None = None
    """Queue of the runs, in place of the deployment's."""

    @classmethod
    @contextmanager
    def connect(cls, deployment: str, place: Mapping[str, Any], queue: str | None = None) -> Iterator[ShardRuns]:
        """Opens the runs of a deployment, by its name.

        Raises:
            InputError: no server is configured, or it has no such deployment.
        """
        from prefect.client.orchestration import get_client
        from prefect.exceptions import ObjectNotFound
        from prefect.settings import PREFECT_API_URL

        if not PREFECT_API_URL.value():
            raise InputError("shards: workers need Prefect's server. Set PREFECT_API_URL.")
        with get_client(sync_client=True) as client:
            try:
                served = _retry(lambda: client.read_deployment_by_name(deployment))
            except ObjectNotFound:
                raise InputError(
                    f"shards: the server has no deployment {deployment}. Apply it with `autocoder deploy`."
                ) from None
            yield cls(client, served.id, place, queue)

    def start(self, request: StageRequest[Any], *, label: str) -> str:
        """Starts the run of a shard, or adopts one that is still going; returns the run's id.

        Runs are named by the shard's key and a number, so that the same request gets the same run. Runs that have ended
        or are being cancelled are not adopted: no output will come of them.
        """
        parameters = {"shard": request.model_dump(mode="json"), **self.place}
        for number in count(1):
            run = _retry(
                lambda number=number: self.client.create_flow_run_from_deployment(
                    self.deployment,
                    parameters=parameters,
                    name=f"{label} ({request.key[:8]}, {number})",
                    idempotency_key=f"{request.key}-{number}",
                    work_queue_name=self.queue,
                )
            )
            if run.state is None or not (run.state.is_final() or run.state.is_cancelling()):
                return str(run.id)
        raise AssertionError  # count never ends

    def states(self, runs: Sequence[str]) -> dict[str, tuple[str | None, str]]:
        """Returns state and message of each run; a missing run was deleted."""
        from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

        states: dict[str, tuple[str | None, str]] = {}
        for start in range(0, len(runs), _PAGE):
            page = [UUID(run) for run in runs[start : start + _PAGE]]
            flow_runs = FlowRunFilter(id=FlowRunFilterId(any_=page))
            for run in _retry(
                lambda flow_runs=flow_runs: self.client.read_flow_runs(flow_run_filter=flow_runs, limit=_PAGE)
            ):
                message = run.state.message if run.state is not None else None
                states[str(run.id)] = (run.state_type and run.state_type.value, message or "")
        return states

    def cancel(self, runs: Sequence[str]) -> None:
        """Cancels runs: those that have not started at once, the others through their workers.

        Uses few requests, since a run that is cancelled has seconds. Gives up if the server does not answer.
        """
        import httpx

        state = {"type": "CANCELLING", "name": "Cancelling", "message": "no longer needed"}
        for start in range(0, len(runs), _BATCH):
            runs_filter = {"id": {"any_": list(runs[start : start + _BATCH])}}
            try:
                self.client.request("POST", _SET_STATES, json={"flow_runs": runs_filter, "state": state})
            except httpx.HTTPError:
                return


def _retry(request: Callable[[], T]) -> T:
    """Repeats a request until the server answers.

    Raises:
        StorageError: no answer for ten minutes, or a refusal.
    """
    import httpx
    from prefect.exceptions import PrefectHTTPStatusError

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
                    f"Prefect server: status {status} for a shard's request. Check the server's log."
                ) from None
        except httpx.HTTPError as error:
            if time.monotonic() > deadline:
                raise StorageError(
                    f"Prefect server: no answer ({type(error).__name__}). Run again to resume."
                ) from None
        time.sleep(2)
