"""Would win: parameters and internal figures of a run, or its end, from another user of the same machine."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import WebSocketException
from websockets.typing import Subprotocol

pytestmark = pytest.mark.servers

DECLARES = (
    (
        "a run is its own user's",
        "reading, cancelling, deleting by its server without the password, with guesses, forged hosts, "
        "other origins, by streams; taking its port before it starts or after it dies; command lines",
        "processes of the same user, and root",
    ),
)
"""Rows of docs/threat-model.md: promise, attacks tried, what is not promised."""

RUN = """
import sys
from pathlib import Path
from flows.server.settings import configure_prefect
configure_prefect(Path(sys.argv[1]), make_home=True)
from flows.server.ephemeral import ephemeral_server
from prefect import flow, get_client

@flow(name="victim", persist_result=False)
def victim(population: str) -> None:
    with get_client(sync_client=True) as client:
        print(client.api_url, flush=True)
        sys.stdin.readline()
        (run,) = client.read_flow_runs()
        print(run.state.type.value, flush=True)

with ephemeral_server():
    victim(population="a secret population")
"""


@pytest.fixture(scope="module")
def attacked(
    tmp_path_factory: pytest.TempPathFactory, migrated: Callable[[Path], Path]
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A run at work on a server of its own, and that server's address."""
    home = tmp_path_factory.mktemp("run")
    migrated(home / "prefect")
    unset = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    command = [sys.executable, "-c", RUN, str(home)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=unset) as running:
        assert running.stdout
        yield running, running.stdout.readline().strip()
        told, _ = running.communicate("\n", timeout=120)
    assert (running.returncode, told) == (0, "RUNNING\n"), "the run itself was let in, and nobody stopped it"


PASSWORDS = {
    "none": {},
    "empty": {"Authorization": "Basic Og=="},
    "a guess": {"Authorization": "Basic cnVuOnJ1bg=="},
    "a bearer": {"Authorization": "Bearer run"},
    "a forged host": {"Host": "127.0.0.1/api/health"},
}


@pytest.mark.parametrize("headers", PASSWORDS.values(), ids=PASSWORDS)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "flow_runs/filter"),
        ("POST", "artifacts/filter"),
        ("POST", "logs/filter"),
        ("POST", "events/filter"),
        ("POST", "task_runs/filter"),
        ("GET", "admin/settings"),
        ("POST", "admin/database/clear"),
        ("GET", "csrf-token?client=x"),
        ("DELETE", "flow_runs/00000000-0000-0000-0000-000000000000"),
        ("POST", "flow_runs/00000000-0000-0000-0000-000000000000/set_state"),
        ("GET", "variables/name/health"),
        ("GET", "health/../admin/settings"),
    ],
)
def test_whoever_has_no_password(
    attacked: tuple[subprocess.Popen[str], str], method: str, path: str, headers: dict[str, str]
) -> None:
    """Reads, changes and deletes nothing."""
    answer = httpx.request(method, f"{attacked[1]}{path}", json={}, headers=headers, timeout=30)
    assert answer.status_code in {400, 401, 404}, answer.text
    assert "secret" not in answer.text


def test_a_page_of_another_origin(attacked: tuple[subprocess.Popen[str], str]) -> None:
    """Is allowed nothing by the browser's question before the question."""
    for origin in ("https://evil.example", "null", "http://127.0.0.1:8000"):
        asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        answer = httpx.options(f"{attacked[1]}flow_runs/filter", headers=asked, timeout=30)
        assert answer.headers.get("access-control-allow-origin") not in {origin, "*"}


@pytest.mark.parametrize("path", ["events/out", "events/in", "logs/out"])
@pytest.mark.parametrize("protocols", [None, [Subprotocol("prefect")]], ids=["as before", "as now"])
def test_a_stream(attacked: tuple[subprocess.Popen[str], str], path: str, protocols: list[Subprotocol] | None) -> None:
    """Of events or logs is not opened either."""

    async def attack() -> Any:
        url = attacked[1].replace("http", "ws") + path
        try:
            async with connect(url, subprotocols=protocols) as stream:
                await stream.send(json.dumps({"type": "auth", "token": "a guess"}))
                await stream.send(json.dumps({"type": "filter", "filter": {}}))
                return await asyncio.wait_for(stream.recv(), 30)
        except WebSocketException:
            return None

    said = asyncio.run(attack())
    assert said is None or json.loads(said)["type"] == "auth_failure"


def test_what_everybody_may_see_of_its_processes(attacked: tuple[subprocess.Popen[str], str]) -> None:
    """Command lines hold no password."""
    whole = psutil.Process(attacked[0].pid)
    processes = [whole, *whole.children(recursive=True)]
    assert len(processes) > 1, "its server"
    words = {word for process in processes for word in process.cmdline()}
    for process in processes:
        password = process.environ().get("PREFECT_API_AUTH_STRING", "")
        assert not any(password and password in word for word in words)


def test_the_port_is_never_free(
    migrated: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever tries to bind to it while the server starts, and after that server died, is refused."""
    from prefect.server.api.server import SubprocessASGIServer

    from flows.server.ephemeral import ephemeral_server

    monkeypatch.setattr(SubprocessASGIServer, "_instances", {})
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(migrated(tmp_path / "prefect")))
    taken: list[int] = []
    over = threading.Event()

    def squat(port: int) -> None:
        while not over.is_set():
            for option in (None, socket.SO_REUSEADDR, socket.SO_REUSEPORT):
                with socket.socket() as thief:
                    if option is not None:
                        thief.setsockopt(socket.SOL_SOCKET, option, 1)
                    try:
                        thief.bind(("127.0.0.1", port))
                        thief.listen()
                    except OSError:
                        continue
                    taken.append(port)
            time.sleep(0.001)

    with ephemeral_server():
        server = SubprocessASGIServer()
        port = server.port = server.find_available_port()
        attacker = threading.Thread(target=squat, args=(port,))
        attacker.start()
        try:
            server.start(timeout=120)
            assert server.server_process
            server.server_process.kill()
            server.server_process.wait()
            time.sleep(0.2)
        finally:
            over.set()
            attacker.join()
            server.stop()
    assert not taken
