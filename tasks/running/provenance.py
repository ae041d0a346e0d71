"""Identifies the software that wrote a ledger row: versions of the code and of libraries."""

import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from storage.artifacts import file_digest

_ROOT = Path(__file__).resolve().parents[2]
_CODE = (
    "autocoder",
    "flows",
    "service",
    "tasks",
    "mechanisms",
    "storage",
    "deployments",
    "requirements.lock",
)
"""Paths with the code of a release. Data or a bundle in the checkout does not count as a change."""


@dataclass(frozen=True)
class Provenance:
    code_commit: str
    code_dirty: bool
    lock_digest: str | None


@cache
def provenance() -> Provenance:
    """Describes the running code. Outside a git checkout, or an image built from one, it is
    `unknown` and dirty.
    """
    lock = _ROOT / "requirements.lock"
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        commit, dirty = _image_commit(_ROOT / "COMMIT")
    else:
        dirty = _git("status", "--porcelain", "--", *_CODE) != ""
    return Provenance(
        code_commit=commit,
        code_dirty=dirty,
        lock_digest=file_digest(lock) if lock.is_file() else None,
    )


def _image_commit(file: Path) -> tuple[str, bool]:
    described = file.read_text(encoding="utf-8").strip() if file.is_file() else ""
    match = re.fullmatch(r"(?:.+-g)?([0-9a-f]{40})(-dirty)?", described)
    return ("unknown", True) if match is None else (match[1], match[2] is not None)


def _git(*arguments: str) -> str | None:
    if not (
        _ROOT / ".git"
    ).exists():  # with an installed wheel, a repository further up is unrelated
        return None
    try:
        process = subprocess.run(
            ["git", "-C", str(_ROOT), *arguments],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip()
