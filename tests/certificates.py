"""A certificate authority for tests, and certificates of every kind that one gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from storage.ledger import heads

NOW = datetime.now(UTC)


@dataclass
class Authority:
    """A certificate authority, valid for ten years on either side."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def new(cls, folder: Path) -> Authority:
        """Make one, its certificate in a file."""
        folder.mkdir()
        key = ec.generate_private_key(ec.SECP256R1())
        years = timedelta(days=3650)
        made = certificate("authority", key.public_key(), key, ca=True, since=NOW - years, until=NOW + years)
        (folder / "ca.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
        return cls(folder, key, made)

    @property
    def file(self) -> Path:
        """Its certificate."""
        return self.folder / "ca.pem"

    def issue(self, key: Path, name: str = "agency", **fields: Any) -> Path:
        """A certificate for a private key; fields as `certificate` takes them."""
        public = heads.load_private_key(key).public_key()
        made = certificate(name, public, self.key, issuer=self.certificate.subject, **fields)
        path = self.folder / f"{made.serial_number:x}.pem"
        path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        return path


def certificate(
    name: str,
    public: ec.EllipticCurvePublicKey,
    signing: ec.EllipticCurvePrivateKey,
    *,
    issuer: x509.Name | None = None,
    ca: bool = False,
    since: datetime = NOW - timedelta(days=30),
    until: datetime = NOW + timedelta(days=30),
    signs: bool = True,
    purposes: Sequence[x509.ObjectIdentifier] = (),
    alternative: Sequence[x509.GeneralName] = (),
) -> x509.Certificate:
    """A certificate with the usages that its kind has; without `purposes` it has no extended key usage."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = x509.KeyUsage(
        digital_signature=signs and not ca,
        content_commitment=False,
        key_encipherment=not signs,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(usage, critical=True)
    )
    if purposes:
        builder = builder.add_extension(x509.ExtendedKeyUsage(list(purposes)), critical=False)
    if alternative:
        builder = builder.add_extension(x509.SubjectAlternativeName(list(alternative)), critical=False)
    return builder.sign(signing, hashes.SHA256())
