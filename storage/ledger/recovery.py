"""What a crash left behind: each open release judged by its row and by the files beside it.

A release goes through these steps, each durable before the next, so that whatever the moment of a crash the
ledger and the files together say how far it came:

1. `reserve`: the budget is charged.
2. The draw is put at `private/releases/ID/draw.safetensors`, by a link that fails where one is already.
3. `mark_drawn`: its digest is recorded, with the cost measured at the draw; a surplus is charged.
4. The bundle is built aside, its digest announced (`announce_bundle`), then moved to `bundles/ID` in one rename.
5. `commit`: the bundle's digest is recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from storage.artifacts import file_digest
from storage.bundle.folder import bundle_digest
from storage.durable import write_atomically
from storage.ledger.ledger import Ledger
from storage.ledger.models import Row
from storage.paths import Workspace

DRAW_NAME = "draw.safetensors"
_ANNOUNCED_NAME = "bundle.sha256"


class Step(StrEnum):
    """What an open release, or a bundle without one, needs."""

    DRAW = "draw"
    """Nothing was drawn: run the same release again, or burn it."""
    MEASURE = "measure"
    """Drawn; the cost at the draw has to be measured: run the same release again, which does and goes on."""
    MARK_DRAWN = "mark-drawn"
    """Drawn under a guarantee that doesn't depend on the draw, and not recorded yet."""
    BUILD = "build"
    """The recorded draw is there, its bundle isn't committed: run the same release again, which builds it."""
    COMMIT = "commit"
    """The bundle stands as announced and isn't recorded yet."""
    BURN = "burn"
    """The recorded draw is lost or changed; it can't be made again."""
    LOST_BUNDLE = "lost-bundle"
    """Committed, and its bundle is gone or changed: restore it from a copy."""
    STRAY_BUNDLE = "stray-bundle"
    """A folder among the bundles that the ledger doesn't bear out: take it away."""


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


def draws(workspace: Workspace) -> list[Path]:
    """Return every draw that lies in a workspace, whichever ledger paid for it."""
    return sorted((workspace.private / "releases").glob(f"*/{DRAW_NAME}"))


def bundle_path(workspace: Workspace, release_id: str) -> Path:
    """Return where a release's bundle is or will be."""
    return workspace.bundles / release_id


def announce_bundle(workspace: Workspace, release_id: str, digest: str) -> None:
    """Keep the digest of the bundle that is about to be moved into place; one built anew replaces it."""
    write_atomically(release_folder(workspace, release_id) / _ANNOUNCED_NAME, digest.encode())


def announced_bundle(workspace: Workspace, release_id: str) -> str | None:
    """Return the digest that `announce_bundle` kept, None where no bundle was announced."""
    file = release_folder(workspace, release_id) / _ANNOUNCED_NAME
    return file.read_text(encoding="ascii") if file.is_file() else None


def inspect(ledger: Ledger, workspace: Workspace) -> Sequence[Finding]:
    """Say what each open release needs, and which bundles the ledger doesn't bear out. Changes nothing."""
    findings = [_judge(row, workspace) for row in ledger.open_releases()]
    known = {row.release_id: row for row in ledger.current() if row.kind == "release" and row.release_id}
    for release_id, row in known.items():
        path = bundle_path(workspace, release_id)
        if row.state == "committed" and not (path.is_dir() and bundle_digest(path) == row.bundle_digest):
            why = f"no bundle with the recorded digest at {path}"
            findings.append(Finding(release_id, row.state, Step.LOST_BUNDLE, why))
    if workspace.bundles.is_dir():
        for path in sorted(workspace.bundles.iterdir()):
            # Folders with a dot are bundles still being built.
            if path.is_dir() and not path.name.startswith("."):
                row = known.get(path.name)
                state = "unknown" if row is None else row.state
                if state not in ("drawn", "committed"):
                    why = f"{path} belongs to no release that may have a bundle"
                    findings.append(Finding(path.name, state, Step.STRAY_BUNDLE, why))
    return findings


def _judge(row: Row, workspace: Workspace) -> Finding:
    release_id, state = row.release_id or "", row.state
    draw = draw_path(workspace, release_id)
    found = file_digest(draw) if draw.is_file() else None
    if state == "reserved":
        if found is None:
            return Finding(release_id, state, Step.DRAW, "no draw was kept")
        if row.guarantee_kind == "formal":
            return Finding(release_id, state, Step.MARK_DRAWN, "a draw was kept and not recorded", found)
        return Finding(release_id, state, Step.MEASURE, "a draw was kept, its cost not yet measured", found)
    bundle = bundle_path(workspace, release_id)
    if bundle.is_dir():
        announced = announced_bundle(workspace, release_id)
        digest = bundle_digest(bundle)
        if announced is None:
            return Finding(release_id, state, Step.BUILD, "a bundle stands that nobody announced", found, digest)
        if announced == digest:
            return Finding(release_id, state, Step.COMMIT, "the bundle stands as announced", found, digest)
        return Finding(release_id, state, Step.STRAY_BUNDLE, f"{bundle} isn't the bundle announced", found)
    if found is None:
        return Finding(release_id, state, Step.BURN, f"the recorded draw is not at {draw}")
    if found != row.draw_digest:
        return Finding(release_id, state, Step.BURN, f"{draw} isn't the recorded draw", found)
    return Finding(release_id, state, Step.BUILD, "the recorded draw is there", found)


def recover(ledger: Ledger, workspace: Workspace, *, burn: Collection[str] = ()) -> Sequence[Finding]:
    """Do what each release needs and can be done without the model: record a draw, commit a bundle, burn.

    Args:
        ledger: the ledger.
        workspace: the folders that belong to it. With another one every drawn release looks lost.
        burn: ids of further releases to burn, whatever they need; committed ones are refused.

    Returns:
        The findings, `done` where that step was taken. A release marked drawn here is found again with its next
        step.
    """
    results: list[Finding] = []
    asked = set(burn)
    for finding in inspect(ledger, workspace):
        if finding.release_id in asked and finding.state in ("reserved", "drawn"):
            asked.discard(finding.release_id)
            ledger.burn(finding.release_id, reason=f"burned by hand: {finding.why}")
            results.append(replace(finding, step=Step.BURN, why="burned by hand", done=True))
        elif finding.step in AUTOMATIC:
            results += _apply(ledger, workspace, finding)
        else:
            results.append(finding)
    for release_id in sorted(asked):
        row = ledger.burn(release_id, reason="burned by hand")
        results.append(Finding(release_id, row.state, Step.BURN, "burned by hand", done=True))
    return results


def _apply(ledger: Ledger, workspace: Workspace, finding: Finding) -> list[Finding]:
    done = replace(finding, done=True)
    if finding.step is Step.COMMIT:
        ledger.commit(finding.release_id, bundle_digest=finding.bundle_digest or "")
        return [done]
    if finding.step is Step.BURN:
        ledger.burn(finding.release_id, reason=finding.why)
        return [done]
    row = ledger.mark_drawn(finding.release_id, draw_digest=finding.draw_digest or "")
    return [done, _judge(row, workspace)]
