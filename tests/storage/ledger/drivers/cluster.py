"""A PostgreSQL server of its own, for tests that restart it or fill its disk."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path


def find_binaries() -> Path | None:
    """Return the folder of PostgreSQL's server programs, None where there are none."""
    on_path = shutil.which("initdb")
    if on_path and Path(on_path).with_name("pg_ctl").exists():
        return Path(on_path).parent
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return found[-1].parent if found else None


class Cluster:
    """A server whose data are in `folder`; it never runs as root, which PostgreSQL refuses."""

    def __init__(self, folder: Path) -> None:
        binaries = find_binaries()
        if binaries is None:
            raise FileNotFoundError("no PostgreSQL server programs (initdb, pg_ctl)")
        self.binaries, self.folder = binaries, folder
        self.user = "postgres" if os.geteuid() == 0 else None
        if self.user:
            shutil.chown(folder, self.user)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._run(
            "initdb",
            "-D",
            str(folder / "data"),
            "-A",
            "trust",
            "-U",
            "owner",
            "-E",
            "UTF8",
            "--no-sync",
            "--wal-segsize=1",
        )

    @property
    def url(self) -> str:
        """The server's `postgres` database, as its superuser."""
        return f"postgresql+psycopg://owner@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start and wait until it answers."""
        options = (
            f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c "
            "shared_buffers=8MB"
            " -c max_wal_size=4MB -c min_wal_size=2MB -c autovacuum=off"
        )
        log = str(self.folder / "server.log")
        self._run(
            "pg_ctl", "-D", str(self.folder / "data"), "-l", log, "-w", "-o", options, "start"
        )

    def stop(self, mode: str = "immediate") -> None:
        """Stop; `immediate` is as good as a power cut."""
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-w", "-m", mode, "stop")

    def is_running(self) -> bool:
        """Whether the postmaster lives."""
        status = [str(self.binaries / "pg_ctl"), "-D", str(self.folder / "data"), "status"]
        return (
            subprocess.run(status, user=self.user, capture_output=True, check=False).returncode == 0
        )

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [str(self.binaries / program), *arguments],
            user=self.user,
            cwd=self.folder,
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        )
