"""Finds the files that an input names: itself, those of a folder, or a stream that is kept."""

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
"""What programs leave in folders next to the files."""
_KEPT: Final = re.compile(r"/proc/(self|\d+)/fd/\d+|.*[/\\]\.autocoder-[^/\\]+[/\\]stream")
_OPEN_FILES: Final = Path("/proc/self/fd")
STREAM: Final = Path("-")
"""Standard input."""


def files_in(path: Path | Sequence[Path], option: str) -> list[Path]:
    """Returns the files of a table: those named, and for a folder the files in it
    by their names.
    """
    files: list[Path] = []
    for named in [path] if isinstance(path, Path) else path:
        files += _inside(named, option) if named.is_dir() else [named]
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
    """Checks for what can be read only once: standard input, or a pipe."""
    return path == STREAM or path.is_fifo() or path.is_char_device()


def title_of(path: Path) -> str:
    """Returns the path for messages; of a stream that is kept its kind."""
    return "standard input" if _KEPT.fullmatch(str(path)) else str(path)


@contextmanager
def kept(path: Path, folder: Path) -> Iterator[Path]:
    """Yields a file with the content of a stream, or the file that the path names.

    The content is in the folder without a name, so that no death of the process leaves it there.
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
    """Yields a file without a name, and a path to read it again; with a name where the system has
    no paths of open files.
    """
    if _OPEN_FILES.is_dir():
        with TemporaryFile(dir=folder) as file:
            yield file, Path(f"/proc/{os.getpid()}/fd/{file.fileno()}")
        return
    with TemporaryDirectory(prefix=".autocoder-", dir=folder) as own:
        place = Path(own) / "stream"
        with place.open("wb") as file:
            yield file, place
