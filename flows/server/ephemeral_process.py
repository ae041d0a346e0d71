"""Serves Prefect's API to one run, and ends with it, however that ends.

    python -m flows.server.ephemeral_process ALIVE SOCKET

ALIVE is the read end of a pipe whose other end the run holds and never writes to: the system closes that one when the
run ends, by `kill -9` too. SOCKET is bound and does not listen yet. Both are inherited descriptors.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

PATIENCE = 5.0
"""Seconds that the server may take to close its database."""


def main(alive: int, bound: int) -> None:
    """Serve until the run ends."""
    import uvicorn

    threading.Thread(target=_end_with_the_run, args=(alive,), daemon=True).start()
    uvicorn.run("prefect.server.api.server:create_app", factory=True, fd=bound, log_level="error", lifespan="on")


def _end_with_the_run(alive: int) -> None:
    os.read(alive, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE)
    os._exit(1)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
