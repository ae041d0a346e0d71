"""The server that a run starts for itself where none is named: closed to everybody but the run and its children.

It has a password of this run, which `settings.before_prefect` puts into the environment alone. Its port is taken before
it starts and kept to the end: between Prefect's choice of a port and its server's start lie seconds, in which another
user of the machine could listen there and be told parameters and password.

A signal to the run's whole group (Ctrl-C, a stop by a scheduler) is not for the server: the run would wait for it for
ever. It ends when the run ends it, or is gone (`flows.server.attended`).
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def own_server() -> Iterator[None]:
    """Where no server is named, the one that Prefect starts when it is first asked listens on a port of ours.

    To be entered before a flow runs, after `before_prefect`.
    """
    from prefect.settings import PREFECT_API_URL

    if PREFECT_API_URL.value():
        yield
        return
    from prefect.server.api.server import SubprocessASGIServer

    class Server(SubprocessASGIServer):
        """Prefect's own, on a socket that is bound already; nobody else can bind to its port any more."""

        bound: socket.socket
        held: int

        def find_available_port(self) -> int:
            self.bound = socket.socket()
            self.bound.bind(("127.0.0.1", 0))  # not listening yet: until the server does, connections are refused
            return self.bound.getsockname()[1]

        def _run_uvicorn_command(self) -> subprocess.Popen[Any]:
            from prefect.settings import get_current_settings

            ephemeral = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
            settings = get_current_settings().to_environment_variables(exclude_unset=True)
            alive, self.held = os.pipe()  # our end is not inherited: it closes when this process ends
            inherited = (alive, self.bound.fileno())
            try:
                return subprocess.Popen(
                    [sys.executable, "-m", "flows.server.attended", *map(str, inherited)],
                    env=os.environ | ephemeral | settings,
                    pass_fds=inherited,
                    process_group=0,  # Ctrl-C, or a stop of the whole group, is for the run, which ends this server
                )
            finally:
                os.close(alive)

    # Prefect makes one server a process, on demand, and finds it here by the port that was asked for: none.
    known: dict[int | None, SubprocessASGIServer] = SubprocessASGIServer._instances
    if None not in known:
        known[None] = object.__new__(Server)
        known[None].__init__()
    yield
