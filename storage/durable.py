"""Writes files that survive a power cut: under a temporary name, synced, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4


def sync(path: Path) -> None:
    """Flushes a file, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replace_atomically(path: Path) -> Iterator[Path]:
    """Yields a temporary name for a file that replaces `path` when the block ends, and is removed if it fails.

    Processes, threads and machines may do this at once: the last to end counts.
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
    """Replaces a small file, all or nothing."""
    with replace_atomically(path) as partial:
        partial.write_bytes(content)
