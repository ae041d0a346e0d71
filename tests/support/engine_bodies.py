"""Bodies of parts for tests of the engine: functions of a module, which workers import by name."""

import json
import os
import pickle
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from storage.errors import InputError, StorageError


def stored(part: str) -> None:
    """Runs one of the bodies below, and stores its answer as stages do."""
    body, of, file = json.loads(part)
    Path(file).write_text(globals()[body](of))


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
    raise {
        "input": InputError("name a file", kind="no-file"),
        "storage": StorageError("run again", kind="records-changed"),
    }.get(part) or KeyError("a narrative")


def slow(part: str) -> str:
    folder, number = json.loads(part)
    time.sleep(0.5)
    (Path(folder) / f"done-{number}").touch()
    return str(number)


def variable(name: str) -> str:
    return os.environ[name]


class _Trap:
    """Writes a file where it is unpickled."""

    def __init__(self, file: str) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self._file, "w")


def rogue_value(_: Callable[[str], object], file: str, topic: str) -> object:
    return _Trap(file)


def rogue_type(_: Callable[[str], object], file: str, topic: str) -> object:
    """Answers with a value whose type is the trap: Dask tells its clients of the type at once."""
    from distributed import worker_state_machine

    hostile: Any = SimpleNamespace(dumps=lambda _: pickle.dumps(_Trap(file)))
    worker_state_machine.pickle = hostile
    return 1


def rogue_error(_: Callable[[str], object], file: str, topic: str) -> NoReturn:
    import distributed.worker
    from distributed.protocol import to_serialize

    real = distributed.worker.error_message
    hostile: Any = lambda *given: real(*given) | {"exception": to_serialize(_Trap(file))}  # noqa: E731
    distributed.worker.error_message = hostile
    raise RuntimeError


def rogue_warning(_: Callable[[str], object], file: str, topic: str) -> None:
    from distributed import get_worker

    get_worker().log_event("warn", {"message": pickle.dumps(_Trap(file))})
    time.sleep(1)


def rogue_events(_: Callable[[str], object], file: str, topic: str) -> NoReturn:
    """Says why it failed in another form than this program's workers."""
    from distributed import get_worker

    for said in (
        "no JSON",
        "[]",
        json.dumps(["unknown", "x"]),
        json.dumps(["input", "without a kind"]),
        json.dumps(["input", "x", 1]),
        json.dumps(["input", "\x1b[31mred", "\x1b[31m"]),
    ):
        get_worker().log_event(topic, said)
    raise RuntimeError
