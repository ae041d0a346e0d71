"""Signs and verifies a whole bundle: OpenSSF model signing with an EC key, offline.

`model.sig` is a Sigstore bundle: an in-toto statement with the SHA-256 of every other file, in a DSSE envelope.
"""

from __future__ import annotations

import re
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.bundle.folder import SIGNATURE, UnsoundBundle
from storage.durable import sync
from storage.egress.documents import strict_json
from storage.errors import InputError
from storage.ledger import heads

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey


@dataclass(frozen=True)
class Signer:
    """Holds the file of a private P-256 key."""

    key: Path

    @property
    def key_id(self) -> str:
        """Returns the SHA-256 of the public key in hex."""
        return heads.key_id(heads.load_private_key(self.key).public_key())

    def check(self) -> None:
        """Refuses a key that cannot sign, before work starts."""
        heads.load_private_key(self.key)

    def sign(self, folder: Path, out: Path) -> None:
        """Signs every file of a bundle except the signature into `out`, synced."""
        self.check()
        from model_signing import signing

        config = signing.Config().set_hashing_config(_hashing())
        try:
            config.use_elliptic_key_signer(private_key=self.key)
        except (OSError, ValueError) as error:
            raise InputError(f"signing key {self.key}: {error}") from None
        config.sign(folder, out)
        sync(out)

    def verifies(self, folder: Path) -> bool:
        """Returns whether a bundle's signature is valid and was made by this key."""
        with suppress(UnsoundBundle):
            verify_signature(folder, heads.load_private_key(self.key).public_key())
            return True
        return False


def verify_signature(folder: Path, key: EllipticCurvePublicKey) -> None:
    """Checks a bundle's signature by a key, and with it the digest of every file."""
    from model_signing import verifying

    if not (folder / SIGNATURE).is_file():
        raise UnsoundBundle(SIGNATURE, "is missing: the bundle is not signed")
    _require_bare_key(folder)
    config = verifying.Config().set_hashing_config(_hashing())
    with tempfile.TemporaryDirectory(prefix="autocoder-key-") as scratch:
        file = Path(scratch) / heads.PUBLIC_NAME
        file.write_bytes(heads.public_pem(key))
        try:
            config.use_elliptic_key_verifier(public_key=file).verify(folder, folder / SIGNATURE)
        except Exception as error:  # a damaged signature may raise anything in the libraries
            raise _unsound(error) from None


def _require_bare_key(folder: Path) -> None:
    """Refuses a signature with more than a public key's hint: the library reads several spellings of a field."""
    try:
        material = strict_json(SIGNATURE, (folder / SIGNATURE).read_bytes())["verificationMaterial"]
        known = set(material) <= {"publicKey", "tlogEntries", "timestampVerificationData"}
    except (OSError, KeyError, TypeError):
        raise UnsoundBundle(SIGNATURE, "is damaged") from None
    if not known:
        raise UnsoundBundle(SIGNATURE, "was not made with a bare key alone. Ask the agency for a bundle that was")


def _hashing() -> Any:
    from model_signing import hashing

    return (
        hashing.Config()
        .use_file_serialization(hashing_algorithm="sha256", allow_symlinks=False)
        .set_ignored_paths(paths=[SIGNATURE], ignore_git_paths=False)
    )


def _unsound(error: Exception) -> UnsoundBundle:
    text = str(error).replace("\\'", "'")  # the library shows a list, whose quotes are escaped now and then
    for pattern, problem in (
        (r"Hash mismatch for '([^']+)'", "was changed since it was signed"),
        (r"Extra files found in model '[^']*': ([^,'\"\]]+)", "was added since the bundle was signed"),
        (r"Missing files in model '[^']*': ([^,'\"\]]+)", "was signed but is missing"),
    ):
        match = re.search(pattern, text)
        if match is not None and text.startswith("Signature mismatch"):
            return UnsoundBundle(match[1], problem)
    if "Key mismatch" in text:
        return UnsoundBundle(SIGNATURE, "was made by another key")
    return UnsoundBundle(SIGNATURE, "invalid signature, or its key is not trusted")
