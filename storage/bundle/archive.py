"""Packs a bundle into one file: a tar of its files in order, without times or owners, compressed with Zstandard.

The same bundle gives the same bytes with the same version of the compressor. Only one form is accepted: one Zstandard
frame that ends where the file ends, with the tar that `pack` would write for these names and contents. So no byte is
without meaning, and nothing travels in headers, padding, further frames, behind the end or in the name of the folder,
which is the release's id. Only regular files with allowed names are written, each name once, each to a path that we
build. The total size, headers included, is limited: noise does not compress, a bomb does.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import BinaryIO

import zstandard

from storage.bundle.adoption import AdoptedBundle
from storage.bundle.folder import UnsoundBundle
from storage.bundle.seal import claimed_release
from storage.egress.allow_list import FILES
from storage.errors import InputError

SUFFIX = ".tar.zst"
_LEVEL, _CHUNK, _WINDOW = 10, 1 << 20, 1 << 27
_BLOCK = tarfile.BLOCKSIZE
_RATIO, _ALWAYS = 32, 16 << 20
"""Limits of an archive's decompressed size: a multiple of its size, and bytes that are always allowed. Text shrinks
tenfold, weights less than twofold."""
_RELEASE = re.compile("[0-9a-f]{16}")


def pack(folder: Path, out: Path) -> Path:
    """Write a bundle to `out` (…`.tar.zst`), whole or not at all; return it."""
    partial = out.with_name(f"{out.name}.{os.getpid()}.partial")
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    size = _whole_size(path.stat().st_size for path in paths)
    try:
        with (
            partial.open("wb") as file,
            zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).stream_writer(
                file, size=size, closefd=False
            ) as packed,
            tarfile.open(fileobj=packed, mode="w|", format=tarfile.USTAR_FORMAT) as tar,
        ):
            for path in paths:
                with path.open("rb") as content:
                    tar.addfile(
                        _header(f"{folder.name}/{path.relative_to(folder).as_posix()}", path.stat().st_size), content
                    )
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    return out


def unpack(archive: Path, into: Path) -> Path:
    """Write the files of an archive into an empty folder; return the bundle's folder in it."""
    top, names = "", [PurePosixPath()]
    try:
        with archive.open("rb") as file:
            allowed = _frame(file, archive.stat().st_size)
            unpacked = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(file)
            for entry, header in _entries(unpacked):
                place = _place(entry)
                # guard: nothing in a header but name and size
                if header != _header(entry.name, entry.size).tobuf(tarfile.USTAR_FORMAT):
                    raise UnsoundBundle(archive.name, "a header contains more than a name and a size")
                if top not in ("", place.parts[0]):
                    raise UnsoundBundle(archive.name, "contains two folders")
                top = place.parts[0]
                if place <= names[-1]:
                    raise UnsoundBundle(entry.name[:80], "occurs twice or out of order")
                names.append(place)
                allowed -= _BLOCK + -(-entry.size // _BLOCK) * _BLOCK
                # guard: an archive unfolds to what a bundle can hold
                if allowed < 0:
                    raise UnsoundBundle(archive.name, "decompresses to more than a bundle of its size can contain")
                _extract(unpacked, entry, into.joinpath(*place.parts))
            _end(unpacked)
    except OSError as error:
        if error.filename is None or Path(error.filename) != archive:
            raise
        raise InputError(f"{archive}: {error.strerror}") from None
    except (zstandard.ZstdError, tarfile.TarError, UnicodeError):
        raise UnsoundBundle(archive.name, "is damaged or not an archive of a bundle") from None
    if not top:
        raise UnsoundBundle(archive.name, "is empty")
    return into / top


@contextmanager
def open_folder(path: Path) -> Iterator[Path]:
    """Yields the folder of a bundle or of an adopted one; an archive is unpacked into a temporary folder."""
    if path.is_dir():
        adopted = AdoptedBundle.read(path)
        if adopted is not None:
            adopted.check()
        yield path if adopted is None else adopted.bundle
        return
    if not path.is_file():
        raise InputError(f"{path} does not exist. Give a folder or a {SUFFIX} file.")
    with TemporaryDirectory(prefix="autocoder-bundle-") as scratch:
        folder = unpack(path, Path(scratch))
        # guard: the folder is the release
        if claimed_release(folder) != folder.name:
            raise UnsoundBundle(path.name, "its folder is not named after its release")
        yield folder


def _header(name: str, size: int) -> tarfile.TarInfo:
    """Returns the header of a file with this name and size."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o644
    return entry


def _whole_size(sizes: Iterable[int]) -> int:
    """Returns the bytes of a tar of files of these sizes: headers, blocks of content, two empty blocks, padding."""
    blocks = sum(1 + -(-size // _BLOCK) for size in sizes) + 2
    return -(-blocks * _BLOCK // tarfile.RECORDSIZE) * tarfile.RECORDSIZE


def _frame(file: BinaryIO, size: int) -> int:
    """Walks over the blocks of the only frame in a file (RFC 8878, section 3.1.1) without decompressing any.

    Returns how many bytes it may decompress to, with the file at its start again.
    """
    start = file.read(18)
    allowed = _RATIO * size + _ALWAYS
    parameters = zstandard.get_frame_parameters(start)
    plain = start[:4] == zstandard.FRAME_HEADER and not start[4] & 0b00011000 and parameters.dict_id == 0
    if not plain or not parameters.has_checksum:
        raise zstandard.ZstdError("unexpected form")
    at, last = zstandard.frame_header_size(start), False
    while not last:
        file.seek(at)
        block = int.from_bytes(file.read(3).ljust(3, b"\xff"), "little")
        if at + 3 > size:
            raise UnsoundBundle(Path(file.name).name, "is cut off. Fetch it again")
        last, kind, length = bool(block & 1), block >> 1 & 3, block >> 3
        if kind == _RESERVED or (length == 0 and not last):
            raise zstandard.ZstdError("unexpected form")
        at += 3 + (1 if kind == _REPEATED else length)
    if at + 4 > size:
        raise UnsoundBundle(Path(file.name).name, "is cut off. Fetch it again")
    # An archive may omit its size; what it decompresses to is counted on the way.
    if parameters.content_size != zstandard.CONTENTSIZE_UNKNOWN and parameters.content_size > allowed:
        raise UnsoundBundle(Path(file.name).name, "decompresses to more than a bundle of its size can contain")
    # guard: nothing behind the frame
    if at + 4 != size:  # the checksum
        raise zstandard.ZstdError("truncated, or followed by more")
    file.seek(0)
    return allowed


_REPEATED, _RESERVED = 1, 3


def _entries(unpacked: zstandard.ZstdDecompressionReader) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Yields each header and its bytes, up to the empty one. The caller reads the content and its padding.

    Headers are taken literally: `tarfile` would follow those that describe the next entry (long names, PAX, sparse
    files) into memory, whatever size they claim.
    """
    while any(block := unpacked.read(_BLOCK)):
        yield tarfile.TarInfo.frombuf(block, "utf-8", "strict"), block
    if len(block) < _BLOCK:
        raise tarfile.ReadError("truncated")


def _end(unpacked: zstandard.ZstdDecompressionReader) -> None:
    """Reads the second empty block and the rest of the record; nothing may follow. Compares the checksum."""
    left = -(unpacked.tell() + _BLOCK) % tarfile.RECORDSIZE + _BLOCK
    if unpacked.read(left + 1) != bytes(left):
        raise tarfile.ReadError("truncated, or followed by more")


def _place(entry: tarfile.TarInfo) -> PurePosixPath:
    place = PurePosixPath(entry.name)
    shown = entry.name if len(entry.name) <= 80 and entry.name.isprintable() else "(an entry with unprintable name)"
    if entry.type != tarfile.REGTYPE:
        raise UnsoundBundle(shown, "is not a regular file. Archives of bundles contain nothing else")
    parts = place.parts
    plain = entry.name == "/".join(parts) and not place.is_absolute() and not {"..", "."} & set(parts)
    if not plain or len(parts) < 2 or not _RELEASE.fullmatch(parts[0]) or "\\" in entry.name:
        raise UnsoundBundle(shown, "would be written outside a folder that is named after a release")
    name = "/".join(parts[1:])
    kind = FILES.get(name)
    if kind is None:
        raise UnsoundBundle(name if len(name) <= 80 else shown, "is not on the list of files that may leave")
    if not 0 <= entry.size <= kind.max_bytes:
        raise UnsoundBundle(name, f"is larger than {kind.max_bytes >> 20} MB")
    return place


def _extract(unpacked: zstandard.ZstdDecompressionReader, entry: tarfile.TarInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as file:
        left = entry.size
        while left:
            chunk = unpacked.read(min(_CHUNK, left))
            if not chunk:
                raise UnsoundBundle(entry.name, "is truncated")
            file.write(chunk)
            left -= len(chunk)
    padding = -entry.size % _BLOCK
    if unpacked.read(padding) != bytes(padding):
        raise UnsoundBundle(entry.name, "is followed by bytes that are not its padding")
