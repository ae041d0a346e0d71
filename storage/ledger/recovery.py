"""What a crash left behind: each open release judged by its row and by the files beside it.

A release goes through these steps, each durable before the next, so that whatever the moment of a crash the
ledger and the files together say how far it came:

1. `reserve`: the budget is charged.
2. The draw is written to `private/releases/ID/draw.safetensors` (`keep_draw`), with its cost as measured at the
   draw in the file's metadata. Linked into place: a second draw can't replace the first.
3. `mark_drawn`: its digest is recorded, a surplus charged.
4. The bundle is built aside and its digest kept (`expect_bundle`), then moved to `bundles/ID` in one rename
   (`place_bundle`).
5. `commit`: the bundle's digest is recorded.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import struct
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from storage.errors import StorageError
from storage.ledger.budget import BudgetRefused
from storage.ledger.ledger import Ledger
from storage.ledger.models import Row
from storage.paths import Workspace

DRAW_NAME = "draw.safetensors"
_EXPECTED_NAME = "bundle.sha256"
_HEADER_LIMIT = 100_000_000  # bytes; safetensors' own limit


class Step(StrEnum):
    """What an open release, or a bundle without one, needs."""

    DRAW = "draw"
    """Nothing was drawn: run the same release again, or burn it."""
    MEASURE = "measure"
    """Drawn, its cost at the draw not known: run the same release again, which measures it."""
    MARK_DRAWN = "mark-drawn"
    """Drawn and measured, not recorded yet."""
    BUILD = "build"
    """The recorded draw is there, its bundle isn't: run the same release again, which builds it."""
    COMMIT = "commit"
    """The bundle stands, not recorded yet."""
    BURN = "burn"
    """The recorded draw is lost or changed; it can't be made again."""
    LOST_BUNDLE = "lost-bundle"
    """Committed, and its bundle is gone or changed: restore it from a copy."""
    STRAY_BUNDLE = "stray-bundle"
    """A folder among the bundles that no open or committed release explains: take it away."""


AUTOMATIC = (Step.MARK_DRAWN, Step.COMMIT, Step.BURN)


@dataclass(frozen=True)
class Finding:
    """One release's state after a crash, and what it needs."""

    release_id: str
    state: str
    step: Step
    why: str
    draw_digest: str | None = None
    bundle_digest: str | None = None
    done: bool = False


def release_folder(workspace: Workspace, release_id: str) -> Path:
    """Return where a release's draw is kept."""
    return workspace.private / "releases" / release_id


def draw_path(workspace: Workspace, release_id: str) -> Path:
    """Return where a release's one draw is or will be."""
    return release_folder(workspace, release_id) / DRAW_NAME


def bundle_path(workspace: Workspace, release_id: str) -> Path:
    """Return where a release's bundle is or will be."""
    return workspace.bundles / release_id


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tree_digest(folder: Path) -> str:
    """Return the SHA-256 over every file's relative name and digest: one number for a bundle.

    Raises:
        StorageError: for a link or a special file, which a bundle never holds.
    """
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*"), key=lambda p: p.relative_to(folder).as_posix()):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise StorageError(f"bundle {folder.name}: {path.relative_to(folder)} is no plain file")
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            total.update(f"{file_digest(path)}  {name}\n".encode())
    return total.hexdigest()


def keep_draw(workspace: Workspace, release_id: str, data: bytes) -> Path:
    """Keep a release's draw for ever; when one is there already, keep that one and drop `data`.

    Returns:
        The path of the draw that counts: read it back, it may not be what was given.
    """
    path = draw_path(workspace, release_id)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = _write_aside(path.parent, data)
    try:
        # link, unlike rename, never replaces: of two racing draws the second is dropped.
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        temporary.unlink()
    sync_folder(path.parent)
    sync_folder(path.parent.parent)
    return path


def expect_bundle(workspace: Workspace, release_id: str, digest: str) -> None:
    """Keep the digest that the bundle about to be placed has; a rebuilt bundle replaces it."""
    folder = release_folder(workspace, release_id)
    temporary = _write_aside(folder, digest.encode())
    temporary.replace(folder / _EXPECTED_NAME)
    sync_folder(folder)


def place_bundle(workspace: Workspace, release_id: str, staging: Path) -> Path:
    """Move a finished bundle into place in one rename, its files on disk before its name is.

    Raises:
        StorageError: when a bundle is there already.
    """
    target = bundle_path(workspace, release_id)
    if target.exists():
        raise StorageError(f"bundle {release_id}: there is one already; run `autocoder ledger recover`")
    for path in (*staging.rglob("*"), staging):
        _sync(path)
    staging.rename(target)
    sync_folder(target.parent)
    return target


def _write_aside(folder: Path, data: bytes) -> Path:
    descriptor, name = tempfile.mkstemp(dir=folder, prefix=".partial-")
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return Path(name)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make a folder's names durable."""
    _sync(folder)


def read_measurement(path: Path) -> dict[str, str]:
    """Return a draw file's metadata (safetensors header), such as `sensitivity` and `epsilon`; {} without any."""
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > _HEADER_LIMIT:
                return {}
            metadata = json.loads(file.read(length)).get("__metadata__", {})
    except (OSError, ValueError, struct.error, AttributeError):
        return {}
    number = re.compile(r"^[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?$")
    return {
        name: metadata[name]
        for name in ("sensitivity", "epsilon")
        if isinstance(metadata.get(name), str) and number.match(metadata[name])
    }


def inspect(
    ledger: Ledger, workspace: Workspace, *, bundle_digest: Callable[[Path], str] = tree_digest
) -> Sequence[Finding]:
    """Say what each open release needs, and which bundles no release explains. Changes nothing."""
    findings = [_judge(row, workspace, bundle_digest) for row in ledger.open_releases()]
    known: dict[str, Row] = {row.release_id: row for row in ledger.current() if row.release_id}
    for row in known.values():
        if row.state == "committed":
            path = bundle_path(workspace, row.release_id or "")
            if not path.is_dir() or bundle_digest(path) != row.bundle_digest:
                why = f"no bundle with the recorded digest at {path}"
                findings.append(Finding(row.release_id or "", row.state, Step.LOST_BUNDLE, why))
    if workspace.bundles.is_dir():
        for path in sorted(workspace.bundles.iterdir()):
            row = known.get(path.name)
            if path.is_dir() and not path.name.startswith(".") and (row is None or row.state == "burned"):
                state = row.state if row else "unknown"
                why = f"{path} belongs to no release that may have one"
                findings.append(Finding(path.name, state, Step.STRAY_BUNDLE, why))
    return findings


def _judge(row: Row, workspace: Workspace, bundle_digest: Callable[[Path], str]) -> Finding:
    release_id, state = row.release_id or "", row.state
    draw = draw_path(workspace, release_id)
    found = file_digest(draw) if draw.is_file() else None
    if state == "reserved":
        if found is None:
            return Finding(release_id, state, Step.DRAW, "no draw was kept")
        # A formal guarantee doesn't depend on the draw; the other kind's cost has to be the one at the draw.
        if row.guarantee_kind == "formal" or {"sensitivity", "epsilon"} <= read_measurement(draw).keys():
            return Finding(release_id, state, Step.MARK_DRAWN, "a measured draw was kept", found)
        return Finding(release_id, state, Step.MEASURE, "a draw was kept, its cost wasn't", found)
    bundle = bundle_path(workspace, release_id)
    if bundle.is_dir():
        expected = release_folder(workspace, release_id) / _EXPECTED_NAME
        digest = bundle_digest(bundle)
        if expected.is_file() and expected.read_text() == digest:
            return Finding(release_id, state, Step.COMMIT, "the bundle stands as announced", found, digest)
        return Finding(release_id, state, Step.STRAY_BUNDLE, f"{bundle} isn't the bundle announced", found)
    if found is None:
        return Finding(release_id, state, Step.BURN, f"the recorded draw is not at {draw}")
    if found != row.draw_digest:
        return Finding(release_id, state, Step.BURN, f"{draw} isn't the recorded draw", found)
    return Finding(release_id, state, Step.BUILD, "the recorded draw is there", found)


def recover(
    ledger: Ledger,
    workspace: Workspace,
    *,
    burn: Collection[str] = (),
    bundle_digest: Callable[[Path], str] = tree_digest,
) -> Sequence[Finding]:
    """Do what each release needs and can be done without the model: record a draw, commit a bundle, burn.

    Args:
        ledger: the ledger.
        workspace: the folders that belong to it. With another one every drawn release looks lost.
        burn: ids of further releases to burn, whatever they need; committed ones are refused.
        bundle_digest: how a bundle's digest is taken; the one that `commit` was given.

    Returns:
        The findings, `done` where nothing more is needed for that step. A release marked drawn here is found
        again with its next step.
    """
    results: list[Finding] = []
    asked = set(burn)
    for finding in inspect(ledger, workspace, bundle_digest=bundle_digest):
        if finding.release_id in asked and finding.state in ("reserved", "drawn"):
            ledger.burn(finding.release_id, reason=f"burned by hand: {finding.why}")
            asked.discard(finding.release_id)
            results.append(_done(finding, Step.BURN, "burned by hand"))
        elif finding.step in AUTOMATIC:
            results += _apply(ledger, workspace, finding, bundle_digest)
        else:
            results.append(finding)
    for release_id in sorted(asked):
        row = ledger.burn(release_id, reason="burned by hand")
        results.append(Finding(release_id, row.state, Step.BURN, "burned by hand", done=True))
    return results


def _apply(
    ledger: Ledger, workspace: Workspace, finding: Finding, bundle_digest: Callable[[Path], str]
) -> list[Finding]:
    release_id = finding.release_id
    if finding.step is Step.COMMIT:
        ledger.commit(release_id, bundle_digest=finding.bundle_digest or "")
        return [_done(finding, finding.step, finding.why)]
    if finding.step is Step.BURN:
        ledger.burn(release_id, reason=finding.why)
        return [_done(finding, finding.step, finding.why)]
    measured = read_measurement(draw_path(workspace, release_id))
    if ledger.release(release_id).guarantee_kind == "formal":
        measured = {}
    try:
        row = ledger.mark_drawn(
            release_id,
            draw_digest=finding.draw_digest or "",
            **{name: float(value) for name, value in measured.items()},
        )
    except BudgetRefused as refused:
        return [_done(finding, Step.BURN, str(refused))]
    return [_done(finding, finding.step, finding.why), _judge(row, workspace, bundle_digest)]


def _done(finding: Finding, step: Step, why: str) -> Finding:
    return Finding(finding.release_id, finding.state, step, why, finding.draw_digest, finding.bundle_digest, done=True)
