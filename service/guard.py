"""Limits a request's body, asks for its key before that is read, and hides the text of failures.

Deadlines of a connection's other states are the proxy's (deployments/serve.Caddyfile).
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
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


class Guard:
    """Wraps the application as its outermost layer.

    The server would log an exception with its text, in which a library may quote the narrative: stderr gets only its
    type and place.

    Args:
        most_bytes: bytes of a body at most.
        at: other limits, by path.
        seconds: time that a body has to arrive.
        most: bodies of one client that are read at a time.
        admit: returns the name of a request's client before its body is read; raises `HTTPException`.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        most_bytes: int,
        headers: Mapping[str, str],
        admit: Callable[[Request], str],
        at: Mapping[str, int] | None = None,
        seconds: float = 30.0,
        most: int = 16,
    ) -> None:
        self._app, self._admit = app, admit
        self._usual, self._at = most_bytes, dict(at or {})
        self._seconds, self._most = seconds, most
        self._reading: Counter[str] = Counter()
        self._headers = [(k.encode(), v.encode()) for k, v in (_HEADERS | dict(headers)).items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def answer(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", []), *self._headers]
            await send(message)

        try:
            body = await self._body(scope, receive)
        except HTTPException as refused:
            await _refuse(answer, refused.status_code, str(refused.detail), refused.headers)
            return
        if body is None:  # the client left
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
            # guard: nothing is coded for who left
            if not served.done() and not started:  # the client left: stop coding
                served.cancel()
            with suppress(asyncio.CancelledError):
                await served
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(frame.filename).name}:{frame.lineno}"
            print(f"failed: {type(error).__name__} at {place}", file=sys.stderr)  # noqa: T201
            if not started:
                await _refuse(answer, 500, "the service failed. The request was not at fault; try again.")
        finally:
            gone.cancel()
            served.cancel()

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """Returns the whole request, or None if the client left; refuses one too long, too slow or too many."""
        headers, most_bytes = dict(scope["headers"]), self._at.get(scope["path"], self._usual)
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > most_bytes:
            raise HTTPException(413, f"a request may have {most_bytes:,} bytes")
        if length == b"0" and b"transfer-encoding" not in headers:
            return b""
        # guard: the key before the body
        name = self._admit(Request(scope))
        # guard: so many bodies at a time
        if self._reading[name] >= self._most:
            raise HTTPException(503, "too many requests are being sent. Try again.", headers={"Retry-After": "1"})
        self._reading[name] += 1
        try:
            async with asyncio.timeout(self._seconds):
                return await self._read(receive, most_bytes)
        except TimeoutError:
            raise HTTPException(408, f"a request has {self._seconds:g} s to arrive") from None
        finally:
            self._reading[name] -= 1
            self._reading += Counter()  # drops names without any

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
