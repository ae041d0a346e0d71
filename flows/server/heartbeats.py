"""Reads the heartbeats of runs, which tell the server that a run is alive."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.events.filters import EventFilter

if TYPE_CHECKING:
    from storage.json_values import Json


SECONDS = 30
"""Seconds between two heartbeats of a run. Prefect's default is 180."""
TOLD = {"env": {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(SECONDS)}}
"""Job variables of every deployment. They set the heartbeat interval of its runs,
whoever started the worker.
"""
_EVENT = "prefect.flow-run.heartbeat"


def last_sign(client: SyncPrefectClient, run: FlowRun) -> datetime:
    """Returns when the run was last known to be alive: its last heartbeat, or the
    start of its state.
    """
    assert run.state is not None
    beats = _newest(client, _EVENT, f"prefect.flow-run.{run.id}", limit=1)
    return max([run.state.timestamp, *beats])


class OwnHeartbeat:
    """Heartbeats of this process, sent in the same way as the runs' heartbeats.

    They make silence measurable on a machine of any speed. If the server, its database or the
    service that stores events is slow or away, these heartbeats are as late or missing as those of
    the runs, so that no run is considered dead because of it.
    """

    def __init__(self) -> None:
        self._resource = f"autocoder.watch.{uuid4()}"

    def send(self, client: SyncPrefectClient) -> None:
        event: Mapping[str, Json] = {
            "id": str(uuid4()),
            "event": _EVENT,  # Prefect deletes events of this name after a week
            "occurred": datetime.now(UTC).isoformat(),
            "resource": {"prefect.resource.id": self._resource},
        }
        client.request("POST", "/events", json=[event])

    def since(self, client: SyncPrefectClient, number: int) -> datetime | None:
        """Returns when the server received the `number`-th newest heartbeat, or
        None if there are fewer.
        """
        beats = _newest(client, _EVENT, self._resource, limit=number)
        return beats[-1] if len(beats) == number else None


def _newest(client: SyncPrefectClient, event: str, resource: str, *, limit: int) -> list[datetime]:
    now = datetime.now(UTC)
    wanted = {
        "occurred": {"since": now - timedelta(days=365), "until": now + timedelta(days=365)},
        "event": {"name": [event]},
        "resource": {"id": [resource]},
    }
    found = client.read_events(EventFilter.model_validate(wanted), limit=limit).events
    return sorted((event.received for event in found), reverse=True)
