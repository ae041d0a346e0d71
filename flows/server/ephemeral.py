"""Starts the server of a run without PREFECT_API_URL, closed to everybody but the run and its children.

Its password is for this run alone; `settings.configure_prefect` puts it only into the environment. Its port is bound
before it starts and to its end: Prefect's server starts seconds after the choice of a port, in which another user of
the machine could listen there and receive parameters and password.

A signal to the run's whole group (Ctrl-C, a stop by a scheduler) does not reach the server: the run would wait for it
for ever. It ends when the run ends it, or is gone (`flows.server.ephemeral_process`).
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
def ephemeral_server() -> Iterator[None]:
    """Makes the server that Prefect starts on demand listen on a port of ours.

    Enter it before a flow runs, after `configure_prefect`, where no server is named.
    """
    from prefect.server.api.server import SubprocessASGIServer

    class Server(SubprocessASGIServer):
        """Runs Prefect's server on a socket that is already bound, so that nobody else can take its port."""

        bound: socket.socket
        held: int

        def find_available_port(self) -> int:
            self.bound = socket.socket()
            self.bound.bind(("127.0.0.1", 0))  # not listening yet: until the server does, connections are refused
            # guard: the port is bound before the server starts
            return self.bound.getsockname()[1]

        def _run_uvicorn_command(self) -> subprocess.Popen[Any]:
            from prefect.settings import get_current_settings

            ephemeral = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
            settings = get_current_settings().to_environment_variables(exclude_unset=True)
            alive, self.held = os.pipe()  # our end is not inherited: it closes when this process ends
            inherited = (alive, self.bound.fileno())
            try:
                return subprocess.Popen(
                    [sys.executable, "-m", "flows.server.ephemeral_process", *map(str, inherited)],
                    env=os.environ | ephemeral | settings,
                    pass_fds=inherited,
                    process_group=0,  # Ctrl-C, or a stop of the whole group, is for the run, which ends this server
                )
            finally:
                os.close(alive)

    # Prefect makes one server per process, on demand, and looks it up here by the requested port: none.
    servers: dict[int | None, SubprocessASGIServer] = SubprocessASGIServer._instances
    if None not in servers:
        servers[None] = object.__new__(Server)
        servers[None].__init__()
    yield
