"""The signature over a whole bundle: OpenSSF model signing with an EC key or an X.509 certificate, no network.

`model.sig` is a Sigstore bundle: an in-toto statement with the SHA-256 of every other file, in a DSSE envelope. The
library takes a certificate's own first day for the time of signing, so that an expired one passes; without a trusted
clock nobody can tell when a bundle was signed, and an expired certificate is refused here.
"""

from __future__ import annotations

import base64
import os
import re
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.bundle.folder import SIGNATURE, UnsoundBundle
from storage.egress.documents import strict_json
from storage.errors import InputError
from storage.ledger import heads

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.x509 import Certificate


@dataclass(frozen=True)
class Signer:
    """A private P-256 key by its file; with a certificate, the certificate speaks for it."""

    key: Path
    certificate: Path | None = None
    chain: tuple[Path, ...] = ()

    @property
    def key_id(self) -> str:
        """SHA-256 of the public key, in hex."""
        return heads.key_id(heads.load_private_key(self.key).public_key())

    def check(self) -> None:
        """Refuse before work starts what could not sign.

        Raises:
            InputError: key or certificate cannot be read, or do not belong together.
            UnsoundBundle: the certificate expired.
        """
        public = heads.load_private_key(self.key).public_key()
        for path in self.chain:
            _certificates(path)
        if self.certificate is not None:
            certificate = _certificates(self.certificate)[0]
            _check_dates(certificate)
            _check_usage(certificate)
            if certificate.public_key() != public:
                raise InputError(f"signing_certificate {self.certificate}: it is of another key than {self.key}")

    def sign(self, folder: Path, out: Path) -> None:
        """Sign every file of a bundle but the signature itself into `out`, synced.

        Raises:
            InputError: key and certificate cannot be used, or do not belong together.
        """
        self.check()
        from model_signing import signing

        config = signing.Config().set_hashing_config(_hashing())
        try:
            if self.certificate is None:
                config.use_elliptic_key_signer(private_key=self.key)
            else:
                config.use_certificate_signer(
                    private_key=self.key, signing_certificate=self.certificate, certificate_chain=self.chain
                )
        except (OSError, ValueError) as error:
            raise InputError(f"signing key {self.key} with certificate {self.certificate}: {error}") from None
        config.sign(folder, out)
        with out.open("rb") as file:
            os.fsync(file.fileno())

    def verifies(self, folder: Path) -> bool:
        """Whether a bundle's signature stands and is this key's, made in this way."""
        from model_signing import verifying

        signed = None
        with suppress(UnsoundBundle):
            signed = signing_certificate(folder)
        if (signed is None) != (self.certificate is None):
            return False
        if signed is not None and self.certificate is not None and signed != _certificates(self.certificate)[0]:
            return False
        config = verifying.Config().set_hashing_config(_hashing())
        with tempfile.TemporaryDirectory() as scratch, suppress(Exception):
            if self.certificate is None:
                public = Path(scratch) / heads.PUBLIC_NAME
                public.write_bytes(heads.public_pem(heads.load_private_key(self.key).public_key()))
                config.use_elliptic_key_verifier(public_key=public)
            else:
                config.use_certificate_verifier(certificate_chain=[*self.chain, self.certificate])
            config.verify(folder, folder / SIGNATURE)
            return True
        return False


@dataclass(frozen=True)
class Verifier:
    """A public key (or its file) that is had from a safe place, or trusted authorities and the name they vouch for.

    An authority vouches for everybody whom it gave a certificate, servers and mailboxes among them: it says who
    somebody is, and the partner says whom it wants to have signed.
    """

    key: Path | EllipticCurvePublicKey | None = None
    authorities: tuple[Path, ...] = ()
    identity: str | None = None
    """An e-mail address or URI among the certificate's alternative names, or its whole subject (RFC 4514)."""

    def __post_init__(self) -> None:
        if self.authorities and not self.identity:
            raise InputError(
                "--authority: it vouches for everybody whom it gave a certificate; name the agency with --identity (an"
                " e-mail address or URI of its certificate, or its whole subject: CN=…,O=…)"
            )
        if self.identity and not self.authorities:
            raise InputError("--identity: it is of a certificate; give its authority with --authority")

    def verify(self, folder: Path) -> EllipticCurvePublicKey:
        """Check a bundle's signature and with it the digest of every file; return the key that signed.

        Raises:
            UnsoundBundle: names the file that is not as it was signed, or `model.sig`.
            InputError: the key or the authorities cannot be read.
        """
        if not (folder / SIGNATURE).is_file():
            raise UnsoundBundle(SIGNATURE, "is missing: the bundle is not signed")
        signed = signing_certificate(folder)
        public = self._public_key(signed)
        from model_signing import verifying

        config = verifying.Config().set_hashing_config(_hashing())
        with tempfile.TemporaryDirectory(prefix="autocoder-key-") as scratch:
            file = Path(scratch) / heads.PUBLIC_NAME
            file.write_bytes(heads.public_pem(public))
            try:
                if self.key is not None:
                    config.use_elliptic_key_verifier(public_key=file)
                else:
                    config.use_certificate_verifier(certificate_chain=list(self.authorities))
                config.verify(folder, folder / SIGNATURE)
            except Exception as error:  # the libraries below raise whatever a damaged signature meets
                raise _unsound(error) from None
        return public

    def _public_key(self, signed: Certificate | None) -> EllipticCurvePublicKey:
        if self.key is not None:
            if signed is not None:
                raise UnsoundBundle(SIGNATURE, "was made with a certificate; verify it with --authority")
            return heads.load_public_key(self.key) if isinstance(self.key, Path) else self.key
        for authority in self.authorities:
            _certificates(authority)
        if signed is None:
            raise UnsoundBundle(SIGNATURE, "was made with a bare key; verify it with --key")
        _check_dates(signed)
        _check_usage(signed)
        if self.identity not in _identities(signed):
            raise UnsoundBundle(SIGNATURE, "its certificate is of somebody else than --identity names")
        key: Any = signed.public_key()
        return key


def _hashing() -> Any:
    from model_signing import hashing

    return (
        hashing.Config()
        .use_file_serialization(hashing_algorithm="sha256", allow_symlinks=False)
        .set_ignored_paths(paths=[SIGNATURE], ignore_git_paths=False)
    )


def signing_certificate(folder: Path) -> Certificate | None:
    """The certificate that a signature names, not trusted before its chain was followed; None for a bare key."""
    from cryptography import x509

    try:
        material = strict_json(SIGNATURE, (folder / SIGNATURE).read_bytes())["verificationMaterial"]
        # The library takes more spellings of a field than one: two certificates, one for each reader.
        if not set(material) <= {"x509CertificateChain", "publicKey", "tlogEntries", "timestampVerificationData"}:
            raise UnsoundBundle(SIGNATURE, "holds other fields than a signature by a key or a certificate")
        chain = material.get("x509CertificateChain")
        if not chain:
            return None
        if set(chain) != {"certificates"} or any(set(entry) != {"rawBytes"} for entry in chain["certificates"]):
            raise UnsoundBundle(SIGNATURE, "holds other fields than a chain of certificates")
        return x509.load_der_x509_certificate(base64.b64decode(chain["certificates"][0]["rawBytes"], validate=True))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise UnsoundBundle(SIGNATURE, "is damaged") from None


def _check_usage(certificate: Certificate) -> None:
    """Refuse a certificate that was given for something else: a server, a mailbox, a network, an authority itself."""
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    try:
        extensions = certificate.extensions
        usage = {type(extension.value): extension.value for extension in extensions}
    except (ValueError, x509.DuplicateExtension):
        raise UnsoundBundle(SIGNATURE, "its certificate is damaged") from None
    signs: Any = usage.get(x509.KeyUsage)
    if signs is None or not signs.digital_signature:
        raise UnsoundBundle(SIGNATURE, "its certificate is not for signatures (key usage)")
    basic: Any = usage.get(x509.BasicConstraints)
    if signs.key_cert_sign or (basic is not None and basic.ca):
        raise UnsoundBundle(SIGNATURE, "its certificate is an authority's, which signs certificates and no bundles")
    purposes: Any = usage.get(x509.ExtendedKeyUsage)
    if purposes is not None and ExtendedKeyUsageOID.CODE_SIGNING not in purposes:
        raise UnsoundBundle(SIGNATURE, "its certificate is for another purpose than code signing (extended key usage)")


def _identities(certificate: Certificate) -> set[str]:
    """Whom a certificate names. A DNS name is a server's, and signs nothing."""
    from cryptography import x509

    named = {certificate.subject.rfc4514_string()} - {""}
    with suppress(x509.ExtensionNotFound):
        alternative = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        named.update(alternative.get_values_for_type(x509.RFC822Name))
        named.update(alternative.get_values_for_type(x509.UniformResourceIdentifier))
    return named


def _certificates(path: Path) -> list[Certificate]:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise InputError(f"{path}: no certificate in PEM") from None


def _check_dates(certificate: Certificate) -> None:
    now = datetime.now(UTC)
    if now > certificate.not_valid_after_utc:
        raise UnsoundBundle(SIGNATURE, f"its certificate expired on {certificate.not_valid_after_utc:%Y-%m-%d}")
    if now < certificate.not_valid_before_utc:
        raise UnsoundBundle(
            SIGNATURE, f"its certificate is not valid before {certificate.not_valid_before_utc:%Y-%m-%d}"
        )


def _unsound(error: Exception) -> UnsoundBundle:
    text = str(error).replace("\\'", "'")  # the library shows a list, whose quotes are escaped now and then
    for pattern, problem in (
        (r"Hash mismatch for '([^']+)'", "is not as it was signed"),
        (r"Extra files found in model '[^']*': ([^,'\"\]]+)", "was not there when the bundle was signed"),
        (r"Missing files in model '[^']*': ([^,'\"\]]+)", "was signed and is missing"),
    ):
        found = re.search(pattern, text)
        if found is not None and text.startswith("Signature mismatch"):
            return UnsoundBundle(found[1], problem)
    if "Key mismatch" in text:
        return UnsoundBundle(SIGNATURE, "was made by another key")
    return UnsoundBundle(SIGNATURE, "its signature is false, or by a key or certificate that is not trusted")
