"""What all of pytest's processes share: the first that wants it makes it, the last one that used it
stops it.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen

import psutil
from filelock import FileLock

_ours: list[Popen[bytes]] = []
"""Kept for as long as this process lives: others may continue with what it started."""


def once(folder: Path, make: Callable[[Path], None]) -> Path:
    """A folder that is filled by anyone who comes first."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        made = folder.with_name(f"{folder.name}.made")
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            made.touch()
    return folder


@contextmanager
def running(folder: Path, start: Callable[[Path], tuple[Popen[bytes], str]]) -> Iterator[str]:
    """Address of a process that is started by anyone who comes first; `start` returns once it
    answers.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state = folder / "state.json"
    lock = FileLock(folder / "lock")

    def users(change: int) -> tuple[int, int, str]:
        number, pid, address = json.loads(state.read_text())
        state.write_text(json.dumps((number + change, pid, address)))
        return number + change, pid, address

    with lock:
        if not state.exists():
            process, address = start(folder)
            _ours.append(process)
            state.write_text(json.dumps((0, process.pid, address)))
        _, _, address = users(1)
    try:
        yield address
    finally:
        with lock:
            left, pid, _ = users(-1)
            if not left:
                _end(pid)
                state.unlink()


def _end(pid: int) -> None:
    """Ask a process to end and see that it did. Another worker may have started it, and reaps it in
    its own time.
    """
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        process.terminate()
        for _ in range(600):
            if process.status() == psutil.STATUS_ZOMBIE:
                return
            time.sleep(0.1)
        process.kill()
