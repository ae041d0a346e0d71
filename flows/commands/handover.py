"""Defines `autocoder handover` and `autocoder revoke`: bundles for partners, and their revocation."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from flows.commands import options
from flows.commands.terminal import say
from storage.errors import InputError


def handover(
    place: options.LedgerOptions,
    release: Annotated[str, typer.Argument(help="Release to hand over.")],
    to: Annotated[str, typer.Option(help="Partner.")],
    out: Annotated[Path, typer.Option(help="Folder for the .tar.zst.")],
    as_json: options.AsJson = False,
) -> None:
    r"""Pack a release for a partner, and record the handover as a row of the ledger.

    The bundle is checked first, as the partner will check it. `autocoder ledger show RELEASE` names its partners.

    Example

      autocoder handover 3f2a9c41d07b65e8 \
          --to "Statistics Office of Freedonia" --out outbox
    """
    workspace, ledger = place.workspace, place.open()
    from storage.bundle.check import check
    from storage.bundle.registry import hand_over, require_committed
    from storage.bundle.seal import VARIABLE, signing_public_key
    from storage.bundle.trust import Trust

    folder = workspace.bundles / release
    row = require_committed(ledger, release, folder)
    local = workspace.home / "signing-key.pub.pem"
    trusted = local if local.is_file() and VARIABLE not in os.environ else signing_public_key(workspace.private)
    sound = check(folder, Trust(trusted))
    archive, record = hand_over(place.open_to_sign(), row, folder, out, partner=to, requester="operator")
    partner = record.details["partner"]
    if as_json:
        content = {"archive": str(archive), "release_id": release, "bundle_digest": sound.digest}
        rows = {"row": record.sequence, "partner": partner, "release_row": row.sequence}
        say(json.dumps(content | rows))
        return
    say(f"{archive}  for {partner}: ledger row {record.sequence}, release row {row.sequence}")


def revoke(
    release: Annotated[str, typer.Argument(help="Release to revoke.")],
    reason: Annotated[str, typer.Option(help="Reason; partners read it.")],
    place: options.LedgerOptions,
    out: Annotated[Path, typer.Option(help="File of roots to write for partners.")] = Path("roots.json"),
    as_json: options.AsJson = False,
) -> None:
    r"""Revoke a release in the ledger, and write the agency's next root, which names all revocations.

    The budget stays spent. Give the file to every partner that has the bundle (`autocoder ledger show RELEASE`);
    `autocoder verify --roots` refuses the releases that it revokes. Where a root needs more signatures, each holder of
    a root key adds one by `autocoder keys sign`.

    Example

      autocoder revoke 3f2a9c41d07b65e8 --out roots.json \
          --reason "superseded: the code list had an error"
    """
    from storage.bundle.registry import handovers, record_revocation, revoked_releases
    from storage.bundle.seal import signing_key
    from storage.bundle.trust import (
        incomplete,
        lock_roots,
        sign_newest,
        with_next_root,
        workspace_roots,
        write_roots,
    )
    from storage.ledger.heads import load_private_key

    signing = load_private_key(signing_key(None, place.workspace.private))
    ledger, file = place.open_to_sign(), place.workspace.roots
    with lock_roots(place.workspace):
        known = workspace_roots(file, signing.public_key())
        record_revocation(ledger, release, reason=reason, requester="operator")
        roots = with_next_root(known, revoked=revoked_releases(ledger), days=365)
        try:
            roots = sign_newest(roots, signing)
        except InputError as error:
            say(f"note: {error}", err=True)
        for option, written in (("", file), ("--out ", out)):
            if not option and not written.parent.is_dir():
                continue  # the first is for workers that may not read the ledger
            try:
                write_roots(written, roots)
            except OSError as error:
                why = f"{option}{written}: {error.strerror}"
                raise InputError(f"{why}. The release is revoked; run the command again for the file.") from None
    lacks, newest = incomplete(roots), roots[-1]
    partners = sorted({entry.partner for entry in handovers(ledger) if entry.release_id == release})
    if as_json:
        content = {"release_id": release, "roots": str(out), "version": newest.version}
        say(json.dumps(content | {"missing_signatures": lacks, "partners": partners}))
        return
    say(f"release {release} revoked; root {newest.version} with {len(newest.revoked)} revocations in {out}")
    if lacks:
        say(
            f"it lacks {lacks} signatures. Next, for each holder of a root key: autocoder keys sign {out} --key KEY.pem"
        )
    if partners:
        say(f"handed to: {', '.join(partners)}. Send them {out}{' once it is signed' if lacks else ''}.")
