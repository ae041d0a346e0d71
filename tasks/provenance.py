"""Which code, which library versions: what a ledger row says about the software behind it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from storage.artifacts import file_digest

_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Provenance:
    """Commit of the code, whether the tree differed from it, digest of the lock file."""

    code_commit: str
    code_dirty: bool
    lock_digest: str | None


@cache
def provenance() -> Provenance:
    """Of the running code; `unknown` and dirty where it is no git checkout."""
    lock = _ROOT / "requirements.lock"
    commit = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain")
    return Provenance(
        code_commit=commit or "unknown",
        code_dirty=changes is None or changes != "",
        lock_digest=file_digest(lock) if lock.is_file() else None,
    )


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
