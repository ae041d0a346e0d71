"""Reads the arrays of an .npz file: each with one entry per record is like the column of a table."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from storage.artifacts import file_digest
from storage.errors import InputError
from storage.tables.source import Source, require_columns

_MAX_BYTES = 16 << 30
"""Limit for the arrays of one file, unpacked: they are in memory."""
_ROWS = 2048


@dataclass(frozen=True)
class Arrays:
    """Holds the requested arrays, each with one entry per record."""

    source: Source
    rows: int
    sha256: str
    arrays: dict[str, NDArray[Any]]

    def texts(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yields arrays [n] of numbers or texts as columns of text, in batches, like `Table.texts`."""
        for start in range(0, self.rows, _ROWS):
            cells = [self.arrays[name][start : start + _ROWS].astype(str).tolist() for name in columns]
            yield pa.RecordBatch.from_arrays([pa.array(column, pa.string()) for column in cells], names=list(columns))


def open_arrays(path: Path, columns: Sequence[str], pixels: str) -> Arrays:
    """Reads the named arrays; unpickles nothing.

    Args:
        columns: arrays [n] of whole numbers or texts.
        pixels: array [n, height, width] or [n, height, width, channels] of numbers.
    """
    source, _ = inspect_arrays(path, (*columns, pixels), pixels)
    arrays: dict[str, NDArray[Any]] = {}
    fault = ""
    try:
        with np.load(path, allow_pickle=False) as file:
            for name in (*columns, pixels):
                fault = f"array {name!r} has Python objects or is damaged. Write it as numbers or texts"
                arrays[name] = file[name]
        fault = ""
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error, NotImplementedError):
        pass
    if fault:
        raise InputError(f"data: {path}: {fault}")
    images = arrays[pixels]
    if images.ndim not in (3, 4) or images.dtype.kind not in "uif" or 0 in images.shape:
        raise InputError(
            f"data: {path}: array {pixels!r} is {images.dtype} {list(images.shape)}. Give numbers "
            "[n, height, width] or [n, height, width, channels]"
        )
    if not np.isfinite(images).all() or images.min() < 0:
        raise InputError(f"data: {path}: array {pixels!r} has negative pixels, or NaN or infinite ones. Correct them")
    for name in columns:
        array = arrays[name]
        if array.shape != images.shape[:1] or array.dtype.kind not in "uiUb":
            raise InputError(
                f"data: {path}: array {name!r} is {array.dtype} {list(array.shape)}. Give a whole number or a text "
                f"for each of the {len(images):,} images"
            )
        if array.dtype.kind == "U" and not _encodes(array):
            raise InputError(f"data: {path}: array {name!r} has characters that Unicode does not have. Correct them")
    return Arrays(source, len(images), file_digest(path), arrays)


def _encodes(array: NDArray[Any]) -> bool:
    """Checks whether every text is Unicode: an array holds halves of pairs and numbers beyond it, too."""
    try:
        for start in range(0, len(array), _ROWS):
            "".join(array[start : start + _ROWS].tolist()).encode()
    except (ValueError, SystemError):  # the latter: a number that no character can have
        return False
    return True


def inspect_arrays(path: Path, required: Sequence[str], pixels: str) -> tuple[Source, tuple[int, ...]]:
    """Returns the arrays' names, their unpacked size and the shape of the images, without reading one."""
    if not path.is_file():
        raise InputError(f"data: no file {path}")
    members: list[zipfile.ZipInfo] = []
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (OSError, zipfile.BadZipFile):
        pass
    names = tuple(member.filename.removesuffix(".npy") for member in members if member.filename.endswith(".npy"))
    if not names:
        raise InputError(f"data: {path} is not an .npz of arrays. Write one with numpy.savez")
    size = sum(member.file_size for member in members)
    source = Source(path, "npz", names, size, 0)
    require_columns(source, required)
    if size > _MAX_BYTES:
        raise InputError(f"data: {path}: its arrays take {size / 1e9:.0f} GB. Give up to {_MAX_BYTES / 1e9:.0f} GB")
    shape: tuple[int, ...] = ()
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{pixels}.npy") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape = read(file)[0]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError):
        pass
    if not shape:
        raise InputError(f"data: {path}: array {pixels!r} cannot be read. Write the file again")
    return replace(source, estimated_rows=shape[0]), shape
