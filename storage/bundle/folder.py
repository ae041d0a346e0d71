"""Builds a bundle's folder in a staging area from an allow-list, digests it, and moves it into
place in one rename.

The ledger's committed row contains the digest of the *content*, and is written after the content.
Therefore the two files of the seal, the ledger's proof and the signature over everything, are not
part of that digest.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from storage.artifacts import digest, file_digest
from storage.durable import sync as _sync
from storage.errors import DamagedData, StorageError

STATEMENT = "privacy_statement.json"
PAGE = "PRIVACY.md"
CARD = "README.md"
CODELIST = "codelist.csv"
THRESHOLDS = "thresholds.json"
ACCURACY = "accuracy.json"
RELIABILITY = "reliability.svg"
GOLDEN = "golden.jsonl"
MATERIALS = "bom.cdx.json"
LICENCE = "LICENSE"
RECORD = "registry_record.json"
ANSWERS = "NIST_SP_800-226.md"
PROOF = "ledger_proof.json"
SIGNATURE = "model.sig"

SEAL = frozenset({PROOF, SIGNATURE})
"""Files that are added after the ledger's row was committed. They are not part of the content's
digest.
"""
OWN_FILES = frozenset(
    {
        *(STATEMENT, PAGE, CARD, CODELIST, THRESHOLDS, ACCURACY, GOLDEN, MATERIALS, LICENCE),
        *(RECORD, ANSWERS, RELIABILITY),
    }
)
"""Files of a bundle's content in addition to those of the model."""


class UnsoundBundle(StorageError):
    """A bundle that must not be released or that was changed since. The error contains the file and
    the fault.
    """

    def __init__(self, file: str, problem: str, *, kind: str = "") -> None:
        super().__init__(f"bundle: {file}: {problem}", kind=kind)
        self.file = file
        self.problem = problem


def content_files(folder: Path) -> dict[str, str]:
    """SHA-256 of every file except the seal, by name relative to the bundle."""
    names = {path.relative_to(folder).as_posix(): path for path in _files(folder)}
    return {name: file_digest(path) for name, path in names.items() if name not in SEAL}


def bundle_digest(folder: Path) -> str:
    """One digest over the names and contents of all files except the seal."""
    return digest(content_files(folder))


def publish(
    bundles: Path,
    release_id: str,
    *,
    allowed: frozenset[str],
    build: Callable[[Path], None],
    expected: str | None = None,
) -> tuple[Path, str]:
    """Builds a bundle in a staging folder and moves it to `bundles/release_id`. Returns folder and
    digest.

    An existing bundle is returned unchanged: `build` is deterministic, and nothing is released
    twice.

    Args:
        allowed: the only file names, relative to the bundle, that it may contain.
        build: fills the folder, and raises if some content must not be released.
        expected: the recorded digest, if any. A bundle with another digest is not published.
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
        actual = bundle_digest(staging)
        if expected is not None and actual != expected:
            raise DamagedData(
                f"bundle {release_id}: the rebuilt files differ from the committed ones. Restore "
                "it from a backup.",
                kind="rebuilt-differently",
            )
        folders = [*(p for p in staging.rglob("*") if p.is_dir()), staging]
        for path in [*_files(staging), *folders]:
            # partners must be able to read every file
            path.chmod(0o755 if path.is_dir() else 0o644)
            _sync(path)
        staging.rename(final)
        _sync(bundles)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return final, actual


def require_same_files(stated: Mapping[str, str], actual: Mapping[str, str], *, since: str) -> None:
    """Refuses files that were added, removed or changed since their digests were recorded."""
    for name in sorted(stated.keys() | actual.keys()):
        if stated.get(name) != actual.get(name):
            if name not in stated:
                raise UnsoundBundle(name, f"was added since {since}", kind="added-file")
            if name not in actual:
                raise UnsoundBundle(name, f"is missing since {since}", kind="missing-file")
            raise UnsoundBundle(name, f"was changed since {since}", kind="changed-file")


_OF_SYSTEMS = frozenset({".DS_Store", "Thumbs.db", "desktop.ini"})


def check_allowed(folder: Path, allowed: frozenset[str]) -> None:
    """Refuses a bundle with anything other than regular files with allowed names and their
    folders.
    """
    within = {parent.as_posix() for name in allowed for parent in Path(name).parents}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            raise UnsoundBundle(name, "is a link. Only regular files may be released", kind="link")
        if path.is_dir():
            if name not in within:
                raise UnsoundBundle(
                    name, "is a folder without an allowed file", kind="unlisted-folder"
                )
        elif path.name in _OF_SYSTEMS or path.name.startswith("._"):
            raise UnsoundBundle(
                name,
                "was added by the operating system and does not belong to the bundle. Remove it",
                kind="system-file",
            )
        elif not path.is_file() or name not in allowed:
            raise UnsoundBundle(
                name, "is not on the list of files that may be released", kind="unlisted-file"
            )


def json_text(content: Mapping[str, object]) -> str:
    """JSON with sorted keys, so that the same release gives the same bytes."""
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
