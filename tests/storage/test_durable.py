"""Files are replaced whole or not at all."""

import errno
from pathlib import Path

import pytest

from storage import durable
from storage.durable import replace_atomically, write_atomically


def test_a_file_is_synced_before_its_name_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that after a power cut there is the old content or the new one."""
    file, synced = tmp_path / "file", []

    def sync(path: Path) -> None:
        synced.append((path == tmp_path, file.exists()))

    monkeypatch.setattr(durable, "sync", sync)
    write_atomically(file, b"content")
    assert file.read_bytes() == b"content"
    assert synced == [(False, False), (True, True)]


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]
)
def test_what_fails_leaves_the_old_file_alone(tmp_path: Path, error: BaseException) -> None:
    """And nothing beside it."""
    file = tmp_path / "file"
    write_atomically(file, b"old")
    with pytest.raises(type(error)), replace_atomically(file) as partial:
        partial.write_bytes(b"half of the n")
        raise error
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]
