"""Files that survive a power cut: written beside their name, synced, then renamed over it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4


def sync(path: Path) -> None:
    """Flush a file, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A name beside `path` to write a file to; it takes the place of `path` when the block ends, and goes if it fails.

    Processes, threads and machines may do it at once: the last one to end counts.
    """
    partial = path.with_name(f"{path.name}.{uuid4().hex}.partial")
    try:
        yield partial
        sync(partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a small file, all or nothing."""
    with replacing(path) as partial:
        partial.write_bytes(content)
