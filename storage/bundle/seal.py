"""Sealing: proof and signature are added to a committed bundle, each put into place whole, once."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from storage.bundle import folder as bundle
from storage.bundle.folder import PROOF, SIGNATURE
from storage.bundle.proof import proof_of
from storage.bundle.signing import Signer
from storage.durable import sync, write_atomically
from storage.errors import StorageError
from storage.ledger import heads
from storage.ledger.models import Row

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

VARIABLE = "AUTOCODER_SIGNING_KEY"
_PUBLIC = "signing-key.pub.pem"


def seal(folder: Path, row: Row, signer: Signer | None) -> None:
    """Add the ledger's proof and, with a signer, the signature over everything.

    A bundle whose seal stands and is this signer's is left as it is; one that a crash left half sealed, or whose
    signature is another key's, is sealed anew. Without a signer a signed bundle stays signed.

    Args:
        folder: the bundle.
        row: its committed row.
        signer: None leaves the bundle unsigned.

    Raises:
        StorageError: the row does not bear out the bundle.
    """
    # Files on their way lie beside the bundle: the private workspace may be on another disk.
    aside = folder.with_name(f".sealing-{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    if signer is None and (folder / SIGNATURE).is_file():
        return
    key = None if signer is None else heads.load_private_key(signer.key)
    wanted = proof_of(row, bundle.content_files(folder), key=key)
    if _standing(folder, wanted, signer):
        return
    aside.mkdir()
    try:
        (folder / SIGNATURE).unlink(missing_ok=True)
        content = json.dumps(wanted, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        write_atomically(aside / PROOF, content.encode())
        (aside / PROOF).replace(folder / PROOF)
        if signer is not None:
            signer.sign(folder, aside / SIGNATURE)
            (aside / SIGNATURE).replace(folder / SIGNATURE)
        sync(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def signing_key(named: Path | None, private: Path) -> Path:
    """The private key that signs here: the one named, else this machine's ($AUTOCODER_SIGNING_KEY), else the
    workspace's own.
    """
    machine = os.environ.get(VARIABLE)
    return named or (Path(machine) if machine else private / "keys" / heads.PRIVATE_NAME)


def own_public_key(private: Path) -> EllipticCurvePublicKey:
    """The public half of the key that signs here.

    Raises:
        InputError: it cannot be read.
    """
    return heads.load_private_key(signing_key(None, private)).public_key()


def sealed_by(folder: Path) -> str | None:
    """Id of the key that a bundle says it was sealed by; None where it does not say."""
    try:
        return json.loads((folder / PROOF).read_text(encoding="utf-8"))["head"]["key_id"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _standing(folder: Path, wanted: dict[str, object], signer: Signer | None) -> bool:
    """Whether the seal is there, of this row and by this signer. The head's signature, new each time, is left out."""
    try:
        found = json.loads((folder / PROOF).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if _unsigned(found) != _unsigned(wanted):
        return False
    return signer is None or signer.verifies(folder)


def _unsigned(proof: dict[str, object]) -> dict[str, object]:
    head = proof.get("head")
    return proof | {"head": {**head, "signature": None} if isinstance(head, dict) else head}


def workspace_signer(private: Path, home: Path) -> Signer:
    """The workspace's own key, made at the first call; its public half is put beside the bundles' folder.

    Raises:
        StorageError: the private key is gone and the public one is not: a new one would pass for the old.
    """
    folder = private / "keys"
    secret, public = folder / heads.PRIVATE_NAME, folder / heads.PUBLIC_NAME
    if not secret.exists():
        if public.exists():
            raise StorageError(f"{secret} is gone; restore it, or remove {public} and tell partners of a new key")
        heads.new_keys(folder)
    if not public.exists() or not (home / _PUBLIC).exists():
        content = heads.public_pem(heads.load_private_key(secret).public_key())
        write_atomically(public, content)
        write_atomically(home / _PUBLIC, content)
    return Signer(secret)
