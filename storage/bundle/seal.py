"""Seals a committed bundle by adding proof and signature, each atomically."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from storage.bundle import folder as bundle
from storage.bundle.folder import PROOF, SIGNATURE, UnsoundBundle
from storage.bundle.proof import proof_of
from storage.bundle.signing import sign, verify_signature
from storage.durable import read_regular, sync, write_atomically
from storage.errors import DamagedData, StorageError
from storage.ledger import keys
from storage.paths import Workspace

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import (
        EllipticCurvePrivateKey,
        EllipticCurvePublicKey,
    )

    from storage.json_values import Json
    from storage.ledger.entries import ReleaseRow

VARIABLE = "AUTOCODER_SIGNING_KEY"
_PUBLIC = "signing-key.pub.pem"


def seal(folder: Path, row: ReleaseRow, key: EllipticCurvePrivateKey | None) -> None:
    """Adds the ledger's proof and, with a key, the signature over everything.

    A valid seal by this key is left unchanged. A bundle that a crash left partially sealed, or that
    another key signed, is sealed again. Without a key, signed bundles remain signed and others
    remain unsigned.
    """
    # Temporary files are next to the bundle because the private workspace may be on another disk.
    aside = folder.with_name(f".sealing-{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    if key is None and (folder / SIGNATURE).is_file():
        return
    proof = proof_of(row, bundle.content_files(folder), key=key)
    if _is_current(folder, proof, key):
        return
    aside.mkdir()
    try:
        (folder / SIGNATURE).unlink(missing_ok=True)
        write_atomically(aside / PROOF, bundle.json_text(proof).encode())
        (aside / PROOF).replace(folder / PROOF)
        if key is not None:
            sign(folder, key, aside / SIGNATURE)
            (aside / SIGNATURE).replace(folder / SIGNATURE)
        sync(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def signing_key(named: Path | None, private: Path) -> Path:
    """The path of the signing key: `named`, or this machine's ($AUTOCODER_SIGNING_KEY), or the
    workspace's.
    """
    machine = os.environ.get(VARIABLE)
    return named or (Path(machine) if machine else private / "keys" / keys.PRIVATE_NAME)


def release_key(workspace: Workspace, named: Path | None = None) -> EllipticCurvePrivateKey:
    """The key that signs rows of releases: `named`, this machine's, or the workspace's, which is
    created if necessary.
    """
    if named is None and VARIABLE not in os.environ:
        return workspace_key(workspace.private, workspace.home)
    return keys.load_private_key(signing_key(named, workspace.private).expanduser())


def signing_public_key(private: Path) -> EllipticCurvePublicKey:
    return keys.load_private_key(signing_key(None, private)).public_key()


def sealed_by(folder: Path) -> str | None:
    """The id of the key that a bundle claims to be sealed by, if any. The claim is not verified."""
    return _claim(folder, "head", "key_id")


def claimed_release(folder: Path) -> str | None:
    """The release id that a bundle claims, if any. The claim is not verified."""
    return _claim(folder, "row", "release_id")


def _claim(folder: Path, part: str, name: str) -> str | None:
    try:
        return json.loads(read_regular(folder / PROOF, 1 << 20))[part][name]
    except (StorageError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _is_current(folder: Path, proof: dict[str, Json], key: EllipticCurvePrivateKey | None) -> bool:
    try:
        current = json.loads((folder / PROOF).read_text(encoding="utf-8"))
        if key is not None:
            verify_signature(folder, key.public_key())
    except (OSError, ValueError, UnsoundBundle):
        return False
    return _unsigned(current) == _unsigned(proof)


def _unsigned(proof: dict[str, Json]) -> dict[str, Json]:
    head = proof.get("head")
    return proof | {"head": {**head, "signature": None} if isinstance(head, dict) else head}


def workspace_key(private: Path, home: Path) -> EllipticCurvePrivateKey:
    """The workspace's key, which the first call creates. Also writes its public key next to the
    bundles' folder.
    """
    folder = private / "keys"
    secret, public = folder / keys.PRIVATE_NAME, folder / keys.PUBLIC_NAME
    if not secret.exists():
        if public.exists():  # a new key pair would silently replace it
            raise DamagedData(
                f"{secret} is missing. Restore it, or remove {public} and send partners the new "
                "key.",
                kind="no-secret-key",
            )
        keys.new_keys(folder)
    key = keys.load_private_key(secret)
    if not public.exists() or not (home / _PUBLIC).exists():
        for file in (public, home / _PUBLIC):
            write_atomically(file, keys.public_pem(key.public_key()))
    return key
