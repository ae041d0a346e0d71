"""Verifies a bundle without loading its model: signature, digests, codes, ledger proof, and
revocation.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.bundle.folder import PROOF, SEAL, SIGNATURE, STATEMENT, UnsoundBundle, content_files
from storage.bundle.proof import check_proof
from storage.bundle.seal import claimed_release, sealed_by
from storage.bundle.signing import verify_signature
from storage.bundle.trust import Root, Trust
from storage.egress.allow_list import FILES, check_codes, check_layers, list_files, read_files
from storage.ledger.keys import key_id

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey


@dataclass(frozen=True)
class VerifiedBundle:
    """The result of verifying a bundle."""

    release_id: str
    files: int
    digest: str
    """Digest of the content, as in the ledger's row."""
    ledger_sequence: int
    signed_by: str | None
    """Key id (SHA-256 of the public key). None for a bundle without a signature."""
    root: Root | None
    """The agency's root against which the bundle was verified. None for a bundle without a
    signature.
    """
    key: EllipticCurvePublicKey | None
    """The key that signed the bundle."""
    contents: dict[str, Any]
    """Every file, parsed. Tensors are represented by their shapes."""


def check(folder: Path, trust: Trust | None, *, unsigned: bool = False) -> VerifiedBundle:
    """Verifies a bundle from its signature to its last field, without importing torch or opening a
    connection.

    Without a trusted key, a bundle is accepted only if `unsigned` is set.
    """
    root = None if trust is None else trust.load()
    if root is None and not unsigned:
        raise UnsoundBundle(SIGNATURE, "cannot be checked without a key. Pass --key", kind="no-key")
    allowed = frozenset(FILES)
    list_files(folder, allowed=allowed)
    public, digests = (None, content_files(folder)) if root is None else _signing_key(folder, root)
    contents = read_files(folder, allowed=allowed)
    if PROOF not in contents:
        raise UnsoundBundle(
            PROOF, "is missing, so the bundle is incomplete. Run its release again", kind="no-proof"
        )
    check_codes(contents)
    check_layers(contents)
    proof, statement = contents[PROOF], contents[STATEMENT]
    check_proof(
        {name: sha256 for name, sha256 in digests.items() if name not in SEAL},
        proof,
        statement,
        key=public,
    )
    row = proof["row"]
    if root is not None:
        root.check(row["release_id"], row["bundle_digest"], public)
    return VerifiedBundle(
        release_id=row["release_id"],
        files=len(contents),
        digest=row["bundle_digest"],
        ledger_sequence=row["sequence"],
        signed_by=None if public is None else key_id(public),
        root=root,
        key=public,
        contents=contents,
    )


def _signing_key(folder: Path, root: Root) -> tuple[EllipticCurvePublicKey, dict[str, str]]:
    if not (folder / SIGNATURE).is_file():
        raise UnsoundBundle(SIGNATURE, "is missing: the bundle is not signed", kind="unsigned")
    keys, claimed = root.sealing_keys(claimed_release(folder) or ""), sealed_by(folder)
    first, *other_keys = sorted(keys, key=lambda key: key_id(key) != claimed)
    try:
        return first, verify_signature(folder, first)
    except UnsoundBundle:
        for key in other_keys:
            with suppress(UnsoundBundle):
                return key, verify_signature(folder, key)
        raise
