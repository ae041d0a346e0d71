"""Locks hold between processes and refuse links, by the system or by the library."""

from pathlib import Path

import pytest

from storage import locks
from storage.errors import InputError


@pytest.fixture(params=["flock", "library"])
def lock(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    if request.param == "library":
        monkeypatch.setattr(locks, "FLOCK", None)
    return tmp_path / "a.lock"


def test_one_holds_it_at_a_time(lock: Path) -> None:
    assert not locks.is_locked(lock)
    with locks.locked(lock):
        assert locks.is_locked(lock)
        with pytest.raises(BlockingIOError), locks.locked(lock, wait=False):
            pass
    assert not locks.is_locked(lock)
    with locks.locked(lock, wait=False):
        pass


def test_a_link_is_no_lock(lock: Path, tmp_path: Path) -> None:
    """What it leads to is neither made nor changed."""
    victim = tmp_path / "victim"
    for content in (None, "kept"):
        if content is not None:
            victim.write_text(content)
        lock.symlink_to(victim)
        with pytest.raises(InputError), locks.locked(lock):
            pass
        lock.unlink()
        assert (victim.read_text() if victim.exists() else None) == content


def test_a_folder_is_no_lock(lock: Path) -> None:
    lock.mkdir()
    with pytest.raises(InputError), locks.locked(lock):
        pass
