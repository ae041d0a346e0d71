"""A bundle as one file: a tar of its files in order, without times or owners, compressed with Zstandard.

The same bundle gives the same bytes with the same version of the compressor. There is one form, and an archive of
another one is refused: one Zstandard frame that ends where the file does, in it the tar that `pack` would write of
these names and contents. So no byte of an archive is without meaning, and nothing travels in headers, padding, further
frames or behind the end. Only regular files of names that a bundle may have are written, each to a path of our own
making. Before the first is, the whole has to be of a size that weights can have: noise does not shrink, a bomb does.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import BinaryIO

import zstandard

from storage.bundle.folder import UnsoundBundle
from storage.egress.allowed import kind_of
from storage.errors import InputError

SUFFIX = ".tar.zst"
_LEVEL, _CHUNK, _WINDOW = 10, 1 << 20, 1 << 27
_BLOCK = tarfile.BLOCKSIZE
_RATIO, _ALWAYS = 32, 16 << 20
"""An archive may unfold to so many times its size, and to so many bytes in any case. Text shrinks tenfold, weights less
than twofold."""


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
    """Write the files of an archive into an empty folder; return the bundle's folder in it.

    Raises:
        UnsoundBundle: an entry is no regular file of an allowed name and size, or the archive is damaged.
        InputError: it cannot be read.
    """
    top, names = "", [PurePosixPath()]
    try:
        with archive.open("rb") as file:
            allowed = _frame(file, archive.stat().st_size)
            unpacked = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(file)
            for entry, header in _entries(unpacked):
                place = _place(entry)
                if header != _header(entry.name, entry.size).tobuf(tarfile.USTAR_FORMAT):
                    raise UnsoundBundle(archive.name, "a header holds more than a name and a size")
                if top not in ("", place.parts[0]):
                    raise UnsoundBundle(archive.name, "holds two folders")
                top = place.parts[0]
                if place <= names[-1]:
                    raise UnsoundBundle(entry.name[:80], "is there twice, or not in its order")
                names.append(place)
                allowed -= entry.size
                if allowed < 0:
                    raise UnsoundBundle(archive.name, "unfolds to more than a bundle of its size can hold")
                _extract(unpacked, entry, into.joinpath(*place.parts))
            _end(unpacked)
    except OSError as error:
        if error.filename is None or Path(error.filename) != archive:
            raise
        raise InputError(f"{archive}: {error.strerror}") from None
    except (zstandard.ZstdError, tarfile.TarError, UnicodeError):
        raise UnsoundBundle(archive.name, "is damaged, or no archive of a bundle") from None
    if not top:
        raise UnsoundBundle(archive.name, "is empty")
    return into / top


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


def _header(name: str, size: int) -> tarfile.TarInfo:
    """The one header that a file of this name and size has."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = size, 0o644
    return entry


def _whole_size(sizes: Iterable[int]) -> int:
    """Bytes of the tar of files of these sizes: headers, contents in blocks, two empty blocks, filled to a record."""
    blocks = sum(1 + -(-size // _BLOCK) for size in sizes) + 2
    return -(-blocks * _BLOCK // tarfile.RECORDSIZE) * tarfile.RECORDSIZE


def _frame(file: BinaryIO, size: int) -> int:
    """Walk over the blocks of the one frame that a file has to be (RFC 8878, section 3.1.1), without unfolding any.

    Returns how many bytes it may unfold to. The file stands at its start again.
    """
    start = file.read(18)
    allowed = _RATIO * size + _ALWAYS
    parameters = zstandard.get_frame_parameters(start)
    plain = start[:4] == zstandard.FRAME_HEADER and not start[4] & 0b00011000 and parameters.dict_id == 0
    if not plain or not parameters.has_checksum:
        raise zstandard.ZstdError("another form")
    # Archives of earlier versions do not say their size; what they unfold to is counted on the way.
    if parameters.content_size != zstandard.CONTENTSIZE_UNKNOWN and parameters.content_size > allowed:
        raise UnsoundBundle(Path(file.name).name, "unfolds to more than a bundle of its size can hold")
    at, last = zstandard.frame_header_size(start), False
    while not last:
        file.seek(at)
        block = int.from_bytes(file.read(3).ljust(3, b"\xff"), "little")
        last, kind, length = bool(block & 1), block >> 1 & 3, block >> 3
        if kind == _RESERVED or (length == 0 and not last):
            raise zstandard.ZstdError("another form")
        at += 3 + (1 if kind == _REPEATED else length)
    if at + 4 != size:  # the checksum
        raise zstandard.ZstdError("cut off, or there is more")
    file.seek(0)
    return allowed


_REPEATED, _RESERVED = 1, 3


def _entries(unpacked: zstandard.ZstdDecompressionReader) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Each header in turn, and its bytes, up to the empty one; whoever takes it reads the content and its padding.

    It is taken as it stands: `tarfile` would follow headers that speak for the next entry (long names, PAX, sparse
    files) into memory, however large they say they are.
    """
    while any(block := unpacked.read(_BLOCK)):
        yield tarfile.TarInfo.frombuf(block, "utf-8", "strict"), block
    if len(block) < _BLOCK:
        raise tarfile.ReadError("cut off")


def _end(unpacked: zstandard.ZstdDecompressionReader) -> None:
    """The second empty block and the rest of the record, and nothing more; the compressor's checksum is compared."""
    left = -(unpacked.tell() + _BLOCK) % tarfile.RECORDSIZE + _BLOCK
    if unpacked.read(left + 1) != bytes(left):
        raise tarfile.ReadError("cut off, or there is more")


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
    kind = kind_of(name)
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
                raise UnsoundBundle(entry.name, "is cut off")
            file.write(chunk)
            left -= len(chunk)
    padding = -entry.size % _BLOCK
    if unpacked.read(padding) != bytes(padding):
        raise UnsoundBundle(entry.name, "is followed by other bytes than its padding")
