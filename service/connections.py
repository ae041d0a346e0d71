"""Connections that may stay open: so many, and none that is slow to say what it wants."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST, HEADER_SECONDS = 512, 10.0
"""Connections at a time, well below a process's usual 1,024 files; seconds for a request's headers."""


class Connection(H11Protocol):
    """Uvicorn's own, closed where it is one too many or its headers do not come."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Refuse one connection too many before a byte of it is read."""
        super().connection_made(transport)
        if len(self.connections) > MOST:
            transport.abort()
        else:
            self._expect()

    def data_received(self, data: bytes) -> None:
        """Headers have to be whole in time, those of a later request too."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._cancel()
        elif self._deadline is None:
            self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is expected of it any more."""
        self._cancel()
        super().connection_lost(exc)

    def _expect(self) -> None:
        self._deadline = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
