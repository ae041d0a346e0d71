"""A disk that fills up while a release is published: one clear line, nothing half-published,
nothing charged twice.
"""

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from jobs import Job
from sealed_bundle import Sealed
from warm import FILE_SIZE

from storage.bundle import folder
from storage.egress.allow_list import CONTENT

pytestmark = pytest.mark.servers


def test_no_space_for_the_bundle(finished: Job, tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk: the draw fits, the encoder's weights
    do not.
    """
    job = finished.copy(tmp_path / "home")
    full = job.at(job.home, env=job.env | {FILE_SIZE: str(40_000 << 10)}).run()
    assert full.returncode == 2, full.stderr
    assert "Traceback" not in full.stderr
    assert "Free space" in full.stderr
    assert list((job.home / "bundles").iterdir()) == []
    assert job.releases() == [], "what the bundle needs is tried before anything is charged"
    done = job.run()
    assert done.returncode == 0, done.stderr
    (row,) = job.releases()
    assert row["state"] == "committed"


def test_no_space_once_the_budget_is_charged(
    sealed: Sealed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each file that is made durable: no bundle and no part of one stays; with space again it is
    the same.
    """
    content = sealed.copy(tmp_path / "content", seal=False)
    release, bundles = content.name, tmp_path / "bundles"

    def publish() -> tuple[Path, str]:
        def build(made: Path) -> None:
            shutil.copytree(content, made, dirs_exist_ok=True)

        return folder.publish(
            bundles, release, allowed=CONTENT, build=build, expected=sealed.row.bundle_digest
        )

    real = folder._sync
    for written in range(len(folder.content_files(content))):
        left = iter(range(written))

        def sync(path: Path, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(path)

        with monkeypatch.context() as patched, pytest.raises(OSError, match="No space"):
            patched.setattr(folder, "_sync", sync)
            publish()
        assert list(bundles.iterdir()) == []
    assert publish() == (bundles / release, sealed.row.bundle_digest)
