"""Defines `autocoder keys`: signing keys, and the roots that replace them."""

from pathlib import Path
from typing import Annotated

import typer

from flows.commands import options
from flows.commands.help import Command
from flows.commands.ledger_options import LedgerOptions
from flows.commands.terminal import say
from storage.paths import Workspace

app = typer.Typer(help="Keys that sign bundles, heads and decisions.", no_args_is_help=True)


@app.command(cls=Command)
@options.expand_groups
def new(
    out: Annotated[
        Path, typer.Option(help="Folder for the two files. Existing files are not overwritten.")
    ],
) -> None:
    """Make an EC P-256 key pair: signing-key.pem (keep it) and signing-key.pub.pem (give it to
    partners).
    """
    from storage.ledger.keys import key_id, load_public_key, new_keys

    private, public = new_keys(out)
    say(f"private key  {private}  (mode 0600)")
    say(f"public key   {public}")
    say(f"key id       {key_id(load_public_key(public))}")


@app.command(cls=Command)
@options.expand_groups
def root(
    place: LedgerOptions,
    root_key: Annotated[
        list[Path] | None, typer.Option(help="Public key that signs roots; repeatable.")
    ] = None,
    release_key: Annotated[
        list[Path] | None, typer.Option(help="Public key that signs bundles; repeatable.")
    ] = None,
    threshold: Annotated[
        int | None,
        typer.Option(min=1, help="Number of root keys that must sign.", show_default="as before"),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="Validity of the root in days.")] = 365,
    key: Annotated[
        list[Path] | None, typer.Option(help="Private root key to sign with now; repeatable.")
    ] = None,
    out: Annotated[Path, typer.Option(help="File of roots to write for partners.")] = Path(
        "roots.json"
    ),
) -> None:
    r"""Make the agency's next root. Values without an option are copied from the last root.

    The first root is the workspace's public key. The next root replaces keys, repeats the ledger's
    revocations and renews the date. Partners accept it if enough keys of the previous root signed
    it. Keep root keys apart from release keys, each with a different person.

    Examples

      autocoder keys root --root-key anna.pub.pem --root-key ben.pub.pem \
          --threshold 2 --key private/keys/signing-key.pem

      autocoder keys root --release-key new.pub.pem --out roots.json
    """
    from storage.bundle.registry import earlier_bundles, revoked_releases
    from storage.bundle.seal import signing_public_key
    from storage.bundle.trust import (
        incomplete,
        lock_roots,
        sign_newest,
        with_next_root,
        workspace_roots,
        write_roots,
    )
    from storage.ledger.keys import load_private_key, load_public_key, public_pem

    ledger, file = place.open(), place.workspace.roots
    root_keys, sealing = (
        [load_public_key(path.expanduser()) for path in paths or ()]
        for paths in (root_key, release_key)
    )
    with lock_roots(place.workspace):
        first = None if file.exists() else signing_public_key(place.workspace.private)
        history = workspace_roots(file, first)
        lasting = {public_pem(key).decode() for key in sealing} or set(history[-1].release_keys)
        replaced = {pem for root in history for pem in root.release_keys} - lasting
        roots = with_next_root(
            history,
            keys=root_keys,
            threshold=threshold,
            release_keys=sealing,
            earlier=earlier_bundles(ledger, place.workspace.bundles, replaced),
            revoked=revoked_releases(ledger),
            days=days,
        )
        for path in key or ():
            roots = sign_newest(roots, load_private_key(path.expanduser()))
        for written in dict.fromkeys((file, out.expanduser())):
            write_roots(written, roots)
    lacks = incomplete(roots)
    say(f"root {roots[-1].version} in {out}, valid until {roots[-1].expires_on}: {_state(lacks)}")
    if lacks:
        say(f"Next, for each holder of a root key: autocoder keys sign {out} --key KEY.pem")


@app.command(cls=Command)
@options.expand_groups
def sign(
    roots: Annotated[Path, typer.Argument(help="File of roots.")],
    key: Annotated[Path, typer.Option(help="Private root key.")],
    home: options.Home = None,
) -> None:
    """Add a signature to the newest root in a file. A root with enough signatures also becomes the
    root of the workspace (--home).
    """
    from storage.bundle.trust import incomplete, read_roots, replace_roots, sign_newest, write_roots
    from storage.ledger.keys import load_private_key

    signed = sign_newest(read_roots(roots.expanduser()), load_private_key(key.expanduser()))
    write_roots(roots.expanduser(), signed)
    lacks = incomplete(signed)
    if home is not None and not lacks:
        replace_roots(Workspace(options.home_of(home)), signed)
    say(_state(lacks))


def _state(lacks: int) -> str:
    return f"{lacks} more signatures needed" if lacks else "signed, and valid"
