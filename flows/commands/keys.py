"""`autocoder keys`: keys that sign bundles, heads and decisions; roots that give them roles, and the dated list."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands import options
from flows.commands.terminal import say

_Folder = Annotated[Path, typer.Argument(help="Folder for partners: roots and the signed list.")]
_ListKey = Annotated[list[Path], typer.Option(help="Private key that dates the list; repeatable.")]
_Days = Annotated[int, typer.Option(min=1, max=400, help="For how long the list counts.")]

app = typer.Typer(help="Keys that sign what leaves the house.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keys that sign what leaves the house."""


@app.command()
def new(out: Annotated[Path, typer.Option(help="Folder for the two files; nothing in it is overwritten.")]) -> None:
    """Make an EC P-256 key pair: signing-key.pem (keep it) and signing-key.pub.pem (give it to partners)."""
    from storage.ledger.heads import key_id, load_public_key, new_keys

    private, public = new_keys(out)
    say(f"private key  {private}  (mode 0600)")
    say(f"public key   {public}")
    say(f"key id       {key_id(load_public_key(public))}")


@app.command()
def root(
    folder: _Folder,
    root_key: Annotated[list[Path] | None, typer.Option(help="Public key that signs roots; repeatable.")] = None,
    release_key: Annotated[list[Path] | None, typer.Option(help="Public key that signs bundles and the list.")] = None,
    list_key: Annotated[list[Path] | None, typer.Option(help="Public key that dates the list.")] = None,
    threshold: Annotated[int | None, typer.Option(min=1, help="Root keys that it takes.", show_default="1")] = None,
    release_threshold: Annotated[
        int | None, typer.Option(min=1, help="Release keys that it takes for the list.", show_default="1")
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="For how long the root counts.")] = 730,
) -> None:
    """Make the next root, to be signed with `keys sign`; what is not named stays as the root before has it.

    Keys are replaced by a new root: partners follow it if enough keys of the root that they have signed it. Root keys
    are kept apart from all others, each by another person.

    [bold]Examples[/bold]

      autocoder keys root trust --root-key anna.pub.pem --root-key ben.pub.pem --threshold 2 --release-key
      signing-key.pub.pem --list-key list.pub.pem

      autocoder keys root trust --release-key new.pub.pem
    """
    from storage.bundle.roles import LISTING, new_root
    from storage.ledger.heads import load_public_key

    given = {"root": root_key, "targets": release_key} | dict.fromkeys(LISTING, list_key)
    keys = {role: [load_public_key(path.expanduser()) for path in paths] for role, paths in given.items() if paths}
    asked = {"root": threshold, "targets": release_threshold}
    needed = {role: number for role, number in asked.items() if number is not None}
    made = new_root(folder.expanduser(), keys=keys, thresholds=needed, days=days)
    say(f"{made}: not signed yet; whoever has a root key runs `autocoder keys sign {folder} --key KEY.pem`")


@app.command()
def sign(folder: _Folder, key: Annotated[Path, typer.Option(help="Private key of the root.")]) -> None:
    """Add a signature to the newest root."""
    from storage.bundle.roles import sign_root
    from storage.ledger.heads import load_private_key

    missing = sign_root(folder.expanduser(), load_private_key(key.expanduser()))
    say(f"signed; {missing} more needed" if missing else "signed, and in force: date the list anew with `keys publish`")


@app.command()
@options.grouped
def publish(
    folder: _Folder,
    place: options.LedgerOptions,
    release_key: Annotated[list[Path], typer.Option(help="Private key that signs the list; repeatable.")],
    list_key: _ListKey,
    past_key: Annotated[
        list[Path] | None, typer.Option(help="Public key of earlier bundles that no root names; repeatable.")
    ] = None,
    days: _Days = 30,
) -> None:
    """Write the list of all bundles that were handed over, with what was revoked, and date it.

    Give the folder to every partner after a handover, a revocation, a new root, and before its date is over.

    [bold]Example[/bold]

      autocoder keys publish trust --release-key signing-key.pem --list-key list.pem
    """
    from storage.bundle.registry import listed
    from storage.bundle.roles import known_keys
    from storage.bundle.roles import publish as write
    from storage.ledger.heads import key_id, load_private_key, load_public_key, public_pem

    to = folder.expanduser()
    past = [load_public_key(path.expanduser()) for path in past_key or ()]
    known = known_keys(to) | {key_id(key): public_pem(key).decode() for key in past}
    releases = listed(place.open(), place.workspace.bundles, known)
    signing, dating = ([load_private_key(path.expanduser()) for path in paths] for paths in (release_key, list_key))
    number = write(to, releases, release_keys=signing, list_keys=dating, days=days)
    revoked = sum(entry.entry.revoked_on is not None for entry in releases.values())
    say(f"list {number} with {len(releases)} releases ({revoked} revoked) in {folder}, good for {days} days")


@app.command()
def refresh(folder: _Folder, list_key: _ListKey, days: _Days = 30) -> None:
    """Date the list anew as it stands: needs neither ledger nor release key, so that a clock may do it."""
    from storage.bundle.roles import refresh as date
    from storage.ledger.heads import load_private_key

    keys = [load_private_key(path.expanduser()) for path in list_key]
    say(f"list {date(folder.expanduser(), list_keys=keys, days=days)}, good for {days} days")
