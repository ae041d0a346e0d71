"""The folder that leaves: built aside from an allow-list, digested, then moved into place in one rename."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from storage.artifacts import digest, file_digest
from storage.errors import StorageError

STATEMENT = "privacy_statement.json"
CARD = "README.md"
CODELIST = "codelist.csv"
OWN_FILES = frozenset({STATEMENT, CARD, CODELIST})
"""Files of a bundle beside the model's own."""


def bundle_digest(folder: Path) -> str:
    """One digest over the names and contents of all files in a bundle."""
    files = {path.relative_to(folder).as_posix(): file_digest(path) for path in _files(folder)}
    return digest(files)


def publish(
    bundles: Path,
    release_id: str,
    *,
    allowed: frozenset[str],
    build: Callable[[Path], None],
    expected: str | None = None,
) -> tuple[Path, str]:
    """Build a bundle in a staging folder and move it to `bundles/release_id`; return folder and digest.

    A bundle that is there already is returned as it is: `build` is deterministic, and nothing is released twice.

    Args:
        allowed: the only file names, relative to the bundle, that may be in it.
        expected: the digest that was recorded, where one was: another bundle is not put into place.

    Raises:
        StorageError: `build` left a file that is not allowed, a link, or a pickle.
    """
    final = bundles / release_id
    if final.is_dir():
        return final, bundle_digest(final)
    staging = bundles / f".staging-{release_id}"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        build(staging)
        check_allowed(staging, allowed)
        found = bundle_digest(staging)
        if expected is not None and found != expected:
            raise StorageError(
                f"bundle {release_id} cannot be built again as it was committed; restore it from a backup"
            )
        for path in [*_files(staging), *(p for p in staging.rglob("*") if p.is_dir()), staging]:
            _sync(path)
        staging.rename(final)
        _sync(bundles)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return final, found


def check_allowed(folder: Path, allowed: frozenset[str]) -> None:
    """Refuse a bundle that holds anything but regular files of allowed names.

    Raises:
        StorageError: names the first file that may not leave.
    """
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            raise StorageError(f"bundle: {name} is a link; only regular files may leave")
        if path.is_file() and name not in allowed:
            raise StorageError(f"bundle: {name} is not on the list of files that may leave")


def write_statement(folder: Path, statement: Mapping[str, Any]) -> None:
    """Write the privacy statement, keys sorted, so that the same release gives the same bytes."""
    (folder / STATEMENT).write_text(json.dumps(statement, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
