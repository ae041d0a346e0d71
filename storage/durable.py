"""Writes files that survive a power failure (under a temporary name, synced, then renamed), and
safely reads files of other users.
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
    """Combined flags of `os.open`. A system that lacks a flag does not need it."""
    return sum(getattr(os, name, 0) for name in names)


def sync(path: Path) -> None:
    """Flushes a file, or a folder's entries, to disk."""
    flags = os.O_RDONLY
    # Windows cannot open folders, and flushes only writable files
    if not hasattr(os, "O_DIRECTORY"):
        if path.is_dir():
            return
        flags = os.O_RDWR
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def limit_rights(fresh: Path, path: Path, source: Path | None = None) -> None:
    """Gives a file the permissions of the file that it will replace. A new file is not readable by
    anyone who cannot read `source`.

    A file system without permissions is left unchanged.
    """
    with suppress(OSError):
        if path.exists():
            fresh.chmod(stat.S_IMODE(path.stat().st_mode) | 0o600)
        elif source is not None:
            fresh.chmod(
                stat.S_IMODE(fresh.stat().st_mode) & stat.S_IMODE(source.stat().st_mode) | 0o600
            )


def _close_to_other_writers(fresh: Path) -> None:
    """Removes write permission for others, whatever the umask: a public key must not be
    replaceable.
    """
    with suppress(OSError):
        fresh.chmod(stat.S_IMODE(fresh.stat().st_mode) & ~0o022)


@contextmanager
def replace_atomically(path: Path, *, source: Path | None = None) -> Iterator[Path]:
    """Yields a temporary path for a file that replaces `path` at the end of the block. If the block
    fails, the temporary file is removed.

    Processes, threads and machines may do this concurrently. The last one to finish wins.

    Args:
        source: file of records from which the new file is made, see `limit_rights`.
    """
    partial = path.with_name(f"{path.name}.{uuid4().hex}.partial")
    try:
        if source is not None or path.exists():
            partial.touch()  # restrict access before writing any content
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
    """Atomically replaces a small file.

    Args:
        source: as in `replace_atomically`.
    """
    with replace_atomically(path, source=source) as partial:
        partial.write_bytes(content)


@contextmanager
def open_regular(path: Path, *, follow: bool = True) -> Iterator[BinaryIO]:
    """Opens a regular file for reading. Pipes and devices are refused before they are read.

    Args:
        follow: whether to follow a link; otherwise links are refused.

    Raises:
        OSError: the file cannot be opened.
        InputError: not a regular file.
    """
    # non-blocking, because opening a pipe would wait for its writer
    flags = os.O_RDONLY | _flags("O_NONBLOCK", "O_BINARY")
    if not follow:
        flags |= _flags("O_NOFOLLOW")
        _refuse_link(path)
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise Unreadable(f"{path}: is not a regular file", kind="not-a-regular-file")
        yield file


def _refuse_link(path: Path) -> None:
    """Refuses a link on systems that cannot open files without following links."""
    if not hasattr(os, "O_NOFOLLOW") and path.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))


@contextmanager
def open_lock(path: Path) -> Iterator[int]:
    """Opens a file for locking without changing its content; yields its descriptor.

    Anyone with write access to the folder could replace the file by a link or a pipe.

    Raises:
        InputError: not a regular file.
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
    """Reads a regular file of at most `most` bytes. Pipes, devices and larger files are refused
    before they are read.

    Raises:
        InputError: not a regular file, too large, or not readable.
    """
    described = f"{option} {path}".strip()
    refused = Unreadable(
        f"{described}: is not a regular file of at most {most:,} bytes", kind="not-a-small-file"
    )
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size > most:
                raise refused
            return file.read(most)
    except InputError:
        raise refused from None
    except OSError as error:
        raise Unreadable(f"{described}: {error.strerror}", kind="unreadable-file") from None


def copy_regular(path: Path, to: Path, size: int) -> str | None:
    """Copies a regular file of this size; returns the SHA-256 of the copied bytes, or None if there
    is no such file. The file is opened only once.
    """
    to.parent.mkdir(parents=True, exist_ok=True)
    digest, remaining = hashlib.sha256(), size
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
            while remaining > 0 and (part := file.read(min(remaining, 1 << 20))):
                digest.update(part)
                copy.write(part)
                remaining -= len(part)
    except OSError:
        return None
    return digest.hexdigest() if remaining == 0 else None


@contextmanager
def own_folder(purpose: str) -> Iterator[Path]:
    """Yields an empty folder that no other user can enter or move, and removes it at the end.

    It is in the folder for temporary files ($TMPDIR). Remainders of killed processes are removed
    first.

    Raises:
        StorageError: other users could replace a folder there.
    """
    base, prefix = Path(tempfile.gettempdir()).resolve(), f"autocoder-{purpose}-"
    mode = base.stat().st_mode
    if not hasattr(os, "geteuid"):  # on Windows, a temporary folder belongs to its user
        with tempfile.TemporaryDirectory(prefix=prefix, dir=base) as made:
            yield Path(made)
        return
    if mode & 0o022 and not mode & stat.S_ISVTX:
        raise StorageError(
            f"{base}: other users may replace folders in it, and this command needs "
            "a private one. Set TMPDIR to a folder that only this user may write to",
            kind="shared-temporary-folder",
        )
    for abandoned in base.glob(f"{prefix}*"):
        _remove_abandoned(abandoned)
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
