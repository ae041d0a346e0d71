"""Distributes the fit of a stage over processes on this machine. The stage's own process is rank 0,
and the others follow it.

A follower receives its instructions on its standard input: settings and paths, never a key or a
record. It ends when that pipe closes, so it cannot outlive the stage. Locks, checkpoints, progress
and stored outputs belong to the stage's process.
"""

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
from pydantic import BaseModel

from mechanisms.model import classifier, ranks, threads
from storage.artifacts import Recipe, Stage
from storage.errors import OutOfRange
from tasks.running.failures import SAFE, StageError, private_errors
from tasks.running.stage import Context, Work

_TURN = threading.Lock()
"""Torch allows one process group per process, so fits in several threads take turns."""
_READY = "ready"
_LONGEST_START = 600.0
"""Seconds in which a follower must have imported its function."""


class Following(BaseModel, frozen=True, extra="forbid"):
    follow: str
    """Path `module:function` of the function that fits from a `Work` and settings and stores
    nothing.
    """
    settings: dict[str, Any]
    inputs: dict[str, Path]
    scratch: Path
    home: str
    device: str
    meeting: Path
    rank: int
    ranks: int


@contextmanager
def shared(work: Work, follow: str, settings: Mapping[str, object]) -> Iterator[None]:
    """Makes fits inside the block run as rank 0, together with as many followers as the context's
    processes ask for.
    """
    number = work.context.processes
    if number == 1:
        yield
        return
    device = classifier.device_of(work.context.device)
    if device.type == "cuda" and torch.cuda.device_count() < number:
        raise OutOfRange(
            f"--processes {number}: this machine has {torch.cuda.device_count()} "
            "GPUs. Use one process per GPU.",
            kind="too-many-processes",
        )
    with _TURN, tempfile.TemporaryDirectory(prefix="ranks-") as folder, ExitStack() as stack:
        order = Following(
            follow=follow,
            settings=dict(settings),
            inputs=dict(work.inputs),
            scratch=work.scratch,
            home=work.context.home,
            device=device.type,
            meeting=Path(folder) / "meeting",
            rank=0,
            ranks=number,
        )
        followers = {
            r: stack.enter_context(_follower(order.model_copy(update={"rank": r})))
            for r in range(1, number)
        }
        for r, first_answer in followers.items():
            answer = first_answer()
            if answer != _READY:
                reason = answer or f"See {_log(order, r)} for its errors."
                raise StageError(f"{work.label}: a process of the training did not start. {reason}")
        with _joined(order):
            yield
        shutil.rmtree(_logs(order))


@contextmanager
def _joined(order: Following) -> Iterator[None]:
    device, threads_each = (
        classifier.device_of(order.device),
        max(1, (os.cpu_count() or 1) // order.ranks),
    )
    joined = ranks.joined(order.meeting, rank=order.rank, ranks=order.ranks, device=device)
    with threads.using(threads_each), joined:
        yield


def _log(order: Following, rank: int) -> Path:
    """What a follower prints about its errors, kept in the private workspace until a fit succeeds,
    because a library's message may quote a value. It has a folder next to the fit's own, which
    contains files of the fit alone; `autocoder clean` removes both.
    """
    return _logs(order) / f"process-{rank}.log"


def _logs(order: Following) -> Path:
    return order.scratch.with_name(f"{order.scratch.name}-processes")


@contextmanager
def _follower(order: Following) -> Iterator[Callable[[], str]]:
    """Starts a follower. Yields a function that waits for its first line, which is empty if the
    process ended or took too long.
    """
    path = _log(order, order.rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tasks.running.ranks"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
    assert process.stdin is not None
    assert process.stdout is not None
    limit = threading.Timer(_LONGEST_START, process.kill)
    limit.daemon = True
    with process:
        try:
            process.stdin.write(order.model_dump_json() + "\n")
            process.stdin.flush()
            limit.start()
            yield partial(_first_answer, process.stdout, limit)
        finally:
            limit.cancel()
            process.kill()  # after a successful fit it has nothing left to do


def _first_answer(stdout: IO[str], limit: threading.Timer) -> str:
    line = stdout.readline().strip()
    limit.cancel()
    return line


def _follow(order: Following) -> None:
    module, _, name = order.follow.partition(":")
    follow = getattr(importlib.import_module(module), name)
    device = f"cuda:{order.rank}" if order.device == "cuda" else order.device
    context = Context(home=order.home, device=device, engine="")
    recipe: Recipe = {"config": {}, "inputs": {}, "code": ""}
    nowhere = Stage("", "", order.scratch, order.scratch, None, recipe, context.store)
    _say(_READY)
    with _joined(order):
        follow(Work(nowhere, context, order.inputs, {}, lambda done, total: None), order.settings)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _end_with(pipe: IO[str]) -> None:
    pipe.read()
    os._exit(1)


if __name__ == "__main__":
    order = Following.model_validate_json(sys.stdin.readline())
    threading.Thread(target=_end_with, args=[sys.stdin], daemon=True).start()
    try:
        with private_errors("fit"):
            _follow(order)
    except SAFE as error:
        _say(str(error))
        sys.exit(1)
