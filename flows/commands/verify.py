"""Defines `autocoder verify`: checks a bundle without network access and, except for the test
vectors, without a model.
"""

import json
from pathlib import Path
from typing import Annotated

import typer

from flows.commands import bundle_options, options
from flows.commands.terminal import say
from storage.errors import Missing


def verify(
    bundle: Annotated[Path, typer.Argument(help="The bundle: its folder, or the .tar.zst file.")],
    key: bundle_options.Key = None,
    roots: bundle_options.Roots = None,
    golden: Annotated[
        bool | None,
        typer.Option(
            "--golden/--no-golden",
            help="Load the model and check the test vectors.",
            show_default="--golden if torch is installed",
        ),
    ] = None,
    allow_unsigned: bundle_options.AllowUnsigned = False,
    as_json: options.AsJson = False,
) -> None:
    r"""Check a bundle: signature, digests, fields, ledger position, revocation, test vectors.

    --key is the agency's first root, and --roots contains the later ones. With --roots, keys that
    replaced the first one are accepted, and revoked bundles and expired roots are refused.

    It prints what was checked and, on a second line, what was not. For a bad bundle, it exits with
    1 and prints the file at fault.

    Examples

      autocoder verify 3f2a9c41d07b65e8.tar.zst \
          --key signing-key.pub.pem --roots roots.json

      autocoder verify bundles/3f2a9c41d07b65e8 --key signing-key.pub.pem --json
    """
    from storage.bundle.adoption import AdoptedBundle
    from storage.bundle.archive import open_folder
    from storage.bundle.check import check
    from storage.bundle.folder import UnsoundBundle

    bundle = bundle.expanduser()
    adopted = AdoptedBundle.read(bundle) if key is None else None
    trust = bundle_options.trust(key, roots) if adopted is None else adopted.trust
    roots = roots or (None if adopted is None else adopted.roots)
    if trust is None and not allow_unsigned:
        raise Missing(
            "no trusted key. Pass the agency's public key with --key.", kind="no-key-to-verify"
        )
    try:
        with open_folder(bundle) as folder:
            sound = check(folder, trust, unsigned=allow_unsigned)
            answers = None
            if golden is not False:
                from tasks.bundle.golden import check_answers

                answers = check_answers(folder, sound.contents, required=bool(golden))
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
            "root_version": None if sound.root is None else sound.root.version,
            "revocation_checked": roots is not None,
            "golden_answers": answers,
        }
        say(json.dumps(content))
        return
    signed = f"signed by {sound.signed_by[:16]}" if sound.signed_by else "UNSIGNED"
    listed = ""
    if roots is not None and sound.root is not None:
        listed = (
            f", by root {sound.root.version} (valid until "
            f"{sound.root.expires_on or 'replaced'}), not revoked"
        )
    unchecked = [] if listed else ["revocation (use --roots)"]
    if answers is None:
        unchecked.append("test vectors (use --golden)")
    tried = "" if answers is None else f", {answers} test vectors"
    say(
        f"sound: release {sound.release_id}, {signed}, {sound.files} files, ledger row "
        f"{sound.ledger_sequence}"
        f"{listed}{tried}"
    )
    if unchecked:
        say(f"not checked: {', '.join(unchecked)}")
