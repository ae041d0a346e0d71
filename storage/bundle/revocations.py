"""The list of releases that are not to be used any more, signed, for partners to check bundles against."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from storage.bundle.folder import STATEMENT, UnsoundBundle
from storage.errors import InputError
from storage.ledger import chain
from storage.ledger.heads import key_id

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey


class Revoked(BaseModel):
    """One release that is not to be used."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    release_id: str = Field(min_length=1, max_length=300)
    bundle_digest: str = Field(pattern="^[0-9a-f]{64}$")
    revoked_on: str = Field(pattern=r"^\d{4}-\d\d-\d\d$")
    reason: str = Field(min_length=1, max_length=1000)


class Revocations(BaseModel):
    """Every release that was revoked so far, and the signature: ECDSA on P-256 over the canonical JSON without it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    statement: Literal["autocoder revocation list"] = "autocoder revocation list"
    version: Literal[1] = 1
    number: int = Field(ge=0)
    """Grows with each list; of two lists the higher number is the newer."""
    stated_on: str = Field(pattern=r"^\d{4}-\d\d-\d\d$")
    revoked: tuple[Revoked, ...]
    key_id: str | None = None
    signature: str | None = None

    def _signed_bytes(self) -> bytes:
        return chain.canonical(self.model_dump(mode="json", exclude={"signature"})).encode()

    def signed(self, key: EllipticCurvePrivateKey) -> Revocations:
        """The same list with a signature."""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        named = self.model_copy(update={"key_id": key_id(key.public_key())})
        signature = key.sign(named._signed_bytes(), ec.ECDSA(hashes.SHA256()))
        return named.model_copy(update={"signature": base64.b64encode(signature).decode()})

    def check(self, release_id: str, bundle_digest: str) -> None:
        """Refuse a release that is on the list, by its id or by its bundle's digest.

        Raises:
            UnsoundBundle: it was revoked; says when and why.
        """
        for entry in self.revoked:
            if entry.release_id == release_id or entry.bundle_digest == bundle_digest:
                raise UnsoundBundle(
                    STATEMENT, f"release {release_id} was revoked on {entry.revoked_on}: {entry.reason}"
                )

    @staticmethod
    def read(path: Path) -> Revocations:
        """Read the house's own list, where it keeps it: whoever can write there is trusted with the bundles too.

        Raises:
            InputError: it cannot be read.
        """
        try:
            return Revocations.model_validate(json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise InputError(f"--revocations {path}: {error.strerror}") from None
        except (ValueError, RecursionError):
            raise InputError(f"--revocations {path}: no revocation list") from None

    @staticmethod
    def load(path: Path, *, key: EllipticCurvePublicKey) -> Revocations:
        """Read a list and check its signature.

        Raises:
            InputError: it cannot be read, or is not signed by this key.
        """
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec

        found = Revocations.read(path)
        if found.signature is None or found.key_id != key_id(key):
            raise InputError(f"--revocations {path}: not signed with the key that signed the bundle")
        try:
            signature = base64.b64decode(found.signature, validate=True)
            key.verify(signature, found._signed_bytes(), ec.ECDSA(hashes.SHA256()))
        except (InvalidSignature, ValueError):
            raise InputError(f"--revocations {path}: its signature is false") from None
        return found
