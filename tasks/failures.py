"""Nothing of a record in an exception: Prefect stores the text of every one that leaves a task.

Errors of our own carry text made to be shown. Of any other only its type and the place in *our* code is told: the text
of a library's error may quote the value it choked on.
"""

from __future__ import annotations

import errno
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from mechanisms.errors import MechanismError
from storage.errors import StorageError

P = ParamSpec("P")
R = TypeVar("R")

_ROOT = Path(__file__).resolve().parent.parent
_DISK = {errno.ENOSPC: "no space left on the disk", errno.EDQUOT: "the disk quota is used up", errno.EROFS: "read-only"}


class StageError(RuntimeError):
    """A stage failed for a reason that is not the user's input; the text names the place, never a value."""


SAFE = (MechanismError, StorageError, StageError)
"""Errors whose text may be stored and shown."""


@contextmanager
def private_errors(stage: str) -> Iterator[None]:
    """Turn whatever is raised inside into an error that is safe to store.

    Raises:
        StorageError: the disk is full or unwritable.
        StageError: anything unforeseen, without its text.
    """
    try:
        yield
    except SAFE:
        raise
    except OSError as error:
        name = error.filename if isinstance(error.filename, str) else ""
        reason = _DISK.get(error.errno or 0) or _full_disk_in_words(error) or (error.strerror or type(error).__name__)
        raise StorageError(
            f"{stage}: {reason}{f' ({name})' if name else ''}; free space or fix it, then run again"
        ) from None
    except Exception as error:
        raise StageError(
            f"{stage}: {type(error).__name__} at {_place(error)}; run again to resume, or report it"
        ) from None


def shielded(stage: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """`private_errors` as a decorator."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with private_errors(stage):
                return function(*args, **kwargs)

        return call

    return decorate


def _full_disk_in_words(error: OSError) -> str | None:
    """Safetensors and Arrow give a full disk as text alone."""
    return _DISK[errno.ENOSPC] if "No space left" in str(error) else None


def _place(error: BaseException) -> str:
    """File and line of the innermost frame of ours."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(_ROOT)]
    ours = [f for f in frames if ".venv" not in Path(f.filename).parts]
    frame = (ours or frames or traceback.extract_tb(error.__traceback__))[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"
