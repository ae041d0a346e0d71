"""What stands around the service: limits on a request's bytes, time and number, and silence about failures."""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


@dataclass
class Bodies:
    """What may be sent to one place: its bytes, the seconds that a client has for it, and how many are read at a time;
    together they bound what half-sent requests hold.
    """

    most_bytes: int
    most: int = 64
    seconds: float = 15.0
    reading: int = 0


class Guard:
    """The outermost layer.

    An exception that reached the server would be logged with its text, and a library's text may quote the narrative
    that it choked on: only its type and place are told, on stderr.

    Args:
        most_bytes, most_bodies, body_seconds: of a request's body, as `Bodies` has them.
        at: other bounds, by path.
        admit: looks at a request that has a body before any of it is read; raises `HTTPException`.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        most_bytes: int,
        headers: Mapping[str, str],
        admit: Callable[[Request], object] = lambda request: None,
        most_bodies: int = 64,
        body_seconds: float = 15.0,
        at: Mapping[str, Bodies] | None = None,
    ) -> None:
        self._app, self._admit = app, admit
        self._usual, self._at = Bodies(most_bytes, most_bodies, body_seconds), dict(at or {})
        self._headers = [(k.encode(), v.encode()) for k, v in (_HEADERS | dict(headers)).items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def answer(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message["headers"] = [*message.get("headers", []), *self._headers]
            await send(message)

        try:
            body = await self._body(scope, receive)
        except HTTPException as refused:
            await _refuse(answer, refused.status_code, str(refused.detail), refused.headers)
            return
        if body is None:  # the client went
            return
        gone = asyncio.ensure_future(_gone(receive))

        async def replay() -> Message:
            nonlocal body
            if body is None:
                await asyncio.shield(gone)
                return {"type": "http.disconnect"}
            whole, body = body, None
            return {"type": "http.request", "body": whole, "more_body": False}

        served = asyncio.ensure_future(self._app(scope, replay, answer))
        try:
            await asyncio.wait({served, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not served.done() and not begun:  # nobody waits for the answer: nothing more is coded for it
                served.cancel()
            with suppress(asyncio.CancelledError):
                await served
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(frame.filename).name}:{frame.lineno}"
            print(f"failed: {type(error).__name__} at {place}", file=sys.stderr)  # noqa: T201
            if not begun:
                await _refuse(answer, 500, "the service failed; the request was not at fault")
        finally:
            gone.cancel()
            served.cancel()

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """The whole request, or None where the client left before its end.

        Raises:
            HTTPException: it is refused before it is read, is too long or too slow, or too many are read just now.
        """
        headers, here = dict(scope["headers"]), self._at.get(scope["path"], self._usual)
        told = headers.get(b"content-length", b"0")
        if not told.isdigit() or int(told) > here.most_bytes:
            raise HTTPException(413, f"a request may have {here.most_bytes:,} bytes")
        if told == b"0" and b"transfer-encoding" not in headers:
            return b""
        self._admit(Request(scope))
        if here.reading >= here.most:
            raise HTTPException(503, "too many requests are being sent", headers={"Retry-After": "1"})
        here.reading += 1
        try:
            async with asyncio.timeout(here.seconds):
                return await self._read(receive, here.most_bytes)
        except TimeoutError:
            raise HTTPException(408, f"a request has {here.seconds:g} s to arrive") from None
        finally:
            here.reading -= 1

    async def _read(self, receive: Receive, most_bytes: int) -> bytes | None:
        whole, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return None
            whole += message.get("body", b"")
            if len(whole) > most_bytes:
                raise HTTPException(413, f"a request may have {most_bytes:,} bytes")
            more = message.get("more_body", False)
        return bytes(whole)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refuse(send: Send, status: int, detail: str, more: Mapping[str, str] | None = None) -> None:
    body = json.dumps({"detail": detail}).encode()
    named = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"} | dict(
        more or {}
    )
    headers = [(name.lower().encode(), value.encode()) for name, value in named.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
