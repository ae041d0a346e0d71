"""What all of pytest's processes share: the first that wants it makes it, the last one that used it stops it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

import psutil
from filelock import FileLock

_ours: list[Popen[bytes]] = []
"""Kept for as long as this process lives: others may go on with what it started."""


def once(folder: Path, make: Callable[[Path], None]) -> Path:
    """A folder that is filled by whoever comes first."""
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
    """Address of a process that is started by whoever comes first; `start` returns once it answers."""
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
                process = psutil.Process(pid)
                process.terminate()
                process.wait(60)
                state.unlink()
