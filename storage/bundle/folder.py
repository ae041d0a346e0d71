"""The folder that leaves: built aside from an allow-list, digested, moved into place in one rename, then sealed.

The ledger's committed row holds the digest of the *content*. The row comes after the content, so the two files that
seal a bundle, the ledger's proof and the signature over everything, are no part of that digest.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from storage.artifacts import digest, file_digest
from storage.durable import sync as _sync
from storage.errors import StorageError

STATEMENT = "privacy_statement.json"
PAGE = "PRIVACY.md"
CARD = "README.md"
CODELIST = "codelist.csv"
THRESHOLDS = "thresholds.json"
GOLDEN = "golden.jsonl"
MATERIALS = "bom.cdx.json"
LICENCE = "LICENSE"
PROOF = "ledger_proof.json"
SIGNATURE = "model.sig"

SEAL = frozenset({PROOF, SIGNATURE})
"""Files added after the ledger's row was committed; no part of the content's digest."""
OWN_FILES = frozenset({STATEMENT, PAGE, CARD, CODELIST, THRESHOLDS, GOLDEN, MATERIALS, LICENCE})
"""Files of a bundle's content beside the model's own."""


class UnsoundBundle(StorageError):
    """A bundle that may not leave, or is not as it left; names the file at fault and what is wrong with it."""

    def __init__(self, file: str, problem: str) -> None:
        super().__init__(f"bundle: {file}: {problem}")
        self.file = file
        self.problem = problem


def content_files(folder: Path) -> dict[str, str]:
    """SHA-256 of every file but those of the seal, by name relative to the bundle."""
    names = {path.relative_to(folder).as_posix(): path for path in _files(folder)}
    return {name: file_digest(path) for name, path in names.items() if name not in SEAL}


def bundle_digest(folder: Path) -> str:
    """One digest over the names and contents of all files in a bundle but those of the seal."""
    return digest(content_files(folder))


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
        build: fills the folder, and raises where something in it may not leave.
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
        folders = [*(p for p in staging.rglob("*") if p.is_dir()), staging]
        for path in [*_files(staging), *folders]:
            path.chmod(0o755 if path.is_dir() else 0o644)  # whoever gets it may read all of it, whatever wrote it
            _sync(path)
        staging.rename(final)
        _sync(bundles)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return final, found


def check_allowed(folder: Path, allowed: frozenset[str]) -> None:
    """Refuse a bundle that holds anything but regular files of allowed names and the folders they lie in.

    Raises:
        UnsoundBundle: names the first file that may not leave.
    """
    within = {parent.as_posix() for name in allowed for parent in Path(name).parents}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            raise UnsoundBundle(name, "is a link; only regular files may leave")
        if path.is_dir():
            if name not in within:
                raise UnsoundBundle(name, "is a folder that no allowed file lies in")
        elif not path.is_file() or name not in allowed:
            raise UnsoundBundle(name, "is not on the list of files that may leave")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON, keys sorted, so that the same release gives the same bytes."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
