"""`autocoder handover` and `autocoder revoke`: what went to whom, and what is not to be used any more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from flows.server.settings import home_of

_Home = Annotated[
    Path | None, typer.Option("--home", help="Workspace folder. [default: $AUTOCODER_HOME or ./workspace]")
]
_LedgerUrl = Annotated[
    str | None,
    typer.Option(
        "--ledger-url",
        envvar="AUTOCODER_LEDGER_URL",
        help="Ledger's SQLAlchemy URL. [default: the workspace's]",
        show_default=False,
    ),
]
_AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
_Requester = Annotated[str, typer.Option("--requester", help="Who does this; kept in the ledger.")]


def handover(
    release: Annotated[str | None, typer.Argument(help="Release to hand over.", show_default=False)] = None,
    to: Annotated[str | None, typer.Option("--to", help="The partner it goes to.", show_default=False)] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the .tar.zst.", show_default=False)] = None,
    listed: Annotated[bool, typer.Option("--list", help="Show what was handed over so far.")] = False,
    key: Annotated[
        Path | None, typer.Option("--key", help="Public key to check the bundle with. [default: the workspace's own]")
    ] = None,
    authority: Annotated[
        list[Path] | None, typer.Option("--authority", help="Or the authority of its certificate; repeatable.")
    ] = None,
    identity: Annotated[
        str | None,
        typer.Option("--identity", help="With --authority: e-mail, URI or whole subject of the certificate."),
    ] = None,
    allow_unsigned: Annotated[bool, typer.Option("--allow-unsigned", help="Hand over without a signature.")] = False,
    requester: _Requester = "operator",
    home: _Home = None,
    ledger_url: _LedgerUrl = None,
    as_json: _AsJson = False,
) -> None:
    """Pack a release for a partner and record to whom it goes: a row of the ledger, beside the release's own.

    The bundle is checked first as the partner will check it.

    [bold]Examples[/bold]

      autocoder handover 3f2a9c41d07b65e8 --to "Statistics Office of Freedonia" --out outbox

      autocoder handover --list
    """
    from storage.bundle.registry import handovers
    from storage.errors import InputError
    from storage.ledger import Ledger
    from storage.paths import Workspace

    workspace = Workspace(home_of(home))
    ledger = Ledger.existing(ledger_url or workspace.ledger_url)
    if listed:
        found = handovers(ledger)
        if as_json:
            typer.echo(json.dumps([entry.model_dump() for entry in found]))
            return
        for entry in found:
            revoked = f"  revoked {entry.revoked_on}" if entry.revoked_on else ""
            typer.echo(
                f"{entry.handed_over_on}  {entry.release_id}  ledger row {entry.release_row}  {entry.partner}{revoked}"
            )
        if not found:
            typer.echo("nothing was handed over so far")
        return
    if release is None or to is None or out is None:
        raise InputError("name the release, the partner (--to) and a folder for the file (--out); or give --list")
    from storage.bundle.check import check
    from storage.bundle.registry import hand_over, require_committed
    from storage.bundle.signing import Verifier

    folder = workspace.bundles / release
    row = require_committed(ledger, release, folder)
    if not allow_unsigned and key is None and not authority:
        key = workspace.home / "signing-key.pub.pem"
    verifier = None if allow_unsigned else Verifier(key, tuple(authority or ()), identity)
    sound = check(folder, verifier, unsigned=allow_unsigned)
    archive, done = hand_over(ledger, row, folder, out, partner=to, requester=requester)
    partner = done.details["partner"]
    if as_json:
        told = {"archive": str(archive), "release_id": release, "bundle_digest": sound.digest, "row": done.sequence}
        typer.echo(json.dumps(told | {"partner": partner, "release_row": row.sequence}))
        return
    typer.echo(f"{archive}  for {partner}: ledger row {done.sequence}, release row {row.sequence}")


def revoke(
    release: Annotated[str, typer.Argument(help="Release that is not to be used any more.", show_default=False)],
    reason: Annotated[str, typer.Option("--reason", help="Why; partners read it.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="Revocation list to write.")] = Path("revocations.json"),
    key: Annotated[
        Path | None, typer.Option("--key", help="Private key that signs the list. [default: the workspace's own]")
    ] = None,
    requester: _Requester = "operator",
    home: _Home = None,
    ledger_url: _LedgerUrl = None,
    as_json: _AsJson = False,
) -> None:
    """Mark a release as revoked in the ledger, and write the signed list of all that were.

    What was spent stays spent. Give the list to every partner that has the bundle (`autocoder handover --list`);
    `autocoder verify --revocations` refuses what is on it.

    [bold]Example[/bold]

      autocoder revoke 3f2a9c41d07b65e8 --reason "superseded: the code list had an error" --out revocations.json
    """
    from storage.artifacts import write_atomically
    from storage.bundle.registry import handovers, record_revocation, revocation_list
    from storage.errors import InputError
    from storage.ledger import Ledger
    from storage.ledger.heads import PRIVATE_NAME, load_private_key
    from storage.paths import Workspace

    workspace = Workspace(home_of(home))
    signing = load_private_key(key or workspace.private / "keys" / PRIVATE_NAME)
    ledger = Ledger.existing(ledger_url or workspace.ledger_url)
    record_revocation(ledger, release, reason=reason, requester=requester)
    made = revocation_list(ledger, signing)
    try:
        write_atomically(out, made.model_dump_json(indent=2).encode() + b"\n")
    except OSError as error:
        raise InputError(f"--out {out}: {error.strerror}; the release is revoked, run again for the list") from None
    partners = sorted({entry.partner for entry in handovers(ledger) if entry.release_id == release})
    if as_json:
        told = {"release_id": release, "list": str(out), "number": made.number, "partners": partners}
        typer.echo(json.dumps(told))
        return
    typer.echo(f"release {release} revoked; list {made.number} with {len(made.revoked)} entries in {out}")
    if partners:
        typer.echo(f"tell {', '.join(partners)}")
