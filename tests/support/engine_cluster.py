"""A scheduler and a worker on this machine, started by the commands that an operator gives."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from stack import free_port

from storage.errors import InputError
from tasks.running import engine


class Cluster:
    def __init__(self, folder: Path) -> None:
        engine.make_certificates(folder / "cluster")
        self.port, self.folder = free_port(), folder
        self.address = f"tls://127.0.0.1:{self.port}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> None:
        path = os.pathsep.join(sys.path)
        env = os.environ | {engine.CERTIFICATES: str(self.folder / "cluster"), "PYTHONPATH": path}
        command = [sys.executable, "-m", "flows.cli", *arguments]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command, env=env, stdout=log, stderr=log, cwd=self.folder
            )

    def start_scheduler(self) -> None:
        self.start("scheduler", "engine", "--port", str(self.port))

    def start_worker(self) -> None:
        self.start("worker", "engine", "--join", self.address, "--home", str(self.folder / "home"))

    def end(self, name: str) -> None:
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL if name == "scheduler" else signal.SIGTERM)
        process.wait(60)

    def wait_for_a_worker(self) -> None:
        while True:
            try:
                engine.check(self.address)
                return
            except InputError:
                engine.disconnect(self.address)
                time.sleep(0.5)

    def close(self) -> None:
        engine.disconnect(self.address)
        for name in list(self.processes):
            self.end(name)
