"""Keeps records out of exceptions, because Prefect stores the text of every exception that leaves a
task.

The program's own errors have texts that may be shown. For any other exception only its type and the
location in the program's code are shown, because the text of a library's error may quote a value.
"""

import errno
import os
import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from mechanisms.errors import MechanismError
from storage import core_dumps, umask
from storage.errors import NotInstalled, StorageError, Unavailable
from tasks.running import installation

_ROOT = Path(__file__).resolve().parents[2]
_DISK = {
    errno.ENOSPC: "no space left on the disk",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the file system is read-only",
}
_NO_RIGHT = (errno.EACCES, errno.EPERM)
_WRONG_PLACE = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY),
    *(errno.ENAMETOOLONG, errno.ELOOP),
)


class StageError(RuntimeError):
    """An unforeseen failure of a stage. The text names the location in the code, never a value."""


SAFE = (MechanismError, StorageError, StageError)
"""Errors with a text that may be stored and shown."""


@contextmanager
def private_errors(stage: str) -> Iterator[None]:
    """Turns exceptions raised inside into errors that are safe to store. It also disables core
    dumps.
    """
    core_dumps.forbid()
    umask.forbid_other_writers()
    try:
        yield
    except SAFE:
        raise
    except Exception as error:
        if absent := installation.refusal_of(error):
            raise NotInstalled(absent, kind="not-installed") from None
        if _is_away(error):
            raise Unavailable(
                f"{stage}: a server does not answer ({type(error).__name__}). Run again to resume.",
                kind="server-away",
            ) from None
        failed = _failure_of_files(error)
        if failed is None:
            raise StageError(
                f"{stage}: {_kind(error)} at {_place(error)}. Run again to resume, or report it."
            ) from None
        raise _refusal_of_files(stage, failed) from None


def _is_away(error: Exception) -> bool:
    """True if a server gave no answer or reported an internal error."""
    try:
        import httpx
    except ImportError:  # a partner's installation uses no server
        return False
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR
    return isinstance(error, httpx.TransportError)


@dataclass(frozen=True)
class _Failure:
    """What the system said of a file."""

    number: int | None
    """Of the error; None if it has none."""
    text: str
    """The system's message, with the file if known."""


def _failure_of_files(error: Exception) -> _Failure | None:
    """Returns the system's error, or None if no file is at fault.

    Safetensors and Arrow report the system's error only as text, Safetensors in a type of its own.
    """
    number, file = None, ""
    if isinstance(error, OSError):
        number = error.errno
        written = error.filename2 if number in _DISK else None  # a copy names its source first
        named = written or error.filename
        file = f" ({named})" if isinstance(named, str) else ""
    elif type(error).__name__ != "SafetensorError":  # the library is not always installed
        return None
    if number is None:
        code = re.search(r"\(os error (\d+)\)", str(error))
        number = int(code[1]) if code else errno.ENOSPC if "No space left" in str(error) else None
    if number is None:
        return _Failure(None, type(error).__name__) if isinstance(error, OSError) else None
    return _Failure(number, f"{_DISK.get(number) or os.strerror(number)}{file}")


def _refusal_of_files(stage: str, failed: _Failure) -> StorageError:
    said = f"{stage}: {failed.text}"
    if failed.number in _NO_RIGHT:
        return StorageError(
            f"{said}. Get the right to it from its owner, or choose another folder, then run again",
            kind="no-right",
        )
    if failed.number in _WRONG_PLACE:
        return StorageError(f"{said}. Correct this path, then run again", kind="wrong-place")
    return StorageError(f"{said}. Free space or repair the disk, then run again.", kind="disk")


def _kind(error: Exception) -> str:
    """Returns the type; for a validation error also the fields, by the program's own names only."""
    if not isinstance(error, ValidationError):
        return type(error).__name__
    fields = {
        str(entry["loc"][0])
        for entry in error.errors()
        if entry["loc"] and entry["type"] != "extra_forbidden"
    }
    return f"ValidationError ({error.title}: {', '.join(sorted(fields)) or 'fields'})"


def _place(error: BaseException) -> str:
    frames = [
        f
        for f in traceback.extract_tb(error.__traceback__)
        if Path(f.filename).is_relative_to(_ROOT)
    ]
    ours = [f for f in frames if ".venv" not in Path(f.filename).parts]
    frame = (ours or frames or traceback.extract_tb(error.__traceback__))[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"
