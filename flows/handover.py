"""Hands a release over to a partner, or revokes it. The commands and the deployments of these names
call these functions.
"""

import os
from pathlib import Path

from pydantic import BaseModel

from flows.commands.ledger_options import LedgerOptions
from storage.errors import InputError
from storage.paths import Workspace


class HandedOver(BaseModel, frozen=True):
    """The partner's archive, and the ledger's rows."""

    archive: str
    release_id: str
    bundle_digest: str
    row: int
    partner: str
    release_row: int
    public_key: str
    """File of the public key that the partner needs, which is handed over separately."""


class Revoked(BaseModel, frozen=True):
    """The new root, the signatures that it still needs, and the partners that have the release."""

    release_id: str
    roots: str
    version: int
    revocations: int
    missing_signatures: int
    partners: tuple[str, ...]
    note: str = ""


def hand_over(release: str, partner: str, folder: Path, place: LedgerOptions) -> HandedOver:
    """Packs a release for a partner into a folder and records the handover. The archive is checked
    as the partner will check it.
    """
    from storage.bundle import registry
    from storage.bundle.archive import open_folder
    from storage.bundle.check import check
    from storage.bundle.folder import PROOF, UnsoundBundle
    from storage.bundle.seal import VARIABLE, signing_public_key
    from storage.bundle.trust import Trust
    from tasks.bundle import golden

    workspace = place.workspace
    bundle = workspace.bundles / release
    row = registry.require_committed(place.open(), release, bundle)
    local = workspace.home / "signing-key.pub.pem"
    trusted = (
        local
        if local.is_file() and VARIABLE not in os.environ
        else signing_public_key(workspace.private)
    )

    def check_as_partner(packed: Path) -> None:
        with open_folder(packed) as opened:
            sound = check(opened, Trust(trusted))
            if sound.digest != row.bundle_digest:
                raise UnsoundBundle(
                    PROOF,
                    "is of another bundle than the committed one",
                    kind="proof-of-another-bundle",
                )
            golden.check_answers(opened, sound.contents)

    signing = place.open_to_sign()
    archive, record = registry.hand_over(
        signing,
        row,
        bundle,
        folder,
        partner=partner,
        requester="operator",
        check=check_as_partner,
    )
    return HandedOver(
        archive=str(archive),
        release_id=release,
        bundle_digest=str(row.bundle_digest),
        row=record.sequence,
        partner=record.entry.partner,
        release_row=row.sequence,
        public_key=str(_public_key_file(workspace) or ""),
    )


def _public_key_file(workspace: Workspace) -> Path | None:
    """The file of the public key that belongs to the signing key, if it is at hand."""
    from storage.bundle.seal import VARIABLE, signing_key

    local = workspace.home / "signing-key.pub.pem"
    if local.is_file() and VARIABLE not in os.environ:
        return local
    beside = signing_key(None, workspace.private).with_name(local.name)
    return beside if beside.is_file() else None


def revoke(release: str, reason: str, out: Path, place: LedgerOptions) -> Revoked:
    """Revokes a release in the ledger, and writes the agency's next root, which lists all
    revocations, to a file.
    """
    from storage.bundle.registry import record_revocation, revoked_releases
    from storage.bundle.seal import signing_key
    from storage.bundle.trust import (
        incomplete,
        lock_roots,
        sign_newest,
        with_next_root,
        workspace_roots,
        write_roots,
    )
    from storage.ledger.keys import load_private_key
    from storage.ledger.report import partners_of

    signing = load_private_key(signing_key(None, place.workspace.private))
    ledger, file, note = place.open_to_sign(), place.workspace.roots, ""
    with lock_roots(place.workspace):
        history = workspace_roots(file, signing.public_key())
        record_revocation(ledger, release, reason=reason, requester="operator")
        roots = with_next_root(history, revoked=revoked_releases(ledger), days=365)
        try:
            roots = sign_newest(roots, signing)
        except InputError as error:
            note = str(error)
        for option, written in (("", file), ("--out ", out)):
            if not option and not written.parent.is_dir():
                continue  # the first root is for workers that may not read the ledger
            try:
                write_roots(written, roots)
            except OSError as error:
                why = f"{option}{written}: {error.strerror}"
                raise InputError(
                    f"{why}. The release is revoked. Run the command again to write the file.",
                    kind="roots-not-written",
                ) from None
    return Revoked(
        release_id=release,
        roots=str(out),
        version=roots[-1].version,
        revocations=len(roots[-1].revoked),
        missing_signatures=incomplete(roots),
        partners=tuple(partners_of(ledger, release)),
        note=note,
    )
