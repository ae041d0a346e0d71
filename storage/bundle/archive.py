"""A bundle as one file: a tar of its files in order, without times or owners, compressed with Zstandard.

The same bundle gives the same bytes with the same version of the compressor. Reading trusts nothing: only regular files
of names that a bundle may have are written, each to a path of our own making, and never more than their sizes allow.
Every header is taken as it stands: `tarfile` would follow those that speak for the next entry (long names, PAX, sparse
files) into memory, however large they say they are.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

import zstandard

from storage.bundle.folder import UnsoundBundle
from storage.egress.allowed import FILES
from storage.errors import InputError

SUFFIX = ".tar.zst"
_LEVEL, _CHUNK, _WINDOW = 10, 1 << 20, 1 << 27
_BLOCK = tarfile.BLOCKSIZE


def pack(folder: Path, out: Path) -> Path:
    """Write a bundle to `out` (…`.tar.zst`), whole or not at all; return it."""
    partial = out.with_name(f"{out.name}.{os.getpid()}.partial")
    try:
        with (
            partial.open("wb") as file,
            zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).stream_writer(file, closefd=False) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.USTAR_FORMAT) as tar,
        ):
            for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                entry = tarfile.TarInfo(f"{folder.name}/{path.relative_to(folder).as_posix()}")
                entry.size, entry.mode = path.stat().st_size, 0o644
                with path.open("rb") as content:
                    tar.addfile(entry, content)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    return out


def unpack(archive: Path, into: Path) -> Path:
    """Write the files of an archive into an empty folder; return the bundle's folder in it.

    Raises:
        UnsoundBundle: an entry is no regular file of an allowed name and size, or the archive is damaged.
        InputError: it cannot be read.
    """
    folder: Path | None = None
    try:
        with (
            archive.open("rb") as file,
            zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(file) as unpacked,
        ):
            for entry in _entries(unpacked):
                place = _place(entry)
                top = into / place.parts[0]
                if folder not in (None, top):
                    raise UnsoundBundle(archive.name, "holds two folders")
                folder = top
                _extract(unpacked, entry, top.joinpath(*place.parts[1:]))
    except OSError as error:
        if error.filename is None or Path(error.filename) != archive:
            raise
        raise InputError(f"{archive}: {error.strerror}") from None
    except (zstandard.ZstdError, tarfile.TarError, UnicodeDecodeError):
        raise UnsoundBundle(archive.name, "is damaged, or no archive of a bundle") from None
    if folder is None:
        raise UnsoundBundle(archive.name, "is empty")
    return folder


@contextmanager
def opened(path: Path) -> Iterator[Path]:
    """A bundle's folder: the one given, or an archive's content in a temporary folder for as long as this is open.

    Raises:
        InputError: there is nothing at the path.
    """
    if path.is_dir():
        yield path
        return
    if not path.is_file():
        raise InputError(f"{path}: no such bundle; give a folder or a {SUFFIX} file")
    with TemporaryDirectory(prefix="autocoder-bundle-") as scratch:
        yield unpack(path, Path(scratch))


def _entries(unpacked: zstandard.ZstdDecompressionReader) -> Iterator[tarfile.TarInfo]:
    """Each header in turn, up to the empty one and the end; whoever takes it reads the content and its padding."""
    while any(block := unpacked.read(_BLOCK)):
        yield tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    if len(block) < _BLOCK or any(rest := unpacked.read(tarfile.RECORDSIZE)) or len(rest) == tarfile.RECORDSIZE:
        raise tarfile.ReadError("cut off, or there is more")  # at the end the compressor's checksum was compared


def _place(entry: tarfile.TarInfo) -> PurePosixPath:
    place = PurePosixPath(entry.name)
    shown = entry.name if len(entry.name) <= 80 and entry.name.isprintable() else "(an entry with an odd name)"
    if entry.type != tarfile.REGTYPE:
        raise UnsoundBundle(shown, "is no regular file; an archive of a bundle holds nothing else")
    parts = place.parts
    plain = entry.name == "/".join(parts) and not place.is_absolute() and not {"..", "."} & set(parts)
    if not plain or len(parts) < 2 or parts[0].startswith(".") or "\\" in entry.name:
        raise UnsoundBundle(shown, "would be written outside the bundle's folder")
    name = "/".join(parts[1:])
    if name not in FILES:
        raise UnsoundBundle(name if len(name) <= 80 else shown, "is not on the list of files that may leave")
    if not 0 <= entry.size <= FILES[name].max_bytes:
        raise UnsoundBundle(name, f"is larger than {FILES[name].max_bytes >> 20} MB")
    return place


def _extract(unpacked: zstandard.ZstdDecompressionReader, entry: tarfile.TarInfo, target: Path) -> None:
    if target.exists():
        raise UnsoundBundle(entry.name, "is there twice")
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as file:
        left = entry.size
        while left:
            chunk = unpacked.read(min(_CHUNK, left))
            if not chunk:
                raise UnsoundBundle(entry.name, "is cut off")
            file.write(chunk)
            left -= len(chunk)
    unpacked.read(-entry.size % _BLOCK)
