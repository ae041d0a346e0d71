"""`autocoder verify`: what a partner can tell of a bundle with no network and, but for the golden answers, no model."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.commands import options
from flows.commands.terminal import say


def verify(
    bundle: Annotated[Path, typer.Argument(help="The bundle: its folder, or the .tar.zst file.")],
    key: Annotated[Path | None, typer.Option(help="Public key (PEM) of the agency, had from a safe place.")] = None,
    authority: Annotated[
        list[Path] | None, typer.Option(help="Instead: certificate authority (PEM) that is trusted; repeatable.")
    ] = None,
    identity: Annotated[
        str | None, typer.Option(help="With --authority: whose certificate (its e-mail, URI or whole subject).")
    ] = None,
    root: options.Root = None,
    repository: options.Repository = None,
    state: options.State = None,
    revocations: options.Revocations = None,
    golden: Annotated[
        bool | None,
        typer.Option(
            "--golden/--no-golden", help="Load the model and try the golden answers.", show_default="where torch is"
        ),
    ] = None,
    allow_unsigned: Annotated[
        bool, typer.Option("--allow-unsigned", help="Check a bundle without a signature: digests, fields, answers.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Check a bundle: signature, digests, fields, place in the ledger, revocation, golden answers.

    With --root the agency's signed list has to name the bundle, and an archive is compared with it before it is
    unpacked: keys may have been replaced since, a revoked bundle is refused, and so is a list that is out of date. With
    --key or --authority alone, revocation is checked where --revocations is given.

    One line says what holds. Otherwise the exit code is 1, and the line names the file that is at fault.

    [bold]Examples[/bold]

      autocoder verify 3f2a9c41d07b65e8.tar.zst --key signing-key.pub.pem --revocations revocations.json

      autocoder verify bundles/3f2a9c41d07b65e8 --authority ca.pem --identity releases@agency.example --json
    """
    from storage.bundle.archive import opened
    from storage.bundle.check import check
    from storage.bundle.folder import UnsoundBundle
    from storage.bundle.signing import Verifier
    from storage.errors import InputError

    if key is not None and authority:
        raise InputError("give --key or --authority, not both")
    verifier = Verifier(key, tuple(authority or ()), identity) if key is not None or authority or identity else None
    trusted, bundle = options.trust(root, repository, state), bundle.expanduser()
    if verifier is None and trusted is None and not allow_unsigned:
        raise InputError(
            "give the agency's root by --root, its public key by --key, or the authority of its certificate by "
            "--authority"
        )
    try:
        listing = None if trusted is None else trusted.listing()
        if listing is not None and bundle.is_file():
            listing.check_archive(bundle)
        with opened(bundle) as folder:
            sound = check(folder, verifier, listing=listing, revocations=revocations, unsigned=allow_unsigned)
            answers = _try_golden(folder, sound.found, wanted=golden)
    except UnsoundBundle as fault:
        if as_json:
            say(json.dumps({"sound": False, "file": fault.file, "problem": fault.problem}))
        else:
            say(f"NOT SOUND  {fault.file}: {fault.problem}", err=True)
        raise typer.Exit(1) from None
    if as_json:
        content = {
            "sound": True,
            "release_id": sound.release_id,
            "bundle_digest": sound.digest,
            "files": sound.files,
            "ledger_sequence": sound.ledger_sequence,
            "signed_by": sound.signed_by,
            "revocation_list": sound.revocations,
            "agency_list": sound.listed,
            "revocation_checked": sound.revocations is not None or sound.listed is not None,
            "golden_answers": answers,
        }
        say(json.dumps(content))
        return
    signed = f"signed by {sound.signed_by[:16]}" if sound.signed_by else "UNSIGNED"
    listed = "" if sound.revocations is None else f", not on revocation list {sound.revocations}"
    if listing is not None:
        listed += f", on the agency's list {listing.version} (good until {listing.expires:%Y-%m-%d})"
    listed = listed or ", revocation not checked"
    tried = f"{answers} golden answers" if answers is not None else "golden answers not tried"
    say(
        f"sound: release {sound.release_id}, {signed}, {sound.files} files, ledger row {sound.ledger_sequence}"
        f"{listed}, {tried}"
    )


def _try_golden(folder: Path, content: dict[str, Any], *, wanted: bool | None) -> int | None:
    """How many golden answers were tried; None for none."""
    from storage.bundle.folder import GOLDEN
    from storage.errors import InputError

    if wanted is False:
        return None
    if find_spec("torch") is None or find_spec("transformers") is None:
        if wanted:
            raise InputError("--golden: torch and transformers are not installed")
        return None
    from mechanisms.model import export
    from storage.bundle.folder import UnsoundBundle
    from tasks.bundle import golden

    # the libraries below raise whatever a model meets that is not as it should be
    try:
        released = export.load(folder)
    except Exception as error:
        name = "modules.json" if (folder / "modules.json").is_file() else "config.json"
        raise UnsoundBundle(name, f"the model cannot be loaded with it ({type(error).__name__})") from None
    tried = 0
    for field, own in released.fields.items():
        file = f"{field}/{GOLDEN}" if field else GOLDEN
        try:
            golden.check(own, content[file], file=file)
        except UnsoundBundle:
            raise
        except Exception as error:
            raise UnsoundBundle(file, f"the model cannot answer ({type(error).__name__})") from None
        tried += len(content[file])
    return tried
