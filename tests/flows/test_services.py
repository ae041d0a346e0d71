"""Background services under supervision: none is ever missing while the process looks well."""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from jobs import environment

pytestmark = pytest.mark.servers


def test_one_that_fails_ends_the_others_and_is_named() -> None:
    """With its reason."""
    from played_services import Failing, Steady  # Prefect's server takes seconds

    from flows.server.services import ServiceEndedError, supervise

    steady = Steady()

    async def both() -> None:
        await asyncio.wait_for(supervise([steady, Failing()]), 300)

    with pytest.raises(
        ServiceEndedError, match="Failing ended: ConnectionRefusedError: the database system is not"
    ):
        asyncio.run(both())
    assert steady.cancelled


def settings(tmp_path: Path, database: str) -> dict[str, str]:
    return environment(
        PREFECT_HOME=str(tmp_path / "prefect"), PREFECT_API_DATABASE_CONNECTION_URL=database
    )


def test_without_its_database_the_process_ends(tmp_path: Path) -> None:
    """PostgreSQL is away while the real services start: exit code 1, and one line that names who
    ended.
    """
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"postgresql+asyncpg://prefect:none@127.0.0.1:{unused.getsockname()[1]}/prefect"
        done = subprocess.run(
            [sys.executable, "-m", "flows.server.services"],
            env=settings(tmp_path, url),
            capture_output=True,
            text=True,
            timeout=500,
        )
    assert done.returncode == 1, done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("services: ReactiveTriggers ended: ")


TOLD = (
    # a suite in the background ignores the signal
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "import logging; logging.basicConfig(); "
    "logging.getLogger('prefect.server.events').setLevel(logging.DEBUG); "
    "from flows.server.services import main; main()"
)
"""The process with the log of the service that ends above."""


def test_with_its_database_it_runs_until_it_is_stopped(
    migrated: Callable[[Path], Path], tmp_path: Path
) -> None:
    """On SQLite, migrated: the service that ends above continues; SIGINT ends the process."""
    env = settings(tmp_path, f"sqlite+aiosqlite:///{migrated(tmp_path) / 'prefect.db'}")
    env |= {"PREFECT_SERVER_LOGGING_LEVEL": "DEBUG"}
    process = subprocess.Popen(
        [sys.executable, "-c", TOLD], env=env, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        # It reads its automations by then: what PostgreSQL refuses above.
        assert any("Loading automations" in line for line in process.stderr), "it ended before"
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 0
    finally:
        process.kill()
        process.communicate()
