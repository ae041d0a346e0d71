"""Plays background services of Prefect's server."""

import asyncio
from typing import Any, NoReturn

from prefect.server.services.base import Service


class Steady(Service):
    """Runs until it is cancelled, and says that it was."""

    cancelled = False

    @classmethod
    def service_settings(cls) -> Any:
        raise NotImplementedError

    async def start(self) -> NoReturn:
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled = True
        raise AssertionError

    async def stop(self) -> None: ...


class Failing(Steady):
    """Fails at its start, as one does whose database is not there yet."""

    async def start(self) -> NoReturn:
        raise ConnectionRefusedError("the database system is not yet accepting connections")
