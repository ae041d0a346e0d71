"""Runs Prefect's background services, and ends when one of them does: `python -m
flows.server.services`.

`prefect server services start` makes each service an unsupervised task. If one fails at its start,
as the evaluation of triggers does while PostgreSQL recovers, it is missing from then on: no
notification is sent, while the process looks healthy. Here the process ends with an error, and its
supervisor restarts it. If $AUTOCODER_PREFECT_API is set to the server's address, the process also
watches over runs (`flows.server.watch`). It touches $AUTOCODER_ALIVE_FILE every ten seconds, so
that a container's health check notices a loop that hangs.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import NoReturn, Protocol

from docket import Docket
from prefect.server.api.background_workers import background_worker
from prefect.server.services.base import Service
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, get_current_settings

from flows.server.watch import Watch


class Supervised(Protocol):
    name: str

    async def start(self) -> NoReturn: ...


class ServiceEndedError(Exception):
    """A background service has ended, which never happens in normal operation."""


async def supervise(services: Sequence[Supervised]) -> None:
    """Runs services until the first of them ends, then cancels the others."""
    tasks = {asyncio.ensure_future(service.start()): service for service in services}
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        raise ServiceEndedError(
            "; ".join(f"{tasks[task].name} ended: {_reason(task)}" for task in ended)
        )
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _reason(task: asyncio.Future[NoReturn]) -> str:
    error = None if task.cancelled() else task.exception()
    return "without an error" if error is None else f"{type(error).__name__}: {error}"


async def alive(file: Path, *, every: float = 10.0) -> None:
    while True:
        file.touch()
        await asyncio.sleep(every)


async def _run() -> None:
    url = get_current_settings().server.docket.url
    # As in `prefect server services start`: finished executions are deleted at once.
    async with (
        Docket(name="prefect", url=url, execution_ttl=timedelta(0)) as docket,
        background_worker(docket, ephemeral=False, webserver_only=False),
    ):
        file = os.environ.get("AUTOCODER_ALIVE_FILE")
        sign = asyncio.ensure_future(alive(Path(file))) if file else None
        try:
            services: list[Supervised] = [service() for service in Service.enabled_services()]
            await supervise([*services, *_watches()])
        finally:
            if sign:
                sign.cancel()


def _watches() -> list[Watch]:
    """Returns the watch over this server's runs, which uses the server's address like a client."""
    url = os.environ.get("AUTOCODER_PREFECT_API")
    if not url:
        return []
    auth = get_current_settings().server.api.auth_string
    login = {} if auth is None else {PREFECT_API_AUTH_STRING: auth.get_secret_value()}
    return [Watch({PREFECT_API_URL: url} | login)]


def main() -> None:
    try:
        asyncio.run(_run())
    except KeyboardInterrupt:
        pass
    except Exception as error:  # the server's components raise the errors of their drivers
        is_ended = isinstance(error, ServiceEndedError)
        sys.exit(f"services: {error if is_ended else f'{type(error).__name__}: {error}'}")


if __name__ == "__main__":
    main()
