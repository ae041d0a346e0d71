"""Locks between processes, with `flock` or, on systems without it such as Windows, with the package
`filelock`.
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
"""The system's locks, which end with the process; None if the system has none."""


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Holds a lock on a file without changing its content.

    Raises:
        InputError: not a regular file, such as a link or a pipe.
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
    """Whether a process currently holds this lock."""
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
        pass  # the file does not exist or is not a regular file
    return False
