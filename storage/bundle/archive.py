"""Packs a bundle into one file: a tar of its sorted files, without times or owners, compressed with
Zstandard.

The same bundle gives the same bytes with the same version of the compressor. Unpacking writes only
regular files with allowed names, each once, to paths that this module builds, in a folder named
after the release. The total size, including headers, is limited: noise does not compress, but a
decompression bomb does. Any other content of an archive is ignored and never reaches the folder.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from storage.bundle.adoption import AdoptedBundle
from storage.bundle.folder import UnsoundBundle
from storage.errors import Missing, Unreadable

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIX = ".tar.zst"
_CHUNK = 1 << 20
_BLOCK = tarfile.BLOCKSIZE
_RATIO, _ALWAYS = 32, 16 << 20
"""Limits of an archive's decompressed size: a multiple of its compressed size, plus a constant
number of bytes. Text compresses tenfold, weights less than twofold.
"""
_RELEASE = re.compile("[0-9a-f]{16}")


def pack(folder: Path, out: Path) -> Path:
    """Atomically writes a bundle to `out` (…`.tar.zst`); returns `out`."""
    import pyarrow as pa

    partial = out.with_name(f"{out.name}.{os.getpid()}.partial")
    try:
        with (
            partial.open("wb") as file,
            pa.output_stream(file, compression="zstd") as packed,
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
    """Extracts an archive to an empty folder; returns the bundle's folder in it."""
    import pyarrow as pa

    tops: set[str] = set()
    try:
        with archive.open("rb") as file, pa.input_stream(file, compression="zstd") as unpacked:
            allowed = _RATIO * archive.stat().st_size + _ALWAYS
            for entry in _entries(unpacked):
                place = _place(entry)
                tops.add(place.parts[0])
                allowed -= _BLOCK + -(-entry.size // _BLOCK) * _BLOCK
                # guard: test_an_archive_fills_a_disk
                if allowed < 0:
                    _skip(
                        unpacked, entry.size + allowed
                    )  # a truncated archive states sizes that it does not have
                    raise UnsoundBundle(
                        archive.name,
                        "decompresses to more than a bundle of its size can contain",
                        kind="archive-too-large",
                    )
                if len(tops) > 1:
                    raise UnsoundBundle(archive.name, "contains two folders", kind="two-folders")
                _extract(unpacked, entry, into.joinpath(*place.parts))
            unpacked.read(
                2 * tarfile.RECORDSIZE
            )  # to the end of the frame, so that a truncated one is refused
    except (OSError, EOFError, tarfile.TarError, UnicodeError) as error:
        if (
            isinstance(error, OSError) and error.errno is not None
        ):  # errors of the decompressor have no errno
            if error.filename is None or Path(error.filename) != archive:
                raise
            raise Unreadable(f"{archive}: {error.strerror}", kind="unreadable-archive") from None
        raise UnsoundBundle(
            archive.name,
            "is cut off, damaged or no archive of a bundle. Fetch it again",
            kind="damaged-archive",
        ) from None
    if not tops:
        raise UnsoundBundle(archive.name, "is empty", kind="empty-archive")
    return into / tops.pop()


@contextmanager
def open_folder(path: Path) -> Iterator[Path]:
    """Yields the folder of a bundle or of an adopted one. An archive is extracted to a temporary
    folder.
    """
    if path.is_dir():
        adopted = AdoptedBundle.read(path)
        if adopted is not None:
            adopted.check()
        yield path if adopted is None else adopted.bundle
        return
    if not path.is_file():
        raise Missing(
            f"{path} does not exist. Specify a folder or a {SUFFIX} file.", kind="no-bundle"
        )
    with TemporaryDirectory(prefix="autocoder-bundle-") as scratch:
        folder = unpack(path, Path(scratch))
        from storage.bundle.seal import claimed_release

        # guard: test_a_folder_with_a_name_that_says_something
        if claimed_release(folder) != folder.name:
            raise UnsoundBundle(
                path.name, "its folder is not named after its release", kind="misnamed-folder"
            )
        yield folder


def _entries(unpacked: pa.NativeFile) -> Iterator[tarfile.TarInfo]:
    """Yields each header, up to the empty one. The caller reads the content.

    Headers are taken literally. `tarfile` would follow headers that describe the next entry (long
    names, PAX, sparse files) and load them into memory, whatever size they claim.
    """
    while any(block := unpacked.read(_BLOCK)):
        yield tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    if len(block) < _BLOCK:
        raise EOFError


def _place(entry: tarfile.TarInfo) -> PurePosixPath:
    place = PurePosixPath(entry.name)
    shown = (
        entry.name
        if len(entry.name) <= 80 and entry.name.isprintable()
        else "(an entry with unprintable name)"
    )
    if entry.type != tarfile.REGTYPE:
        raise UnsoundBundle(
            shown,
            "is not a regular file. Archives of bundles contain nothing else",
            kind="archive-not-a-regular-file",
        )
    parts = place.parts
    plain = (
        entry.name == "/".join(parts) and not place.is_absolute() and not {"..", "."} & set(parts)
    )
    if not plain or len(parts) < 2 or not _RELEASE.fullmatch(parts[0]) or "\\" in entry.name:
        raise UnsoundBundle(
            shown,
            "would be written outside a folder that is named after a release",
            kind="outside-folder",
        )
    name = "/".join(parts[1:])
    from storage.egress.allow_list import FILES

    kind = FILES.get(name)
    if kind is None:
        raise UnsoundBundle(
            name if len(name) <= 80 else shown,
            "is not on the list of files that may be released",
            kind="unlisted-file",
        )
    if not 0 <= entry.size <= kind.max_bytes:
        raise UnsoundBundle(
            name, f"is larger than {kind.max_bytes >> 20} MB", kind="file-too-large"
        )
    return place


def _skip(unpacked: pa.NativeFile, left: int) -> None:
    while left > 0:
        if not (chunk := unpacked.read(min(_CHUNK, left))):
            raise EOFError
        left -= len(chunk)


def _extract(unpacked: pa.NativeFile, entry: tarfile.TarInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        raise UnsoundBundle(entry.name[:80], "occurs twice", kind="repeated-entry")
    with target.open("xb") as file:
        remaining = entry.size
        while remaining:
            chunk = unpacked.read(min(_CHUNK, remaining))
            if not chunk:
                raise EOFError
            file.write(chunk)
            remaining -= len(chunk)
    unpacked.read(-entry.size % _BLOCK)
