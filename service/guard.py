"""What stands around the service: a limit on a request's bytes, headers for browsers, and silence about failures."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Guard:
    """The outermost layer.

    An exception that reached the server would be logged with its text, and a library's text may quote the narrative
    that it choked on: only its type and place are told, on stderr.
    """

    def __init__(self, app: ASGIApp, *, most_bytes: int, headers: Mapping[str, str]) -> None:
        self._app, self._most = app, most_bytes
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

        body = await self._body(scope, receive)
        if body is None:
            await _refuse(answer, 413, f"a request may have {self._most:,} bytes")
            return

        async def replay() -> Message:
            nonlocal body
            if body is None:
                return await receive()  # waits for the client to go
            whole, body = body, None
            return {"type": "http.request", "body": whole, "more_body": False}

        try:
            await self._app(scope, replay, answer)
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(frame.filename).name}:{frame.lineno}"
            print(f"failed: {type(error).__name__} at {place}", file=sys.stderr)  # noqa: T201
            if not begun:
                await _refuse(answer, 500, "the service failed; the request was not at fault")

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """The whole request, or None where it is too long: no more than the limit is ever held."""
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self._most:
            return None
        parts: list[bytes] = []
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                break
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._most:
                return None
            more = message.get("more_body", False)
        return b"".join(parts)


async def _refuse(send: Send, status: int, detail: str) -> None:
    body = json.dumps({"detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
