"""Writes files that survive a power cut (under a temporary name, synced, then renamed), and reads
files of others.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from storage.errors import InputError, StorageError, Unreadable


def _flags(*names: str) -> int:
    """Returns flags of `os.open`; a system without one of them has not what it is against."""
    return sum(getattr(os, name, 0) for name in names)


def sync(path: Path) -> None:
    """Flushes a file, or a folder's entries, to the disk."""
    flags = os.O_RDONLY
    if not hasattr(os, "O_DIRECTORY"):  # Windows opens no folder, and flushes what may be written
        if path.is_dir():
            return
        flags = os.O_RDWR
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def limit_rights(fresh: Path, path: Path, source: Path | None = None) -> None:
    """Gives a file the rights of the one that it will replace; a new one opens to no one to whom
    `source` is closed.

    A file system without such rights leaves them.
    """
    with suppress(OSError):
        if path.exists():
            fresh.chmod(stat.S_IMODE(path.stat().st_mode) | 0o600)
        elif source is not None:
            fresh.chmod(
                stat.S_IMODE(fresh.stat().st_mode) & stat.S_IMODE(source.stat().st_mode) | 0o600
            )


def _close_to_other_writers(fresh: Path) -> None:
    """Whatever the umask: a public key that anyone may replace is no key."""
    with suppress(OSError):
        fresh.chmod(stat.S_IMODE(fresh.stat().st_mode) & ~0o022)


@contextmanager
def replace_atomically(path: Path, *, source: Path | None = None) -> Iterator[Path]:
    """Yields a temporary name for a file that replaces `path` when the block ends, and is removed
    if it fails.

    Processes, threads and machines may do this at once: the last to end counts.

    Args:
        source: file of the records that it is made from, see `limit_rights`.
    """
    partial = path.with_name(f"{path.name}.{uuid4().hex}.partial")
    try:
        if source is not None or path.exists():
            partial.touch()  # closed before anything is in it
            limit_rights(partial, path, source)
        fresh = not path.exists()
        yield partial
        if fresh:
            # guard: test_a_file_that_others_may_write
            _close_to_other_writers(partial)
        sync(partial)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_atomically(path: Path, content: bytes, *, source: Path | None = None) -> None:
    """Replaces a small file, all or nothing.

    Args:
        source: as in `replace_atomically`.
    """
    with replace_atomically(path, source=source) as partial:
        partial.write_bytes(content)


@contextmanager
def open_regular(path: Path, *, follow: bool = True) -> Iterator[BinaryIO]:
    """Opens a regular file to be read. A pipe or a device is refused before it is read.

    Args:
        follow: a link is followed; otherwise it is refused too.

    Raises:
        OSError: it cannot be opened.
        InputError: it is no regular file.
    """
    # not blocking: opening a pipe would wait for its writer
    flags = os.O_RDONLY | _flags("O_NONBLOCK", "O_BINARY")
    if not follow:
        flags |= _flags("O_NOFOLLOW")
        _refuse_link(path)
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise Unreadable(f"{path}: is not a regular file", kind="not-a-regular-file")
        yield file


def _refuse_link(path: Path) -> None:
    """Refuses a link where opening a file would follow it."""
    if not hasattr(os, "O_NOFOLLOW") and path.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


@contextmanager
def open_lock(path: Path) -> Iterator[int]:
    """Opens a file to be locked, without changing what is in it. Yields its descriptor.

    Whoever may write the folder may put a link or a pipe in the file's place.

    Raises:
        InputError: it is no regular file.
    """
    flags = os.O_RDWR | os.O_CREAT | _flags("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY")
    refused = Unreadable(
        f"{path}: cannot be used as a lock, because it is not a regular file. Remove it",
        kind="not-a-lock",
    )
    try:
        # guard: test_a_lock_that_is_a_link
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise refused from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise refused
        yield descriptor
    finally:
        os.close(descriptor)


def read_regular(path: Path, most: int, *, option: str = "") -> bytes:
    """Reads a regular file of at most so many bytes. A pipe, a device or a larger file is refused
    before it is read.
    """
    named = f"{option} {path}".strip()
    refused = Unreadable(
        f"{named}: is not a regular file of at most {most:,} bytes", kind="not-a-small-file"
    )
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > most:
                raise refused
            return file.read(most)
    except InputError:
        raise refused from None
    except OSError as error:
        raise Unreadable(f"{named}: {error.strerror}", kind="unreadable-file") from None


def copy_regular(path: Path, to: Path, size: int) -> str | None:
    """Copies a regular file of this size; returns the SHA-256 of the copied bytes, None where there
    is no such file. The file is opened once.
    """
    to.parent.mkdir(parents=True, exist_ok=True)
    digest, left = hashlib.sha256(), size
    try:
        with (
            os.fdopen(
                os.open(path, os.O_RDONLY | _flags("O_NONBLOCK", "O_BINARY")), "rb", buffering=0
            ) as file,
            to.open("wb") as copy,
        ):
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size != size:
                return None
            while left > 0 and (part := file.read(min(left, 1 << 20))):
                digest.update(part)
                copy.write(part)
                left -= len(part)
    except OSError:
        return None
    return digest.hexdigest() if left == 0 else None


@contextmanager
def own_folder(purpose: str) -> Iterator[Path]:
    """Yields an empty folder that no other user may enter, or move aside; it is removed at the end.

    It lies where temporary files do ($TMPDIR). What a killed process left there is removed first.

    Raises:
        StorageError: other users could replace a folder there.
    """
    base, prefix = Path(tempfile.gettempdir()).resolve(), f"autocoder-{purpose}-"
    mode = base.stat().st_mode
    if not hasattr(os, "geteuid"):  # Windows: a temporary folder is its user's
        with tempfile.TemporaryDirectory(prefix=prefix, dir=base) as made:
            yield Path(made)
        return
    if mode & 0o022 and not mode & stat.S_ISVTX:
        raise StorageError(
            f"{base}: other users may replace folders in it, and this command needs "
            "a private one. Set TMPDIR to a folder that only this user may write to",
            kind="shared-temporary-folder",
        )
    for left in base.glob(f"{prefix}*"):
        _remove_abandoned(left)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
    import fcntl

    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _remove_abandoned(folder: Path) -> None:
    import fcntl

    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if os.fstat(descriptor).st_uid == os.geteuid():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)
