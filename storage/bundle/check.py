"""What a partner can tell of a bundle with a key and no model: signature, digests, fields, codes, ledger, revoked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.bundle import folder as bundle
from storage.bundle.folder import PROOF, SIGNATURE, STATEMENT, UnsoundBundle
from storage.bundle.proof import check_proof
from storage.bundle.revocations import Revocations
from storage.bundle.signing import Verifier
from storage.bundle.trust import Listing
from storage.egress.allowed import check_codes, check_layers, fields_in, files_of, read_files
from storage.egress.documents import strict_json
from storage.errors import InputError
from storage.ledger.heads import key_id

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey


@dataclass(frozen=True)
class Sound:
    """What holds of a bundle."""

    release_id: str
    files: int
    digest: str
    """Of the content, as the ledger's row has it."""
    ledger_sequence: int
    signed_by: str | None
    """Key id (SHA-256 of the public key), None for a bundle without a signature."""
    revocations: int | None
    """Number of the revocation list it is not on, None where none was given."""
    listed: int | None
    """Number of the agency's list that it is on, None where no root was given."""
    key: EllipticCurvePublicKey | None
    """That signed."""
    found: dict[str, Any]
    """Every file, parsed; tensors by their shapes."""


def check(
    folder: Path,
    verifier: Verifier | None,
    *,
    listing: Listing | None = None,
    revocations: Path | None = None,
    unsigned: bool = False,
) -> Sound:
    """Check a bundle from its signature to its last field. Imports no torch, opens no connection.

    Args:
        verifier: who must have signed; None only with `listing` or `unsigned`.
        listing: the agency's list, which has to name the bundle; without a verifier it also says who must have signed.
        revocations: file of a list, which has to be signed by the key that signed the bundle.
        unsigned: take a bundle without a signature; a key or authority that is given is then not asked.

    Raises:
        UnsoundBundle: names the first file that is not as it should be.
        InputError: the key, the authorities or the revocation list cannot be used.
    """
    allowed = files_of(fields_in(folder))
    bundle.check_allowed(folder, allowed)
    public = None
    if verifier is not None:
        public = verifier.verify(folder)
    elif listing is not None:
        public = listing.verify(folder, _named(folder))
    elif not unsigned:
        raise UnsoundBundle(SIGNATURE, "cannot be checked without a key or a certificate authority")
    if not (folder / PROOF).is_file():
        raise UnsoundBundle(PROOF, "is missing: the bundle was not finished, run its release again")
    found = read_files(folder, allowed=allowed)
    check_codes(found)
    check_layers(found)
    proof, statement = found[PROOF], found[STATEMENT]
    check_proof(folder, proof, statement, key=public)
    row = proof["row"]
    if listing is not None:
        listing.check(row["release_id"], row["bundle_digest"])
    listed = None
    if revocations is not None:
        if public is None:
            raise InputError("--revocations: a list is checked with the key that signed the bundle; give it")
        listed = Revocations.load(revocations, key=public)
        listed.check(row["release_id"], row["bundle_digest"])
    return Sound(
        release_id=row["release_id"],
        files=len(found),
        digest=row["bundle_digest"],
        ledger_sequence=row["sequence"],
        signed_by=None if public is None else key_id(public),
        revocations=None if listed is None else listed.number,
        listed=None if listing is None else listing.version,
        key=public,
        found=found,
    )


def _named(folder: Path) -> str:
    """The release that a bundle says it is, before anything in it is believed."""
    try:
        return str(strict_json(PROOF, (folder / PROOF).read_bytes())["row"]["release_id"])
    except (OSError, KeyError, TypeError, RecursionError):
        raise UnsoundBundle(PROOF, "is missing or damaged") from None
