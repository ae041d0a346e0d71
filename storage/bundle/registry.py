"""The registry of what was handed over and revoked: rows of the ledger, chained and append-only as all of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from storage.bundle import folder as bundle
from storage.bundle.archive import SUFFIX, pack
from storage.bundle.revocations import Revocations, Revoked
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
    """Pack a bundle into the folder `out` and record to whom it goes; the same partner on the same day is one row.

    The row comes before the archive is put in place, so that none lies there that the ledger does not know of.

    Raises:
        InputError: partner or requester is no name, or the folder cannot be written.
    """
    partner = _name("--to", partner)
    details = {"partner": partner, "bundle_digest": release.bundle_digest, "release_row": release.sequence}
    key = f"handover-{release.release_id}-{_today()}-{partner}"
    entry = _row("handover", release, f"handed over to {partner}", requester, details, key)
    archive = out / f"{release.release_id}{SUFFIX}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".handover-", dir=out) as aside:
            packed = pack(folder, Path(aside) / archive.name)
            row = ledger.record(entry)
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
