"""Locks between processes: by the system, or by the package `filelock` where it has no `flock`, as
on Windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from storage.durable import open_lock, open_regular
from storage.errors import InputError, Unreadable

FLOCK: Any = import_module("fcntl") if find_spec("fcntl") else None
"""The system's locks, which end with the process; None where it has none."""


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Holds a lock by its file, whose content stays.

    Raises:
        InputError: the file is none, such as a link or a pipe.
        BlockingIOError: another process holds it, and `wait` is false.
    """
    if FLOCK is None:
        with _by_a_library(path, wait=wait):
            yield
        return
    with open_lock(path) as descriptor:
        FLOCK.flock(descriptor, FLOCK.LOCK_EX | (0 if wait else FLOCK.LOCK_NB))
        yield


@contextmanager
def _by_a_library(path: Path, *, wait: bool) -> Iterator[None]:
    from filelock import FileLock, Timeout

    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise Unreadable(
            f"{path}: cannot be used as a lock, because it is not a regular file. Remove it",
            kind="not-a-lock",
        )
    lock = FileLock(path, timeout=-1 if wait else 0)
    try:
        lock.acquire()
    except Timeout:
        raise BlockingIOError(f"{path} is locked") from None
    try:
        yield
    finally:
        lock.release()


def is_locked(path: Path) -> bool:
    """Checks whether a process holds this lock now."""
    try:
        if FLOCK is None:
            if path.is_file():
                with locked(path, wait=False):
                    return False
        else:
            with open_regular(path) as handle:
                FLOCK.flock(handle, FLOCK.LOCK_SH | FLOCK.LOCK_NB)
    except BlockingIOError:
        return True
    except (OSError, InputError):
        pass  # there is none, or it is no file
    return False
