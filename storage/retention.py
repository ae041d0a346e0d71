"""Finds and removes data that a workspace no longer needs: stages, abandoned work and superseded
copies with records.

Never removed: bundles, the ledger, keys, plans, and stages that are referenced by plans newer than
the cutoff.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from storage.artifacts import Store

_PLACES = ("stages", "work", "superseded")
_KEY = re.compile(rb"[0-9a-f]{32}")
_DAY = 86_400


@dataclass(frozen=True)
class Expired:
    """A folder of the workspace whose files were all last written before the cutoff."""

    place: str
    stage: str
    folder: Path
    bytes: int


def expired(private: Path, *, older_than_days: float) -> list[Expired]:
    """The folders that `remove` may remove, largest first.

    Args:
        private: the private folder of a workspace.
        older_than_days: minimum age of a folder's newest file. Plans younger than this keep the
            stages that they reference.
    """
    cutoff = time.time() - older_than_days * _DAY
    referenced = _named_by_plans(private / "plans", since=cutoff)
    entries = []
    for place, folder in _folders(private):
        files = [
            path.stat() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()
        ]
        newest = max((status.st_mtime for status in files), default=folder.stat().st_mtime)
        if newest < cutoff and folder.name[:32] not in referenced:
            size = sum(status.st_size for status in files)
            entries.append(Expired(place, folder.parent.name, folder, size))
    return sorted(entries, key=lambda entry: -entry.bytes)


def remove(store: Store, entry: Expired) -> None:
    """Removes one folder and, for a finished stage, its copy in the shared store. Waits for the
    stage's lock.
    """
    key = entry.folder.name[:32]
    with store.lock(f"{entry.stage}-{key}"):
        shutil.rmtree(entry.folder)
        if entry.place == "stages" and store.shared is not None:
            store.shared.discard(entry.stage, key)


def _folders(private: Path) -> Iterator[tuple[str, Path]]:
    for place in _PLACES:
        for folder in sorted((private / place).glob("*/*")):
            if folder.is_dir() and not folder.is_symlink() and not folder.parent.is_symlink():
                yield place, folder


def _named_by_plans(plans: Path, *, since: float) -> set[str]:
    """The keys of stages in plans, including reserved ones, and in the files next to them."""
    files = [path for path in plans.rglob("*") if path.is_file() and path.stat().st_mtime >= since]
    return {key.decode() for path in files for key in _KEY.findall(path.read_bytes())}
