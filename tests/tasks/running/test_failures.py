"""No exception that leaves a task quotes a value, and a full disk is said as such."""

import errno
import traceback

import pytest
from safetensors import SafetensorError

from mechanisms.errors import MechanismError
from storage.errors import InputError, StorageError
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


@pytest.mark.parametrize("error", [MechanismError("k must be below 1"), InputError("column x"), StageError("x")])
def test_our_own_errors_pass_unchanged(error: Exception) -> None:
    """Their text was made to be shown."""
    with pytest.raises(type(error), match=str(error)), private_errors("fit"):
        raise error


def test_a_full_disk_is_said_with_the_file() -> None:
    """An operator must see which disk to clear."""
    with pytest.raises(StorageError, match=r"SWAG: no space left on the disk \(/data/x\)"), private_errors("SWAG"):
        raise OSError(errno.ENOSPC, "No space left on device", "/data/x")


def test_a_full_disk_in_the_words_of_safetensors() -> None:
    """Its errors are no OSError; a damaged file of theirs is not taken for a disk."""
    with (
        pytest.raises(StorageError, match=r"release: no space left on the disk\. Free space"),
        private_errors("release"),
    ):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    with pytest.raises(StageError, match="SafetensorError at"), private_errors("release"):
        raise SafetensorError("Error while deserializing header: invalid header")
