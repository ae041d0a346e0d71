"""Reads the heartbeats of runs, by which the server knows that a run still works."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.events.filters import EventFilter

SECONDS = 30
"""Between two heartbeats of a run. Prefect's own default is 180."""
TOLD = {"env": {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(SECONDS)}}
"""Job variables of every deployment: its runs send heartbeats so often, whoever
started the worker.
"""
_EVENT = "prefect.flow-run.heartbeat"


def last_sign(client: SyncPrefectClient, run: FlowRun) -> datetime:
    """Returns when the run was last known to work: its last heartbeat, or the start
    of its state.
    """
    assert run.state is not None
    beats = _newest(client, _EVENT, f"prefect.flow-run.{run.id}", limit=1)
    return max([run.state.timestamp, *beats])


class OwnHeartbeat:
    """Heartbeats of this process, sent on the way that those of runs take.

    They measure silence on a machine of any speed. While the server, its database or the service
    that stores events is away or slow, these are missing and late as those of the runs are, so that
    no run looks dead for it.
    """

    def __init__(self) -> None:
        self._resource = f"autocoder.watch.{uuid4()}"

    def send(self, client: SyncPrefectClient) -> None:
        event: Mapping[str, Any] = {
            "id": str(uuid4()),
            "event": _EVENT,  # under this name Prefect deletes it after a week
            "occurred": datetime.now(UTC).isoformat(),
            "resource": {"prefect.resource.id": self._resource},
        }
        client.request("POST", "/events", json=[event])

    def since(self, client: SyncPrefectClient, number: int) -> datetime | None:
        """Returns when the server received the last but `number` - 1; None if there are fewer."""
        beats = _newest(client, _EVENT, self._resource, limit=number)
        return beats[-1] if len(beats) == number else None


def _newest(client: SyncPrefectClient, event: str, resource: str, *, limit: int) -> list[datetime]:
    """Returns when the server received these events, the newest first."""
    now = datetime.now(UTC)
    wanted = {
        "occurred": {"since": now - timedelta(days=365), "until": now + timedelta(days=365)},
        "event": {"name": [event]},
        "resource": {"id": [resource]},
    }
    found = client.read_events(EventFilter.model_validate(wanted), limit=limit).events
    return sorted((event.received for event in found), reverse=True)
