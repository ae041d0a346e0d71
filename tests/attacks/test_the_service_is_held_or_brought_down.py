"""Would win: the service's memory, connections or model, by requests that never end or that no one
waits for.
"""

import asyncio
import gc
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.testclient import TestClient

from service import files
from service.app import Settings, create_app
from service.clients import Clients, State
from service.guard import Guard
from storage.errors import InputError
from tasks.coding.coder import Coder

pytestmark = pytest.mark.servers

DECLARES = """
the service is not held by those behind the proxy
| handshakes, headers, bodies, chunks, trailers and answers without an end, 20 states; forty
handshakes; files whose answer nobody reads, or whose client left while they were read; bodies
without a key, of no stated length; requests that nobody waits for; 12 forged hosts at four paths
| without `deployments/serve.Caddyfile`: anyone who reaches the port; how many connections an
address opens and how much it asks for, which a firewall limits; half of these attacks run only
where Caddy is installed
"""


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
            return {
                "type": "http.request",
                "body": piece,
                "more_body": bool(self._pieces) or not self._whole,
            }
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.answers.append(message)

    @property
    def status(self) -> int | None:
        return self.answers[0]["status"] if self.answers else None


async def answering(scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def keyed(request: Request) -> str:
    if (key := request.headers.get("x-api-key")) not in ("k", "l"):
        raise HTTPException(401, "no")
    return key


def guard(app: Any = answering, **options: Any) -> Guard:
    settings: dict[str, Any] = {"most_bytes": 100, "admit": keyed} | options
    return Guard(app, headers={}, **settings)


async def serve(layer: Guard, client: Client) -> None:
    await layer(client.scope, client.receive, client.send)


@pytest.mark.parametrize("key", [b"", b"K", b"k "])
def test_a_body_without_a_key(key: bytes) -> None:

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


CADDY = shutil.which(os.environ.get("AUTOCODER_TEST_CADDY", "caddy"))
CONFIGURATION = Path(__file__).parents[2] / "deployments" / "serve.Caddyfile"
KEYS = {"anna": "anna's key of sixteen", "ben": "ben's key, as long too"}
HEAD = b"POST /code HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: anna's key of sixteen\r\n"
SLOW: dict[
    str, tuple[bytes, bytes]
] = {  # what is sent at once, and what again and again until the connection is closed
    "nothing": (b"", b""),
    "a letter": (b"G", b""),
    "half a header": (b"GET / HTTP/1.1\r\nHost", b""),
    "a header without an end": (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nx: ", b"a"),
    "headers without an end": (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n", b"x: a\r\n"),
    "blank lines": (b"\r\n", b"\r\n"),
    "half a body": (HEAD + b"Content-Length: 100\r\n\r\n{", b""),
    "a body by letters": (HEAD + b"Content-Length: 100000\r\n\r\n{", b" "),
    "a body of no length": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", b""),
    "chunks without an end": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "a chunk's length alone": (HEAD + b"Transfer-Encoding: chunked\r\n\r\nfff", b""),
    "trailers without an end": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"x: a\r\n"),
    "a file's body": (
        HEAD.replace(b"/code", b"/file?column=Text") + b"Content-Length: 4000000\r\n\r\nText\n",
        b"a\n",
    ),
    "a body without a key": (
        b"POST /code HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{",
        b" ",
    ),
    "a second request": (b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET / HTTP", b""),
    "an expectation": (HEAD + b"Content-Length: 100\r\nExpect: 100-continue\r\n\r\n", b""),
}


def port_of() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def site(coder: Coder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The service as `serve` starts it, behind Caddy with the shipped configuration and shorter
    times.
    """
    if CADDY is None:
        pytest.skip("no caddy (AUTOCODER_TEST_CADDY): the proxy's deadlines are not tried")
    inner, outer = port_of(), port_of()
    settings = Settings(state=State(Clients.of(KEYS)), hosts=("127.0.0.1",))
    config = uvicorn.Config(
        create_app(coder, settings), port=inner, http="h11", log_level="critical"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    home = tmp_path_factory.mktemp("caddy")
    times = {f"AUTOCODER_{name}_TIME": "1s" for name in ("HEADER", "BODY", "IDLE")} | {
        "AUTOCODER_ANSWER_TIME": "3s"
    }
    places = {
        "AUTOCODER_PORT": str(outer),
        "AUTOCODER_SERVICE": f"127.0.0.1:{inner}",
        "HOME": str(home),
    }
    command = [CADDY, "run", "--config", str(CONFIGURATION), "--adapter", "caddyfile"]
    caddy = subprocess.Popen(
        command,
        env=os.environ | times | places | {"XDG_DATA_HOME": str(home)},
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(200):
            try:
                if _answer(
                    outer, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
                ):
                    break
            except OSError:
                time.sleep(0.1)
        yield outer
    finally:
        caddy.terminate()
        caddy.wait()
        server.should_exit = True
        thread.join()


def _connect(port: int) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    plain = socket.create_connection(("127.0.0.1", port), 20)
    return context.wrap_socket(plain, server_hostname="127.0.0.1")


def _answer(port: int, sent: bytes) -> bytes:
    with _connect(port) as connection:
        connection.sendall(sent)
        return connection.recv(65536)


def _closed(connection: socket.socket, again: bytes) -> None:
    """Sends on until the other side closes, for a minute: a slow machine's proxy is late."""
    connection.settimeout(0.2)
    for _ in range(300):
        try:
            if again:
                connection.sendall(again)
            if connection.recv(65536) == b"":
                return
        except TimeoutError:
            continue
        except OSError:
            return
    raise AssertionError("the connection stays open")


def test_states_without_an_end(site: int) -> None:
    """All at once: the proxy closes each connection at its deadline, and another client is answered
    meanwhile.
    """

    def hold(sent: bytes, again: bytes) -> None:
        with _connect(site) as connection:
            connection.sendall(sent)
            _closed(connection, again)

    with ThreadPoolExecutor(len(SLOW)) as pool:
        held = {name: pool.submit(hold, *how) for name, how in SLOW.items()}
        assert b" 200 " in _answer(
            site, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        )
    assert [name for name, one in held.items() if one.exception()] == []
    assert b" 200 " in _answer(
        site, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    )


@pytest.mark.parametrize("sent", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/1.1\r\n"])
def test_a_handshake_that_does_not_begin_or_end(site: int, sent: bytes) -> None:
    """The same before TLS is there; forty of them hold no one."""
    held = [socket.create_connection(("127.0.0.1", site), 20) for _ in range(40)]
    for connection in held:
        connection.sendall(sent)
    assert b" 200 " in _answer(
        site, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    )
    for connection in held:
        _closed(connection, b"")
        connection.close()


def test_answers_that_nobody_reads(site: int) -> None:
    """Requests in a row whose answers are not read: closed at the answer's deadline; others are
    answered meanwhile.
    """
    held = [_connect(site) for _ in range(8)]

    def ask(connection: ssl.SSLSocket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(1)
        with suppress(OSError):
            for _ in range(300):
                connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 20)

    with ThreadPoolExecutor(len(held)) as pool:
        list(pool.map(ask, held))
    assert b" 200 " in _answer(
        site, b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    )
    for connection in held:
        connection.settimeout(20)
        with suppress(ConnectionError, ssl.SSLError):
            while connection.recv(1 << 20):
                pass
        connection.close()


HOSTS = [
    *(
        "evil.example",
        "evil.example:8321",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "",
        "*",
        "127.0.0.2",
    ),
    *(
        "localhost@evil.example",
        "LOCALHOST.evil",
        "evil.example:127.0.0.1",
        "[::1].evil.example",
        "xn--lcalhost-54a",
    ),
]


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/"), ("GET", "/version"), ("POST", "/code"), ("GET", "/openapi.json")],
)
def test_a_page_that_makes_its_name_this_machine(
    coder: Coder, host: str, method: str, path: str
) -> None:
    """A browser then asks by that page's name (DNS rebinding): only this service's own names are
    answered.
    """
    app = create_app(coder, Settings(hosts=("localhost", "127.0.0.1")))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        body: dict[str, Any] = {"json": {"narratives": "x"}} if method == "POST" else {}
        assert client.request(method, path, headers={"host": host}, **body).status_code == 400
        assert client.get("/health").status_code == 200


def test_a_file_whose_answer_nobody_reads(
    coder: Coder, narratives: Callable[..., list[str]]
) -> None:
    """It is coded to its end, and others' files after it; the same client's next one waits for it
    to be read.
    """

    async def attack() -> None:
        app = create_app(coder, Settings(state=State(Clients.of(KEYS))))
        content = "\n".join(["Text", *narratives(60)]).encode()
        reading = asyncio.Event()

        async def send_file(key: str, *, read: bool) -> int:
            scope: Any = {
                "type": "http",
                "method": "POST",
                "path": "/file",
                "raw_path": b"/file",
                "scheme": "http",
            }
            scope |= {
                "query_string": b"column=Text",
                "client": ("127.0.0.1", 1),
                "server": ("127.0.0.1", 80),
            }
            scope |= {
                "headers": [
                    (b"x-api-key", key.encode()),
                    (b"content-length", str(len(content)).encode()),
                ]
            }
            sent: list[Any] = []
            asked = iter([{"type": "http.request", "body": content, "more_body": False}])

            async def receive() -> Any:
                if (message := next(asked, None)) is not None:
                    return message
                return await asyncio.Event().wait()

            async def send(message: Any) -> None:
                sent.append(message)
                if not read:
                    await reading.wait()

            await app(scope, receive, send)
            return sent[0]["status"]

        async with app.router.lifespan_context(app):
            held = asyncio.create_task(send_file(KEYS["anna"], read=False))
            for _ in range(3):
                assert await send_file(KEYS["ben"], read=True) == 200
            assert await send_file(KEYS["anna"], read=True) == 503
            reading.set()
            assert await held == 200
            assert await send_file(KEYS["anna"], read=True) == 200

    asyncio.run(asyncio.wait_for(attack(), 60))
    assert files.AT_ONCE == 2


def test_a_file_whose_client_left(
    coder: Coder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Sent and left, again and again: a thread reads on, so that the next one waits for it. As many
    were read at a time as a client sent, each in memory, and the answer to a revocation waited
    behind them. The first one is refused when no one waits: the log does not get what the client
    would have read.
    """
    free, begun = threading.Event(), threading.Semaphore(0)
    at_once: list[int] = [0, 0]
    refused: list[InputError] = []
    read = files.read

    def slowly(*arguments: Any, **options: Any) -> Any:
        at_once[0] += 1
        at_once[1] = max(at_once)
        begun.release()
        free.wait(30)
        at_once[0] -= 1
        if not refused:
            refused.append(InputError("file: no column named like Employee fell"))
            raise refused[0]
        return read(*arguments, **options)

    monkeypatch.setattr(files, "read", slowly)

    async def attack() -> None:
        app = create_app(coder, Settings(state=State(Clients.of(KEYS))))
        content = b"Text\na fall\n"

        async def send_file(*, leaves: bool) -> int | None:
            scope: Any = {
                "type": "http",
                "method": "POST",
                "path": "/file",
                "raw_path": b"/file",
                "scheme": "http",
            }
            scope |= {
                "query_string": b"column=Text",
                "client": ("127.0.0.1", 1),
                "server": ("127.0.0.1", 80),
            }
            scope |= {
                "headers": [(b"x-api-key", KEYS["anna"].encode()), (b"content-length", b"12")]
            }
            sent: list[Any] = []
            asked = iter([{"type": "http.request", "body": content, "more_body": False}])

            async def receive() -> Any:
                if (message := next(asked, None)) is not None:
                    return message
                if leaves:
                    await asyncio.to_thread(begun.acquire, timeout=1)
                    return {"type": "http.disconnect"}
                return await asyncio.Event().wait()

            async def send(message: Any) -> None:
                sent.append(message)

            await app(scope, receive, send)
            return sent[0]["status"] if sent else None

        async with app.router.lifespan_context(app):
            assert await send_file(leaves=True) is None
            for _ in range(3):
                assert await send_file(leaves=True) in (None, 503)
            assert await send_file(leaves=False) == 503
            free.set()
            while await send_file(leaves=False) == 503:
                await asyncio.sleep(0.01)
            assert await send_file(leaves=False) == 200

    asyncio.run(asyncio.wait_for(attack(), 60))
    assert at_once[1] == 1
    gc.collect()  # an exception that nobody took is logged when its task goes
    assert refused
    assert "Employee fell" not in caplog.text
