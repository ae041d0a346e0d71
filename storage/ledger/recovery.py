"""Completes what a crash interrupted: each open release, according to its row and its files.

A release goes through these steps. Each is durable before the next, so that ledger and files
together show the progress after a crash at any moment:

1. `reserve`: the budget is charged. 2. `draw.begun` is created in `private/releases/ID/`, the draw
is made, and its file is linked as `draw.safetensors`, which fails if one exists. A draw that was
begun but is missing is never repeated: the release is burned. 3. `mark_drawn`: its digest is
recorded, with the cost measured at the draw. A surplus is charged. 4. The bundle is built in a
staging folder, its digest is announced (`announce_bundle`), and it is moved to `bundles/ID` in one
rename. 5. `commit`: the bundle's digest is recorded.

A ledger other than the one used before is detected. Its rows are restored exactly from a journal.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import dropwhile
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open
from sqlalchemy.engine import Connection

from storage.artifacts import file_digest
from storage.bundle.folder import bundle_digest
from storage.durable import write_atomically
from storage.errors import DamagedData, StorageError
from storage.ledger import chain
from storage.ledger.chain import StoredRow
from storage.ledger.database import Database, database_exists
from storage.ledger.entries import LedgerRow, PolicySet, ReleaseRow
from storage.ledger.fold import fold
from storage.ledger.journal import Journal, journals_of
from storage.ledger.keys import encoded_key
from storage.ledger.ledger import Ledger
from storage.ledger.models import GENESIS, LedgerPosition
from storage.ledger.policy import DEFAULT_POLICY, Policy
from storage.ledger.records import RecordSet
from storage.ledger.registry import register
from storage.paths import Workspace

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

DRAW_NAME = "draw.safetensors"
FRESH_DRAW = "draw.new"
"""A draw whose file is complete but not yet in its final place."""
BEGUN_DRAW = "draw.begun"
"""Exists while a draw is being made; removed once its file is in place."""
_ANNOUNCED_NAME = "bundle.sha256"


class Step(StrEnum):
    """The step that an open release, or a bundle without one, requires."""

    DRAW = "draw"
    """No draw exists: run the same release again, or burn it."""
    MEASURE = "measure"
    """A draw exists but its cost is not measured: run the same release again, which measures it and
    continues.
    """
    MARK_DRAWN = "mark-drawn"
    """A draw exists that does not affect the guarantee, but it is not recorded."""
    BUILD = "build"
    """The recorded draw exists, but no committed bundle: run the same release again, which builds
    it.
    """
    COMMIT = "commit"
    """The bundle is the announced one, but it is not recorded."""
    BURN = "burn"
    """The recorded draw is missing or altered and cannot be repeated."""
    LOST_BUNDLE = "lost-bundle"
    """The release is committed, but its bundle is missing or altered: restore it from a copy."""
    STRAY_BUNDLE = "stray-bundle"
    """A folder among the bundles that the ledger does not confirm: remove it."""


@dataclass(frozen=True)
class Finding:
    """The state of one release after a crash, and the required step."""

    release_id: str
    state: str
    step: Step
    why: str
    draw_digest: str | None = None
    bundle_digest: str | None = None
    done: bool = False


def release_folder(workspace: Workspace, release_id: str) -> Path:
    return workspace.private / "releases" / release_id


def draw_path(workspace: Workspace, release_id: str) -> Path:
    return release_folder(workspace, release_id) / DRAW_NAME


def draws(workspace: Workspace) -> list[Path]:
    """Every draw in a workspace, whichever ledger paid for it."""
    return sorted((workspace.private / "releases").glob(f"*/{DRAW_NAME}"))


def announce_bundle(workspace: Workspace, release_id: str, digest: str) -> None:
    """Stores the digest of the bundle that is about to be moved into place. A rebuilt bundle
    replaces it.
    """
    write_atomically(release_folder(workspace, release_id) / _ANNOUNCED_NAME, digest.encode())


def announced_bundle(workspace: Workspace, release_id: str) -> str | None:
    """The digest stored by `announce_bundle`; None if no bundle was announced."""
    file = release_folder(workspace, release_id) / _ANNOUNCED_NAME
    return file.read_text(encoding="ascii") if file.is_file() else None


def inspect(ledger: Ledger, workspace: Workspace) -> Sequence[Finding]:
    """The required step of each open release, and bundles that the ledger does not confirm. Changes
    nothing.
    """
    findings = [assess(row, workspace) for row in ledger.open_releases()]
    releases = {row.release_id: row for row in ledger.releases()}
    for release_id, row in releases.items():
        path = workspace.bundles / release_id
        if row.state == "committed" and not (
            path.is_dir() and bundle_digest(path) == row.bundle_digest
        ):
            why = f"no bundle with the recorded digest at {path}"
            findings.append(Finding(release_id, row.state, Step.LOST_BUNDLE, why))
    if workspace.bundles.is_dir():
        for path in sorted(workspace.bundles.iterdir()):
            # Folders that start with a dot are bundles under construction.
            if path.is_dir() and not path.name.startswith("."):
                row = releases.get(path.name)
                state = "unknown" if row is None else row.state
                if state not in ("drawn", "committed"):
                    why = f"{path} belongs to no release that may have a bundle"
                    findings.append(Finding(path.name, state, Step.STRAY_BUNDLE, why))
    return findings


RESUMED = frozenset({Step.DRAW, Step.MEASURE, Step.MARK_DRAWN, Step.BUILD, Step.COMMIT})
"""Steps that running the same release again completes, without a second charge."""


def assess(row: ReleaseRow, workspace: Workspace) -> Finding:
    """The required step of one open release."""
    release_id, state, plan_digest = row.release_id, row.state, row.plan_digest
    draw = draw_path(workspace, release_id)
    drawn = file_digest(draw) if draw.is_file() else None
    if drawn is not None and plan_digest is not None and _plan_of(draw) != plan_digest:
        return Finding(
            release_id, state, Step.BURN, f"{draw} is not a sample of the reserved plan", drawn
        )
    if state == "reserved":
        if drawn is None:
            begun, fresh = draw.with_name(BEGUN_DRAW), draw.with_name(FRESH_DRAW)
            if begun.is_file() and not fresh.is_file():
                why = "its sample was lost while it was taken, and is not taken again"
                return Finding(release_id, state, Step.BURN, why)
            return Finding(release_id, state, Step.DRAW, "no sample was stored")
        if row.guarantee_kind == "formal":
            return Finding(
                release_id, state, Step.MARK_DRAWN, "a sample was stored and not recorded", drawn
            )
        return Finding(
            release_id, state, Step.MEASURE, "a sample was stored, its cost not yet measured", drawn
        )
    bundle = workspace.bundles / release_id
    if bundle.is_dir():
        announced = announced_bundle(workspace, release_id)
        digest = bundle_digest(bundle)
        if announced is None:
            return Finding(
                release_id, state, Step.BUILD, "an unannounced bundle exists", drawn, digest
            )
        if announced == digest:
            return Finding(
                release_id, state, Step.COMMIT, "the bundle is the announced one", drawn, digest
            )
        return Finding(
            release_id, state, Step.STRAY_BUNDLE, f"{bundle} isn't the bundle announced", drawn
        )
    if drawn is None:
        return Finding(release_id, state, Step.BURN, f"the recorded sample is not at {draw}")
    if drawn != row.draw_digest:
        return Finding(release_id, state, Step.BURN, f"{draw} is not the recorded sample", drawn)
    return Finding(release_id, state, Step.BUILD, "the recorded sample exists", drawn)


def recover(
    ledger: Ledger, workspace: Workspace, *, burn: Collection[str] = ()
) -> Sequence[Finding]:
    """Completes the steps that need no model: record a draw, commit a bundle, burn.

    Args:
        workspace: the ledger's own. With another one every drawn release looks lost.
        burn: ids of further releases to burn, whatever their step. Committed ones are refused.

    Returns:
        The findings, with `done` set for completed steps. A release that is marked drawn here is
        listed again with its next step.
    """
    results: list[Finding] = []
    remaining = set(burn)
    for finding in inspect(ledger, workspace):
        if finding.release_id in remaining and finding.state in ("reserved", "drawn"):
            remaining.discard(finding.release_id)
            ledger.burn(finding.release_id, reason=f"burned manually: {finding.why}")
            results.append(replace(finding, step=Step.BURN, why="burned manually", done=True))
        elif finding.step in (Step.MARK_DRAWN, Step.COMMIT, Step.BURN):
            results += _apply(ledger, workspace, finding)
        else:
            results.append(finding)
    for release_id in sorted(remaining):
        row = ledger.burn(release_id, reason="burned manually")
        results.append(Finding(release_id, row.state, Step.BURN, "burned manually", done=True))
    return results


def _apply(ledger: Ledger, workspace: Workspace, finding: Finding) -> list[Finding]:
    done = replace(finding, done=True)
    plan_digest = ledger.release(finding.release_id).plan_digest
    if finding.step is Step.COMMIT:
        ledger.commit(
            finding.release_id, bundle_digest=finding.bundle_digest or "", plan_digest=plan_digest
        )
        return [done]
    if finding.step is Step.BURN:
        ledger.burn(finding.release_id, reason=finding.why)
        return [done]
    row = ledger.mark_drawn(
        finding.release_id, draw_digest=finding.draw_digest or "", plan_digest=plan_digest
    )
    return [done, assess(row, workspace)]


def _plan_of(draw: Path) -> str | None:
    try:
        with safe_open(draw, framework="np") as file:
            described = json.loads((file.metadata() or {})["meta"])["plan_digest"]
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):
        return None
    return described if isinstance(described, str) else None


@dataclass(frozen=True)
class RollbackFinding:
    """A discrepancy between a ledger and a journal, and the rows that would repair it."""

    problem: str
    mark: LedgerPosition
    """The row that was used before."""
    missing: tuple[StoredRow, ...]
    """The rows that the ledger lacks, in order; empty if they do not continue its last row."""


def detect(url: str, workspace: Workspace) -> RollbackFinding | None:
    """The discrepancy between a ledger and the workspace's journal or witness; None if there is
    none.
    """
    journals, database = journals_of(workspace), Database(url, lock_timeout=60.0)
    if not database_exists(url):
        for journal in journals:
            if (mark := journal.last()) is not None:
                problem = f"no ledger at {database.url.database}, {journal.name} has used {mark}"
                return RollbackFinding(problem, mark, _missing((0, GENESIS), journal))
        return None
    database.prepare()
    with database.read() as connection:
        for journal in journals:
            problem, mark = journal.problem(connection), journal.last()
            if problem and mark is not None:
                return RollbackFinding(
                    problem.text, mark, _missing(chain.last(connection), journal)
                )
    return None


def _missing(last: tuple[int, str], journal: Journal) -> tuple[StoredRow, ...]:
    rows = list(dropwhile(lambda entry: entry.sequence < last[0], journal.rows()))
    if last[0] == 0:
        return tuple(rows)
    return tuple(rows[1:]) if rows and rows[0].hash == last[1] else ()


def restore(
    url: str,
    workspace: Workspace,
    finding: RollbackFinding,
    *,
    key: EllipticCurvePublicKey | None = None,
    policy: Policy | None = None,
) -> int:
    """Appends missing rows that continue the ledger's rows; returns their number.

    Anyone with write access to the workspace can write to its journal. An unsigned policy is
    therefore not restored, unless the operator specifies it, or a later row signed by this
    machine's key depends on it.

    Args:
        key: this machine's key.
        policy: a policy that may come into force without a signature.
    """
    database = Database(url, lock_timeout=60.0)
    database.prepare()
    with database.write() as connection:
        state = fold(chain.stored_rows(connection))
        present = state.sequence
        rows = [row for stored in finding.missing if (row := state.apply(stored)) is not None]
        state.require_sound()
        own_key = None if key is None else encoded_key(key)
        vouched = max(
            (row.sequence for row in rows if own_key and row.signer == own_key), default=0
        )
        for bad in state.bad:
            # guard: test_a_policy_that_nobody_signed_in_the_journal
            if present < bad.sequence and bad.sequence > vouched:
                raise DamagedData(
                    f"recover: {bad.problem}. No row was put back. Restore the journal from a copy",
                    kind="damaged-journal",
                )
        for row in rows:
            if row.sequence > vouched:
                _require_known_policy(row, policy)
        current = {row.sequence: row for row in rows}
        for entry in finding.missing:
            chain.put(connection, entry.body)
            _restore_records(connection, workspace, current.get(entry.sequence))
        for journal in journals_of(workspace):
            journal.check(connection)
    return len(finding.missing)


def _restore_records(connection: Connection, workspace: Workspace, row: LedgerRow | None) -> None:
    # a release without its set is assumed to share all records
    if not isinstance(row, ReleaseRow) or row.state != "reserved":
        return
    records, reserved_set = load_marks(workspace, row), row.reserved.records
    if records is not None and reserved_set is not None and records.digest == reserved_set.set:
        register(connection, row.sequence, records)


def _require_known_policy(row: LedgerRow, named: Policy | None) -> None:
    if isinstance(row, ReleaseRow) or not isinstance(row.entry, PolicySet):
        return
    accepted = {DEFAULT_POLICY.digest, None if named is None else named.digest}
    # guard: test_a_first_policy_that_nobody_signed_in_the_journal
    if not row.entry.approvals and row.entry.policy.digest not in accepted:
        raise StorageError(
            f"recover: row {row.sequence} would restore policy {row.title}, which "
            "nobody signed. No row was put back. Read it, then pass its file with "
            "--policy",
            kind="unsigned-policy",
        )


def save_marks(workspace: Workspace, records: RecordSet) -> None:
    """Stores a release's record set in the workspace, so that it can be restored with its row."""
    file = workspace.private / "registry" / f"{records.digest}.marks"
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, records.encode())


def load_marks(workspace: Workspace, row: ReleaseRow) -> RecordSet | None:
    """The record set of a reserved release, if it is stored here."""
    overlap = row.reserved.records
    if overlap is None:
        return None
    file = workspace.private / "registry" / f"{overlap.set}.marks"
    return RecordSet.decode(file.read_bytes()) if file.is_file() else None
