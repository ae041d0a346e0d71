"""The registry of what was handed over and revoked: rows of the ledger, chained and append-only as all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import rfc8785
from pydantic import BaseModel, ConfigDict

from storage.artifacts import digest, file_digest
from storage.bundle import folder as bundle
from storage.bundle.archive import SUFFIX, pack
from storage.bundle.revocations import Revocations, Revoked
from storage.bundle.roles import Listed
from storage.bundle.seal import sealed_by
from storage.bundle.signing import signing_certificate
from storage.bundle.trust import Entry
from storage.errors import InputError, StorageError
from storage.ledger import Evaluation, Ledger, Row

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

_LONGEST_NAME = 200


class Handover(BaseModel):
    """One bundle that went to one partner."""

    model_config = ConfigDict(frozen=True)

    release_id: str
    partner: str
    handed_over_on: str
    bundle_digest: str
    release_row: int
    """Sequence of the release's committed row."""
    row: int
    """Sequence of the handover's own row."""
    archive_sha256: str | None
    """Of the file that was given; None for a handover of an earlier version."""
    archive_bytes: int | None
    revoked_on: str | None
    reason: str | None


def require_committed(ledger: Ledger, release_id: str, folder: Path) -> Row:
    """The committed row of a release whose bundle stands as it was committed, and is not revoked.

    Raises:
        StorageError: it is not committed, revoked, or the bundle was changed.
    """
    row = ledger.release(release_id)
    if row.state != "committed":
        raise StorageError(f"release {release_id} is {row.state}; only a committed one can be handed over")
    if any(done.kind == "revocation" for done in ledger.history(release_id)):
        raise StorageError(f"release {release_id} was revoked; it is not handed over any more")
    if not folder.is_dir() or bundle.bundle_digest(folder) != row.bundle_digest:
        raise StorageError(f"no bundle as ledger row {row.sequence} has it at {folder}; restore it from a copy")
    return row


def hand_over(
    ledger: Ledger, release: Row, folder: Path, out: Path, *, partner: str, requester: str
) -> tuple[Path, Row]:
    """Pack a bundle into folder `out` and record to whom it goes; the same file to one partner on one day is one row.

    The row comes before the archive is put in place, so that none lies there that the ledger does not know of.

    Raises:
        InputError: partner or requester is no name, or the folder cannot be written.
    """
    partner, requester = _name("--to", partner), _name("--requester", requester)
    details = {"partner": partner, "bundle_digest": release.bundle_digest, "release_row": release.sequence}
    archive = out / f"{release.release_id}{SUFFIX}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".handover-", dir=out) as aside:
            packed = pack(folder, Path(aside) / archive.name)
            sha256 = file_digest(packed)
            details |= {"archive_sha256": sha256, "archive_bytes": packed.stat().st_size}
            key = f"handover-{release.release_id}-{_today()}-{sha256[:16]}-{partner}"
            row = ledger.record(_row("handover", release, f"handed over to {partner}", requester, details, key))
            packed.replace(archive)
    except OSError as error:
        raise InputError(f"--out {out}: {error.strerror}") from None
    return archive, row


def record_revocation(ledger: Ledger, release_id: str, *, reason: str, requester: str) -> Row:
    """Record that a release is not to be used any more; a second revocation changes nothing.

    Raises:
        InputError: no reason is given, or the requester is no name.
        StorageError: nothing was committed that could be revoked.
    """
    if not reason.strip() or len(reason) > 1000:
        raise InputError("--reason: say why, in at most 1,000 characters; partners read it")
    release = ledger.release(release_id)
    if release.state != "committed":
        raise StorageError(f"release {release_id} is {release.state}: nothing left that could be revoked")
    details = {"reason": reason, "bundle_digest": release.bundle_digest}
    return ledger.record(_row("revocation", release, "revoked", requester, details, f"revocation-{release_id}"))


def require_standing(ledger: Ledger, release_id: str, bundle_digest: str) -> None:
    """Refuse a bundle that this ledger says is not to be used any more, by its release or by its content.

    Raises:
        StorageError: it was revoked; says when and why.
    """
    for row in ledger.rows():
        if row.kind == "revocation" and (
            row.release_id == release_id or row.details.get("bundle_digest") == bundle_digest
        ):
            raise StorageError(
                f"release {release_id} was revoked on {row.recorded_at[:10]}: {row.details['reason']} "
                f"(ledger row {row.sequence})"
            )


def handovers(ledger: Ledger) -> list[Handover]:
    """Every handover, oldest first, with the revocation of its release."""
    rows = ledger.rows()
    revoked = {row.release_id: row for row in rows if row.kind == "revocation"}
    found = []
    for row in rows:
        if row.kind != "handover" or row.release_id is None:
            continue
        taken_back = revoked.get(row.release_id)
        found.append(
            Handover(
                release_id=row.release_id,
                partner=row.details["partner"],
                handed_over_on=row.recorded_at[:10],
                bundle_digest=row.details["bundle_digest"],
                release_row=row.details["release_row"],
                row=row.sequence,
                archive_sha256=row.details.get("archive_sha256"),
                archive_bytes=row.details.get("archive_bytes"),
                revoked_on=None if taken_back is None else taken_back.recorded_at[:10],
                reason=None if taken_back is None else taken_back.details["reason"],
            )
        )
    return found


def revocation_list(ledger: Ledger, key: EllipticCurvePrivateKey) -> Revocations:
    """Every revocation of the ledger in one signed list, numbered by the newest of their rows."""
    rows: Sequence[Row] = [row for row in ledger.rows() if row.kind == "revocation"]
    entries = tuple(
        Revoked(
            release_id=row.release_id or "",
            bundle_digest=row.details["bundle_digest"],
            revoked_on=row.recorded_at[:10],
            reason=row.details["reason"],
        )
        for row in rows
    )
    number = max((row.sequence for row in rows), default=0)
    return Revocations(number=number, stated_on=_today(), revoked=entries).signed(key)


def listed(ledger: Ledger, bundles: Path, keys: Mapping[str, str]) -> dict[str, Listed]:
    """Every release that was handed over or revoked, for the agency's list (`roles.publish`).

    Args:
        keys: public keys (PEM) by their id, that may have sealed a bundle.

    Raises:
        StorageError: a bundle is not as it was committed, or an unknown key sealed it.
    """
    found: dict[str, Listed] = {}
    given = handovers(ledger)
    revoked = {row.release_id: row for row in ledger.rows() if row.kind == "revocation" and row.release_id}
    for release_id in sorted({entry.release_id for entry in given} | set(revoked)):
        folder, row, taken_back = bundles / release_id, ledger.release(release_id), revoked.get(release_id)
        files = bundle.content_files(folder) if folder.is_dir() else {}
        stands = digest(files) == row.bundle_digest
        if not stands and taken_back is None:  # of a revoked one its name is enough
            raise StorageError(f"no bundle as ledger row {row.sequence} has it at {folder}; restore it from a copy")
        entry = Entry(
            key=_sealed_by(folder, keys) if stands else None,
            revoked_on=None if taken_back is None else taken_back.recorded_at[:10],
            reason=None if taken_back is None else taken_back.details["reason"],
        )
        archives = {e.archive_sha256: e.archive_bytes for e in given if e.release_id == release_id}
        known = {sha256: size for sha256, size in archives.items() if sha256 is not None and size is not None}
        found[release_id] = Listed(str(row.bundle_digest), len(rfc8785.dumps(files)), entry, known)
    return found


def _sealed_by(folder: Path, keys: Mapping[str, str]) -> str | None:
    """The key that made a bundle's signature; None where a certificate did."""
    if signing_certificate(folder) is not None:
        return None
    sealed = sealed_by(folder)
    if sealed is None or sealed not in keys:
        raise StorageError(
            f"{folder.name} was sealed by key {str(sealed)[:16]}…, which no root names and no --past-key is; give it"
        )
    return keys[sealed]


def _row(kind: str, release: Row, label: str, requester: str, details: dict[str, object], key: str) -> Evaluation:
    return Evaluation.model_validate(
        {
            "kind": kind,
            "label": label,
            "population": release.population,
            "cohorts": release.cohorts,
            "data_fingerprint": release.data_fingerprint,
            "release_id": release.release_id,
            "requester": _name("--requester", requester),
            "idempotency_key": key,
            "details": details,
        }
    )


def _name(option: str, text: str) -> str:
    """A name as the ledger takes it, with room for the words that go around it."""
    text = text.strip()
    if not 0 < len(text) <= _LONGEST_NAME or not text.isprintable():
        raise InputError(f"{option}: give a name of 1 to {_LONGEST_NAME} characters, without tabs and line breaks")
    return text


def _today() -> str:
    return datetime.now(UTC).date().isoformat()
