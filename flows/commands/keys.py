"""`autocoder keys`: keys that sign bundles, heads and decisions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.terminal import say

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
