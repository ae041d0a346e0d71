"""Bodies of parts for tests of the engine: functions of a module, which workers import by name."""

import json
import os
import signal
import time
from pathlib import Path

from storage.errors import InputError, StorageError


def square(part: str) -> str:
    return str(int(part) ** 2)


def where(part: str) -> str:
    """Takes a moment, so that no worker computes all parts, and tells which process did."""
    time.sleep(0.2)
    return str(os.getpid())


def die_once(part: str) -> str:
    """Ends its own process the first time, as a machine without memory does."""
    folder, number = json.loads(part)
    mark = Path(folder) / f"died-{number}"
    if number == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.1)
    return str(number)


def die(part: str) -> str:
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
    return part


def fail(part: str) -> str:
    """Fails as asked for; a library's error quotes a value."""
    raise {"input": InputError("name a file"), "storage": StorageError("run again")}.get(
        part
    ) or KeyError("a narrative")


def slow(part: str) -> str:
    folder, number = json.loads(part)
    time.sleep(0.5)
    (Path(folder) / f"done-{number}").touch()
    return str(number)


def variable(name: str) -> str:
    return os.environ[name]
