"""Resolves the files of an input: a file, the files in a folder, or a stream, which is stored
first.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Final

from storage.errors import Contradiction, Missing, Unreadable

_LEFT_OUT = re.compile(r"\..*|~\$.*|Thumbs\.db|desktop\.ini", re.IGNORECASE)
"""Files that programs leave in folders."""
_KEPT: Final = re.compile(r"/proc/(self|\d+)/fd/\d+|.*[/\\]\.autocoder-[^/\\]+[/\\]stream")
_OPEN_FILES: Final = Path("/proc/self/fd")
STREAM: Final = Path("-")
"""Standard input."""


def files_in(path: Path | Sequence[Path], option: str) -> list[Path]:
    """The files of a table: the given files and, for a folder, the files in it sorted by name."""
    files: list[Path] = []
    for item in [path] if isinstance(path, Path) else path:
        files += _inside(item, option) if item.is_dir() else [item]
    if len({file.resolve() for file in files}) < len(files):
        raise Contradiction(
            f"{option}: a file is listed twice. List each once", kind="repeated-file", option=option
        )
    return files


def _inside(folder: Path, option: str) -> list[Path]:
    found = sorted(file for file in folder.iterdir() if not _LEFT_OUT.fullmatch(file.name))
    if within := [file for file in found if file.is_dir()]:
        raise Unreadable(
            f"{option}: {folder} has folders inside ({len(within):,}). Put the "
            "files of one table in one folder, or specify each folder",
            kind="folder-of-folders",
        )
    if not found:
        raise Missing(
            f"{option}: {folder} is an empty folder. Specify a file or a folder of records",
            kind="empty-folder",
        )
    return found


def is_stream(path: Path) -> bool:
    """Whether the input can be read only once: standard input, or a pipe."""
    return path == STREAM or path.is_fifo() or path.is_char_device()


def title_of(path: Path) -> str:
    """The path for messages; for a stored stream, its kind."""
    return "standard input" if _KEPT.fullmatch(str(path)) else str(path)


@contextmanager
def kept(path: Path, folder: Path) -> Iterator[Path]:
    """Yields a file with the content of a stream, or the given file.

    The content of a stream is in an unnamed file in the folder, so that it never remains there if
    the process dies.
    """
    if not is_stream(path):
        yield path
        return
    with _unnamed(folder) as (file, kept_as):
        if path == STREAM:
            shutil.copyfileobj(sys.stdin.buffer, file)
        else:
            with path.open("rb") as stream:
                shutil.copyfileobj(stream, file)
        file.flush()
        yield kept_as


@contextmanager
def _unnamed(folder: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """Yields an unnamed file and a path for reading it again. The file has a name if the system
    provides no paths of open files.
    """
    if _OPEN_FILES.is_dir():
        with TemporaryFile(dir=folder) as file:
            yield file, Path(f"/proc/{os.getpid()}/fd/{file.fileno()}")
        return
    with TemporaryDirectory(prefix=".autocoder-", dir=folder) as created:
        place = Path(created) / "stream"
        with place.open("wb") as file:
            yield file, place
