"""Checks before work starts that the files in options can be read and written."""

from __future__ import annotations

import os
from pathlib import Path

from storage.errors import Contradiction, InputError, Missing, OutOfRange


def require_readable(option: str, file: Path) -> None:
    """Refuse a file that does not exist, before any slow import."""
    if str(file) == "-":
        raise Contradiction(
            f"{option}: - is standard input, but records are read again when a run is resumed, "
            "audited or released. Save them to a file first: … > records.csv",
            kind="standard-input",
            option=option,
        )
    if not file.expanduser().exists():
        raise Missing(
            f"{option}: the file {file} does not exist", kind="no-input-file", option=option
        )


def require_figure(file: Path) -> None:
    """Refuse a --plot file that cannot be written, before work starts."""
    if file.suffix not in {".png", ".svg", ".pdf"}:
        raise OutOfRange(
            f"--plot: {file.name} must end in .png, .svg or .pdf", kind="figure-ending"
        )
    require_writable("--plot", file)


def require_writable(option: str, file: Path, *, overwrite: bool = True) -> None:
    """Check that the file in an option can be written, before work starts."""
    if not file.parent.is_dir():
        raise Missing(
            f"{option}: the folder {file.parent} does not exist", kind="no-folder", option=option
        )
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise InputError(
            f"{option}: the folder {file.parent} cannot be written to. Choose another.",
            kind="folder-not-writable",
            option=option,
        )
    if file.is_dir():
        raise Contradiction(
            f"{option}: {file} is a folder. Choose a file.", kind="folder-for-file", option=option
        )
    if file.exists() and not overwrite:
        raise Contradiction(
            f"{option}: {file} exists. Choose another file, or replace it with --overwrite.",
            kind="file-exists",
            option=option,
        )
    try:
        str(file).encode()
    except UnicodeEncodeError:  # the libraries that write tables do not accept such a path
        raise OutOfRange(
            f"{option}: the path {file} is not UTF-8. Choose another file.",
            kind="name-not-utf-8",
            option=option,
        ) from None
