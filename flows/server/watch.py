"""Watches over runs every half minute: marks silent runs as crashed, and resumes crashed ones.

Prefect's own solution is an automation that waits for the next heartbeat. It is not reliable on a
busy machine: one background task of the server decides about a wait that has ended, and another one
deletes it a minute later, decided or not. If the server stood still for longer than that minute,
the run was left `Running` forever. The watch does not depend on timely events: each round queries
the server's current state.

In the stack it runs among the background services (`flows.server.services`). If somebody else
operates the server, start `python -m flows.server.watch` with PREFECT_API_URL.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NoReturn

from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from flows.server.client import server
from flows.server.dead_runs import RESUMED, declare_dead, resume
from flows.server.heartbeats import SECONDS, OwnHeartbeat
from storage.errors import StorageError

SILENT_HEARTBEATS = 10
"""Number of the watch's heartbeats without one of the run after which the run is
dead: five minutes.
"""
_AGE = timedelta(days=7)


class Watch:
    """A background service like Prefect's: `start` only returns with an error."""

    name = "Watch"

    def __init__(self, settings: Mapping[Any, Any] | None = None) -> None:
        """
        Args:
            settings: Prefect's settings for the client, such as the server's address.
        """
        self._settings = {PREFECT_CLIENT_MAX_RETRIES: 0, **(settings or {})}
        self._heartbeat = OwnHeartbeat()

    async def start(self) -> NoReturn:
        while True:
            began = time.monotonic()
            try:
                await asyncio.to_thread(self.look)
            except StorageError as error:  # the next round tries again
                print(f"watch: {error}", file=sys.stderr, flush=True)  # noqa: T201
            await asyncio.sleep(max(0.0, SECONDS - (time.monotonic() - began)))

    def look(self) -> None:
        """Do one round."""
        with temporary_settings(self._settings):
            with server() as client:
                self._heartbeat.send(client)
                since = self._heartbeat.since(client, SILENT_HEARTBEATS)
            if since is not None:
                declare_dead(RESUMED, before=since, age=_AGE)
            resume(RESUMED, age=_AGE)


if __name__ == "__main__":
    asyncio.run(Watch().start())
