"""Would win: the service's memory, connections or model, by requests that never end or that nobody waits for."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import uvicorn
from starlette.exceptions import HTTPException
from starlette.requests import Request

from service import connections
from service.guard import Guard


class Client:
    """What a server sees of one client: pieces of a body, and when it leaves."""

    def __init__(self, *pieces: bytes, whole: bool = False, key: bytes = b"k") -> None:
        self.left = asyncio.Event()
        self.answers: list[Any] = []
        self.read = 0
        self._pieces, self._whole = list(pieces), whole
        self.scope = {"type": "http", "path": "/code", "method": "POST", "query_string": b""} | {
            "headers": [(b"transfer-encoding", b"chunked"), (b"x-api-key", key)]
        }

    async def receive(self) -> Any:
        """The next piece, or wait for ever as a slow client lets one wait."""
        if self._pieces:
            self.read += 1
            piece = self._pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self._pieces) or not self._whole}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        """Keep the answer."""
        self.answers.append(message)

    @property
    def status(self) -> int | None:
        """Of the answer, None without one."""
        return self.answers[0]["status"] if self.answers else None


async def answering(scope: Any, receive: Any, send: Any) -> None:
    """An application that reads and answers."""
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def keyed(request: Request) -> None:
    """Only the key `k` may come in."""
    if request.headers.get("x-api-key") != "k":
        raise HTTPException(401, "no")


def guard(app: Any = answering, **options: Any) -> Guard:
    """The layer around an application, with small limits."""
    return Guard(
        app, headers={}, **({"most_bytes": 100, "most_bodies": 3, "body_seconds": 0.05, "admit": keyed} | options)
    )


async def serve(layer: Guard, client: Client) -> None:
    """One request."""
    await layer(client.scope, client.receive, client.send)


def test_a_body_that_does_not_end() -> None:
    """Is given up after its time, and what it held is free again."""

    async def attack() -> None:
        layer = guard()
        clients = [Client(b"x" * 50) for _ in range(3)]
        await asyncio.gather(*(serve(layer, client) for client in clients))
        assert [client.status for client in clients] == [408, 408, 408]
        after = Client(b"x", whole=True)
        await serve(layer, after)
        assert after.status == 200

    asyncio.run(attack())


def test_many_half_sent_bodies() -> None:
    """So many are read at a time; the next is refused at once, and no byte of it read."""

    async def attack() -> None:
        layer = guard(body_seconds=60)
        held = [Client(b"x" * 50) for _ in range(3)]
        tasks = [asyncio.ensure_future(serve(layer, client)) for client in held]
        await asyncio.sleep(0)
        late = Client(b"x", whole=True)
        await serve(layer, late)
        assert (late.status, late.read) == (503, 0)
        for client in held:
            client.left.set()
        await asyncio.gather(*tasks)
        assert [client.status for client in held] == [None] * 3
        await serve(layer, late)
        assert layer._usual.reading == 0

    asyncio.run(attack())


@pytest.mark.parametrize("key", [b"", b"K", b"k "])
def test_a_body_without_a_key(key: bytes) -> None:
    """Is not read."""

    async def attack() -> None:
        client = Client(b"x" * 50, key=key)
        await serve(guard(), client)
        assert (client.status, client.read) == (401, 0)

    asyncio.run(attack())


def test_a_body_longer_than_it_may_be() -> None:
    """In pieces, without a length: no more than the limit is held."""

    async def attack() -> None:
        client = Client(*[b"x" * 60] * 10, whole=True)
        await serve(guard(), client)
        assert (client.status, client.read) == (413, 2)

    asyncio.run(attack())


def test_a_request_that_nobody_waits_for() -> None:
    """Its work is cancelled when the client leaves."""

    async def attack() -> None:
        ended: list[str] = []
        begun = asyncio.Event()

        async def working(scope: Any, receive: Any, send: Any) -> None:
            try:
                await receive()
                begun.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        client = Client(b"x", whole=True)
        task = asyncio.ensure_future(serve(guard(working), client))
        await begun.wait()
        client.left.set()
        await task
        assert ended == ["cancelled"]
        assert client.status is None

    asyncio.run(attack())


def test_half_sent_headers_and_too_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Are closed, those of a second request on a connection too; whoever asks in order is answered."""
    monkeypatch.setattr(connections, "MOST", 5)
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.2)

    async def attack() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(answering, http=connections.Connection, log_level="critical", lifespan="off")
        server = uvicorn.Server(config)
        running = asyncio.ensure_future(server.serve([listening]))
        while not server.started:
            await asyncio.sleep(0.01)
        place = listening.getsockname()

        async def connect(sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection(*place)
            writer.write(sent)
            return reader, writer

        order = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
        slow = [await connect(b"GET / HTTP/1.1\r\nhost") for _ in range(4)]
        twice = await connect(order)
        assert b"200 OK" in await twice[0].readuntil(b"\r\n\r\n")
        one_more = await connect(order)
        with pytest.raises(ConnectionError):
            if await one_more[0].read() == b"":
                raise ConnectionResetError
        twice[1].write(b"GET / HTTP")
        for reader, _ in [*slow, twice]:
            try:
                await asyncio.wait_for(reader.read(), 5)
            except ConnectionError:
                continue
        assert not server.server_state.connections
        after = await connect(order)
        assert b"200 OK" in await after[0].readuntil(b"\r\n\r\n")
        for _, writer in [*slow, twice, one_more, after]:
            writer.close()
        server.should_exit = True
        await running

    asyncio.run(asyncio.wait_for(attack(), 30))
