"""Checks before work starts that the files of options can be read and written."""

from __future__ import annotations

import os
from pathlib import Path

from storage.errors import InputError


def require_readable(option: str, file: Path) -> None:
    """Refuse a file that does not exist, before anything large is imported."""
    if str(file) == "-":
        raise InputError(
            f"{option}: - is standard input, and records are read again when a run resumes, is "
            "audited or released. Save it to a file first: … > records.csv"
        )
    if not file.expanduser().exists():
        raise InputError(f"{option}: the file {file} does not exist")


def require_figure(file: Path) -> None:
    """Refuse before work starts a figure of --plot that could not be written."""
    if file.suffix not in {".png", ".svg", ".pdf"}:
        raise InputError(f"--plot: {file.name} must end in .png, .svg or .pdf")
    require_writable("--plot", file)


def require_writable(option: str, file: Path, *, overwrite: bool = True) -> None:
    """Check before work starts that the file of an option can be written."""
    if not file.parent.is_dir():
        raise InputError(f"{option}: the folder {file.parent} does not exist")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise InputError(
            f"{option}: the folder {file.parent} cannot be written to. Choose another."
        )
    if file.is_dir():
        raise InputError(f"{option}: {file} is a folder. Choose a file.")
    if file.exists() and not overwrite:
        raise InputError(
            f"{option}: {file} exists. Choose another file, or replace it with --overwrite."
        )
    try:
        str(file).encode()
    except UnicodeEncodeError:  # the libraries that write tables take no such path
        raise InputError(f"{option}: {file} is not UTF-8. Choose another file.") from None
