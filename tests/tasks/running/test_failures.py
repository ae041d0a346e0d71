"""No exception that leaves a task quotes a value, and a full disk is said as such."""

import errno
import os
import traceback

import httpx
import pytest
from refusals import of_kind
from safetensors import SafetensorError

from mechanisms.errors import MechanismError
from storage.errors import InputError, StorageError, Unavailable
from tasks.running.failures import StageError, private_errors

SECRET = "Worker Jane Roe lost a finger"


def test_an_unforeseen_error_keeps_its_type_and_place_only() -> None:
    """The text of a library's error may hold a narrative; neither it nor its chain continues."""
    with pytest.raises(StageError) as caught, private_errors("ingest"):
        raise ValueError(f"could not convert {SECRET!r}")
    shown = "".join(traceback.format_exception(caught.value))
    assert "ValueError" in shown
    assert "test_failures.py" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    "error", [MechanismError("k must be below 1"), InputError("column x"), StageError("x")]
)
def test_our_own_errors_pass_unchanged(error: Exception) -> None:
    """Their text was made to be shown."""
    with pytest.raises(type(error), match=str(error)), private_errors("fit"):
        raise error


def answered(code: int) -> httpx.HTTPStatusError:
    return httpx.HTTPStatusError(
        SECRET, request=httpx.Request("POST", "http://server"), response=httpx.Response(code)
    )


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (httpx.ConnectError(SECRET), Unavailable),
        (httpx.ReadTimeout(SECRET), Unavailable),
        (answered(500), Unavailable),
        (answered(503), Unavailable),
        (answered(404), StageError),
        (answered(422), StageError),
        (ValueError("a server does not answer"), StageError),
    ],
)
def test_a_server_that_is_away_is_told_by_type(error: Exception, raised: type[Exception]) -> None:
    """So that the run is taken up; one that was told what is wrong with its request is not."""
    with pytest.raises(raised) as caught, private_errors("release"):
        raise error
    assert type(caught.value) is raised
    assert SECRET not in str(caught.value)


def test_a_full_disk_is_said_with_the_file() -> None:
    """An operator must see which disk to clear."""
    with (
        pytest.raises(StorageError, check=of_kind("disk", saying=("SWAG", "no space", "/data/x"))),
        private_errors("SWAG"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device", "/data/x")


def test_a_full_disk_is_that_of_the_copy() -> None:
    """Not that of the file which is copied, where there may be space."""
    full = OSError(errno.ENOSPC, "no space", "/from/x", None, "/to/x")
    with (
        pytest.raises(StorageError, check=of_kind("disk", saying="/to/x")) as said,
        private_errors("adopt"),
    ):
        raise full
    assert "/from/x" not in str(said.value)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EACCES, "no-right"),
        (errno.EPERM, "no-right"),
        (errno.ENOTDIR, "wrong-place"),
        (errno.ENAMETOOLONG, "wrong-place"),
        (errno.EIO, "disk"),
    ],
    ids=lambda given: os.strerror(given) if isinstance(given, int) else given,
)
def test_what_to_do_depends_on_what_failed(number: int, kind: str) -> None:
    """More space helps nobody who has no right to a folder."""
    with (
        pytest.raises(StorageError, check=of_kind(kind, saying="/data/x")),
        private_errors("train"),
    ):
        raise OSError(number, "said by the system", "/data/x")


def test_a_full_disk_in_the_words_of_safetensors() -> None:
    """Its errors are no OSError; a damaged file of theirs is not taken for a disk."""
    with (
        pytest.raises(StorageError, check=of_kind("disk", saying=("release", "no space"))),
        private_errors("release"),
    ):
        raise SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        )
    with pytest.raises(StageError, match="SafetensorError at"), private_errors("release"):
        raise SafetensorError("Error while deserializing header: invalid header")
