"""Arrays of an .npz file, of which each with one entry a record is read like the column of a table."""

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
"""Of the arrays of one file, unpacked: they are held in memory."""
_ROWS = 2048


@dataclass(frozen=True)
class Arrays:
    """The arrays that were asked for, each with one entry a record."""

    source: Source
    rows: int
    sha256: str
    arrays: dict[str, NDArray[Any]]

    def texts(self, columns: Sequence[str], **_: Any) -> Iterator[pa.RecordBatch]:
        """Arrays [n] of numbers or texts as columns of text, in batches, as `Table.texts` has it."""
        for start in range(0, self.rows, _ROWS):
            cells = [self.arrays[name][start : start + _ROWS].astype(str).tolist() for name in columns]
            yield pa.RecordBatch.from_arrays([pa.array(column, pa.string()) for column in cells], names=list(columns))


def open_arrays(path: Path, columns: Sequence[str], pixels: str) -> Arrays:
    """Read the arrays named; nothing is unpickled.

    Args:
        columns: arrays [n] of whole numbers or texts.
        pixels: array [n, height, width] or [n, height, width, channels] of numbers.

    Raises:
        InputError: no such file or array, arrays of unequal length, of objects, of other dimensions, or too large.
    """
    source, _ = look_at_arrays(path, (*columns, pixels), pixels)
    arrays: dict[str, NDArray[Any]] = {}
    fault = ""
    try:
        with np.load(path, allow_pickle=False) as file:
            for name in (*columns, pixels):
                fault = f"array {name!r} cannot be read; arrays of Python objects are not, nor are damaged ones"
                arrays[name] = file[name]
        fault = ""
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError):
        pass
    if fault:
        raise InputError(f"data: {path}: {fault}")
    images = arrays[pixels]
    if images.ndim not in (3, 4) or images.dtype.kind not in "uif" or 0 in images.shape:
        raise InputError(
            f"data: {path}: array {pixels!r} is {images.dtype} {list(images.shape)}; images are numbers "
            "[n, height, width] or [n, height, width, channels]"
        )
    if not np.isfinite(images).all() or images.min() < 0:
        raise InputError(f"data: {path}: array {pixels!r} holds negative pixels, or some that are no numbers")
    for name in columns:
        array = arrays[name]
        if array.shape != images.shape[:1] or array.dtype.kind not in "uiUb":
            raise InputError(
                f"data: {path}: array {name!r} is {array.dtype} {list(array.shape)}; it needs a whole number or a text "
                f"for each of the {len(images):,} images"
            )
    return Arrays(source, len(images), file_digest(path), arrays)


def look_at_arrays(path: Path, wanted: Sequence[str], pixels: str) -> tuple[Source, tuple[int, ...]]:
    """The names of the arrays, what the file would take unpacked, and the shape of the images, without reading one.

    Raises:
        InputError: no such file or array, no .npz, or too large.
    """
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
        raise InputError(f"data: {path} is no .npz of arrays; write one with numpy.savez")
    size = sum(member.file_size for member in members)
    source = Source(path, "npz", names, size, 0)
    require_columns(source, wanted)
    if size > _MAX_BYTES:
        raise InputError(f"data: {path}: its arrays take {size / 1e9:.0f} GB; {_MAX_BYTES / 1e9:.0f} GB are read")
    shape: tuple[int, ...] = ()
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{pixels}.npy") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape = read(file)[0]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError):
        pass
    if not shape:
        raise InputError(f"data: {path}: array {pixels!r} cannot be read; write the file anew")
    return replace(source, estimated_rows=shape[0]), shape
