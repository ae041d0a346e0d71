"""Checks a request's key before its body is read, limits the body, and hides the text of
exceptions.

The reverse proxy (deployments/serve.Caddyfile) enforces timeouts and rate limits.
"""

import asyncio
import json
import sys
import traceback
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

    The server would log the text of an exception, in which a library may quote the narrative. Only
    the type and the location of the exception go to stderr.

    Args:
        most_bytes: maximum size of a request body.
        admit: raises `HTTPException` for a request without a key, before its body is read.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        most_bytes: int,
        headers: Mapping[str, str],
        admit: Callable[[Request], str],
    ) -> None:
        self._app, self._admit, self._most_bytes = app, admit, most_bytes
        self._headers = [(k.encode(), v.encode()) for k, v in (_HEADERS | dict(headers)).items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
        if body is None:  # the client disconnected
            return
        gone = asyncio.ensure_future(_gone(receive))

        async def replay() -> Message:
            nonlocal body
            if body is None:
                await asyncio.shield(gone)
                return {"type": "http.disconnect"}
            content, body = body, None
            return {"type": "http.request", "body": content, "more_body": False}

        served = asyncio.ensure_future(self._app(scope, replay, answer))
        try:
            await asyncio.wait({served, gone}, return_when=asyncio.FIRST_COMPLETED)
            # guard: test_a_request_that_nobody_waits_for
            if not served.done() and not started:  # the client disconnected: stop coding
                served.cancel()
            with suppress(asyncio.CancelledError):
                await served
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(frame.filename).name}:{frame.lineno}"
            print(f"failed: {type(error).__name__} at {place}", file=sys.stderr)  # noqa: T201
            if not started:
                await _refuse(
                    answer, 500, "the service failed. The request was not at fault; try again."
                )
        finally:
            gone.cancel()
            served.cancel()

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        too_long = HTTPException(413, f"a request may have at most {self._most_bytes:,} bytes")
        if not length.isdigit() or int(length) > self._most_bytes:
            raise too_long
        if length == b"0" and b"transfer-encoding" not in headers:
            return b""
        # guard: test_a_body_without_a_key
        self._admit(Request(scope))
        content, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return None
            content += message.get("body", b"")
            if len(content) > self._most_bytes:
                raise too_long
            more = message.get("more_body", False)
        return bytes(content)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _refuse(
    send: Send, status: int, detail: str, more: Mapping[str, str] | None = None
) -> None:
    body = json.dumps({"detail": detail}).encode()
    response_headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",
    } | dict(more or {})
    headers = [(name.lower().encode(), value.encode()) for name, value in response_headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
