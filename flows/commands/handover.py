"""`autocoder handover` and `autocoder revoke`: what went to whom, and what is not to be used any more."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from flows.commands import options
from flows.commands.terminal import say


def handover(
    place: options.LedgerOptions,
    release: Annotated[str | None, typer.Argument(help="Release to hand over.")] = None,
    to: Annotated[str | None, typer.Option(help="The partner it goes to.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the .tar.zst.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="Show what was handed over so far.")] = False,
    key: Annotated[
        Path | None,
        typer.Option(
            help="Public key to check the bundle with.", show_default="$AUTOCODER_SIGNING_KEY's or the workspace's"
        ),
    ] = None,
    authority: Annotated[
        list[Path] | None, typer.Option(help="Or the authority of its certificate; repeatable.")
    ] = None,
    identity: Annotated[
        str | None,
        typer.Option("--identity", help="With --authority: e-mail, URI or whole subject of the certificate."),
    ] = None,
    allow_unsigned: Annotated[bool, typer.Option("--allow-unsigned", help="Hand over without a signature.")] = False,
    requester: options.Requester = "operator",
    as_json: options.AsJson = False,
) -> None:
    """Pack a release for a partner and record to whom it goes: a row of the ledger, beside the release's own.

    The bundle is checked first as the partner will check it.

    [bold]Examples[/bold]

      autocoder handover 3f2a9c41d07b65e8 --to "Statistics Office of Freedonia" --out outbox

      autocoder handover --list
    """
    from storage.bundle.registry import handovers
    from storage.errors import InputError

    workspace, ledger = place.workspace, place.open()
    if listed:
        entries = handovers(ledger)
        if as_json:
            say(json.dumps([entry.model_dump() for entry in entries]))
            return
        for entry in entries:
            revoked = f"  revoked {entry.revoked_on}" if entry.revoked_on else ""
            say(f"{entry.handed_over_on}  {entry.release_id}  ledger row {entry.release_row}  {entry.partner}{revoked}")
        if not entries:
            say("nothing was handed over so far")
        return
    if release is None or to is None or out is None:
        raise InputError("name the release, the partner (--to) and a folder for the file (--out); or give --list")
    from storage.bundle.check import check
    from storage.bundle.registry import hand_over, require_committed
    from storage.bundle.seal import VARIABLE, own_public_key
    from storage.bundle.signing import Verifier

    folder = workspace.bundles / release
    row = require_committed(ledger, release, folder)
    if not allow_unsigned and key is None and not authority:
        own = workspace.home / "signing-key.pub.pem"
        trusted = own if own.is_file() and VARIABLE not in os.environ else own_public_key(workspace.private)
    else:
        trusted = key
    verifier = None if allow_unsigned else Verifier(trusted, tuple(authority or ()), identity)
    sound = check(folder, verifier, unsigned=allow_unsigned)
    archive, record = hand_over(ledger, row, folder, out, partner=to, requester=requester)
    partner = record.details["partner"]
    if as_json:
        content = {"archive": str(archive), "release_id": release, "bundle_digest": sound.digest}
        rows = {"row": record.sequence, "partner": partner, "release_row": row.sequence}
        say(json.dumps(content | rows))
        return
    say(f"{archive}  for {partner}: ledger row {record.sequence}, release row {row.sequence}")


def revoke(
    release: Annotated[str, typer.Argument(help="Release that is not to be used any more.")],
    reason: Annotated[str, typer.Option(help="Why; partners read it.")],
    place: options.LedgerOptions,
    out: Annotated[Path, typer.Option(help="Revocation list to write.")] = Path("revocations.json"),
    key: Annotated[
        Path | None,
        typer.Option(help="Private key that signs the list.", show_default="$AUTOCODER_SIGNING_KEY or the workspace's"),
    ] = None,
    requester: options.Requester = "operator",
    as_json: options.AsJson = False,
) -> None:
    """Mark a release as revoked in the ledger, and write the signed list of all that were.

    What was spent stays spent. Give the list to every partner that has the bundle (`autocoder handover --list`);
    `autocoder verify --revocations` refuses what is on it.

    [bold]Example[/bold]

      autocoder revoke 3f2a9c41d07b65e8 --reason "superseded: the code list had an error" --out revocations.json
    """
    from storage.bundle.registry import handovers, record_revocation, revocation_list
    from storage.bundle.seal import sealed_by, signing_key
    from storage.durable import write_atomically
    from storage.errors import InputError
    from storage.ledger.heads import key_id, load_private_key

    signing = load_private_key(signing_key(key, place.workspace.private))
    ledger = place.open()
    record_revocation(ledger, release, reason=reason, requester=requester)
    revocations = revocation_list(ledger, signing)
    for option, file in (("", place.workspace.revocations), ("--out ", out)):
        if not option and not file.parent.is_dir():
            continue  # the first is for the house's own workers that may not read the ledger
        try:
            write_atomically(file, revocations.model_dump_json(indent=2).encode() + b"\n")
        except OSError as error:
            why = f"{option}{file}: {error.strerror}"
            raise InputError(f"{why}; the release is revoked, run again for the list") from None
    partners = sorted({entry.partner for entry in handovers(ledger) if entry.release_id == release})
    if as_json:
        content = {"release_id": release, "list": str(out), "number": revocations.number, "partners": partners}
        say(json.dumps(content))
        return
    say(f"release {release} revoked; list {revocations.number} with {len(revocations.revoked)} entries in {out}")
    if partners:
        say(f"tell {', '.join(partners)}")
    sealed = sealed_by(place.workspace.bundles / release)
    if sealed not in (None, key_id(signing.public_key())):
        say(
            f"note: key {sealed[:16]}… sealed this bundle and another one signs the list, which partners that trust "
            "the former by --key refuse; those that trust a root are told by `autocoder keys publish`",
            err=True,
        )
