"""Records handovers and revocations as rows of the ledger, which are chained and append-only like
all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from storage.artifacts import file_digest
from storage.bundle import folder as bundle
from storage.bundle.archive import SUFFIX, pack
from storage.bundle.seal import sealed_by
from storage.bundle.trust import EarlierBundle, RevokedRelease
from storage.errors import DamagedData, InputError, OutOfRange, WrongState
from storage.ledger import Ledger, ReleaseRow
from storage.ledger.entries import HandedOver, Revoked, Row
from storage.ledger.keys import key_id, parse_public_key

_LONGEST_NAME = 200


def require_committed(ledger: Ledger, release_id: str, folder: Path) -> ReleaseRow:
    """A committed release with an unchanged bundle that was not revoked. Refuses any other
    release.
    """
    row = ledger.release(release_id)
    if row.state != "committed":
        raise WrongState(
            f"release {release_id} is {row.state}. Only a committed release can be shared.",
            kind="uncommitted-release",
        )
    if ledger.revocation(release_id) is not None:
        raise WrongState(
            f"release {release_id} was revoked and cannot be shared.", kind="revoked-release"
        )
    if not folder.is_dir() or bundle.bundle_digest(folder) != row.bundle_digest:
        raise DamagedData(
            f"{folder} is not the bundle of ledger row {row.sequence}. Restore it from a copy.",
            kind="bundle-differs-from-row",
        )
    return row


def hand_over(
    ledger: Ledger,
    release: ReleaseRow,
    folder: Path,
    out: Path,
    *,
    partner: str,
    requester: str,
    check: Callable[[Path], object],
) -> tuple[Path, Row[HandedOver]]:
    """Packs a bundle into folder `out` and records the partner. Repeating this with the same file
    and partner adds no row.

    The row is written before the archive is put into place, so that the ledger contains every
    archive.

    Args:
        check: the verification that the partner will run on the archive. Raises if it fails.
    """
    partner, requester = _name("--to", partner), _name("--requester", requester)
    archive = out / f"{release.release_id}{SUFFIX}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".handover-", dir=out) as aside:
            packed = pack(folder, Path(aside) / archive.name)
            # guard: test_a_bundle_that_changes_while_it_is_packed
            check(packed)
            entry = HandedOver(
                release_id=release.release_id,
                requester=requester,
                partner=partner,
                bundle_digest=str(release.bundle_digest),
                archive_sha256=file_digest(packed),
                archive_bytes=packed.stat().st_size,
            )
            row = ledger.note(entry)
            packed.replace(archive)
    except OSError as error:
        raise InputError(f"--out {out}: {error.strerror}", kind="unwritable-output") from None
    return archive, cast("Row[HandedOver]", row)


def record_revocation(
    ledger: Ledger, release_id: str, *, reason: str, requester: str
) -> Row[Revoked]:
    """Records that a committed release must no longer be used. Revoking it again changes
    nothing.
    """
    if not reason.strip() or len(reason) > 1000:
        raise OutOfRange(
            "--reason: must have 1 to 1,000 characters. Partners read it.", kind="reason-length"
        )
    release = ledger.release(release_id)
    if release.state != "committed":
        raise WrongState(
            f"release {release_id} is {release.state}. Only a committed release can be revoked.",
            kind="not-committed",
        )
    entry = Revoked(
        release_id=release_id,
        requester=_name("--requester", requester),
        reason=reason,
        bundle_digest=str(release.bundle_digest),
    )
    return cast("Row[Revoked]", ledger.note(entry))


def require_not_revoked(ledger: Ledger, release_id: str, bundle_digest: str) -> None:
    """Refuses a bundle that this ledger revoked, by release or content. The error contains date and
    reason.
    """
    for row in _revocations(ledger):
        if row.release_id == release_id or row.entry.bundle_digest == bundle_digest:
            raise WrongState(
                f"release {release_id} was revoked on {row.recorded_at[:10]}: "
                f"{row.entry.reason} "
                f"(ledger row {row.sequence})",
                kind="revoked",
            )


def revoked_releases(ledger: Ledger) -> list[RevokedRelease]:
    """All revocations in the ledger, for the next root."""
    return [
        RevokedRelease(
            release_id=row.entry.release_id,
            bundle_digest=row.entry.bundle_digest,
            revoked_on=row.recorded_at[:10],
            reason=row.entry.reason,
        )
        for row in _revocations(ledger)
    ]


def _revocations(ledger: Ledger) -> list[Row[Revoked]]:
    revocations = [
        release.revoked
        for release in ledger.state().releases.values()
        if release.revoked is not None
    ]
    return sorted(revocations, key=lambda row: row.sequence)


def earlier_bundles(ledger: Ledger, bundles: Path, keys: Iterable[str]) -> list[EarlierBundle]:
    """The committed releases that were sealed by replaced keys (PEM), for a root without these
    keys.
    """
    by_id = {key_id(parse_public_key(pem.encode(), name="a root's key")): pem for pem in keys}
    sealed_bundles: list[EarlierBundle] = []
    for row in ledger.releases() if by_id else ():
        folder = bundles / row.release_id
        sealed = sealed_by(folder)
        if row.state != "committed" or sealed not in by_id:
            continue
        if bundle.bundle_digest(folder) != row.bundle_digest:
            raise DamagedData(
                f"{folder} is not the bundle of ledger row {row.sequence}. Restore it from a copy.",
                kind="bundle-differs-from-row",
            )
        sealed_bundles.append(
            EarlierBundle(
                release_id=folder.name, bundle_digest=str(row.bundle_digest), key=by_id[str(sealed)]
            )
        )
    return sealed_bundles


def _name(option: str, text: str) -> str:
    text = text.strip()
    if not 0 < len(text) <= _LONGEST_NAME or not text.isprintable():
        raise OutOfRange(
            f"{option}: must be a name of 1 to {_LONGEST_NAME} characters without "
            "tabs and line breaks.",
            kind="name-length",
            option=option,
        )
    return text
