"""What can go wrong with a run on the stack, and what a test needs to make it so."""

import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import redis
from runs import processes_of
from stack import settings_of_containers
from stacks import ROOT, Stack


class Proxy:
    """A TCP proxy that can stop forwarding without closing anything, as a network does that is cut.

    Args:
        port: loopback port of the server behind it.
    """

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._whole = threading.Event()
        self._whole.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._closed = False
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """From now on nothing passes, in either direction; new connections hang."""
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

    def close(self) -> None:
        self._closed = True
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        self._whole.wait()
        with (
            client,
            suppress(OSError),
            socket.create_connection(self._target, timeout=30) as server,
            selectors.DefaultSelector() as ready,
        ):
            ready.register(client, selectors.EVENT_READ, (client, server))
            ready.register(server, selectors.EVENT_READ, (server, client))
            while not self._closed:
                for key, _ in ready.select(timeout=1):
                    source, sink = key.data
                    data = source.recv(65536)
                    self._whole.wait()
                    if not data:
                        return
                    sink.sendall(data)


@dataclass
class Worker:
    """A worker of a pool of its own, which reaches the server through a proxy."""

    stack: Stack
    pool: str
    proxy: Proxy
    process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        """Its own, and that of the runs that it starts: as docs/how-to/scale-out.md says it."""
        return settings_of_containers("worker") | self.stack.environment(
            PREFECT_API_URL=f"http://127.0.0.1:{self.proxy.port}/api",
            PREFECT_HOME=str(self.stack.folder / "prefect" / self.pool),
            PREFECT_WORKER_QUERY_SECONDS="1",
        )

    def start(self) -> None:
        """Start it; it makes its pool where there is none."""
        command = ("worker", "start", "--pool", self.pool, "--type", "process", "--name", self.pool)
        with (self.stack.folder / "logs" / f"{self.pool}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "prefect", *command],
                env=self.environment,
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.kill()
        for child in children:
            with suppress(psutil.Error):
                child.kill()


@dataclass
class Scene:
    """One run and all that can be hurt."""

    stack: Stack
    worker: Worker
    run: dict[str, Any]
    cut_seconds: float
    spare: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def component(self, *names: str) -> None:
        """Kill components of the stack, and wait until they are back."""
        before = self.stack.state["processes"]
        for name in names:
            os.kill(before[name], signal.SIGKILL)
        self.stack.wait(
            "the restart", lambda: all(self.stack.state["processes"][n] != before[n] for n in names)
        )


def process_killed(scene: Scene) -> None:
    """The run's process dies; its worker lives and says so."""
    for process in processes_of(scene.run):
        with suppress(psutil.Error):
            process.kill()


def host_lost(scene: Scene) -> None:
    """Worker and process die at once, and another worker comes up: only the missing heartbeat
    tells.
    """
    scene.worker.kill()
    process_killed(scene)
    scene.worker.start()


def server_killed(scene: Scene) -> None:
    scene.component("server", "services")


def postgres_killed(scene: Scene) -> None:
    scene.component("postgres")


def postgres_away(scene: Scene) -> None:
    """Stops PostgreSQL as an upgrade of it does; meanwhile the stack cannot start it again."""
    data, away = (scene.stack.folder / "postgres" / name for name in ("data", "away"))
    data.rename(away)
    try:
        os.kill(scene.stack.state["processes"]["postgres"], signal.SIGINT)
        time.sleep(scene.cut_seconds)
    finally:
        away.rename(data)


def redis_lost(scene: Scene) -> None:
    host, _, port = scene.stack.state["redis"].rpartition(":")
    with redis.Redis(host, int(port), password=scene.stack.secret("redis")) as client:
        client.flushall()
    scene.component("redis")


def network_cut(scene: Scene) -> None:
    """Between the worker, with its run, and the server."""
    scene.worker.proxy.cut()
    time.sleep(scene.cut_seconds)
    scene.worker.proxy.mend()


def handed_to_two(scene: Scene) -> None:
    """A second process executes the same run, as if another worker had been given it too."""
    env = scene.worker.environment | {"PREFECT__FLOW_RUN_ID": scene.run["id"]}
    with (scene.stack.folder / "logs" / "second.log").open("ab") as log:
        scene.spare.append(
            subprocess.Popen(
                [sys.executable, "-m", "prefect.engine"], env=env, stdout=log, stderr=log, cwd="/"
            )
        )


FAULTS: dict[str, Callable[[Scene], None]] = {
    "process-killed": process_killed,
    "host-lost": host_lost,
    "server-killed": server_killed,
    "postgres-killed": postgres_killed,
    "postgres-away": postgres_away,
    "redis-lost": redis_lost,
    "network-cut": network_cut,
    "handed-to-two": handed_to_two,
}


@dataclass(frozen=True)
class Disk:
    """A disk of its own under a folder, with room enough for a run until it is filled."""

    folder: Path

    def fill(self) -> None:
        with suppress(OSError), (self.folder / "ballast").open("wb", buffering=0) as ballast:
            while True:
                ballast.write(bytes(1 << 16))

    def free(self) -> None:
        (self.folder / "ballast").unlink()


@contextmanager
def own_disk(folder: Path) -> Iterator[Disk | None]:
    """A disk of 600 MB, mounted at a folder that is made; None where this user may
    not mount one.
    """
    folder.mkdir()
    command = ("mount", "-t", "tmpfs", "-o", "size=600m,mode=755", "tmpfs", str(folder))
    if not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode:
        yield None
        return
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)
