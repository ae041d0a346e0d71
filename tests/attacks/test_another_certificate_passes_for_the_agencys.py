"""Would win: a forged bundle that is "sound" because some certificate of the same authority signed it."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from certificates import NOW, Authority
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, ObjectIdentifier
from sealed_bundle import Sealed

from storage.bundle.check import check
from storage.bundle.folder import SIGNATURE, UnsoundBundle
from storage.bundle.seal import seal
from storage.bundle.signing import Signer, Verifier
from storage.errors import InputError
from storage.ledger import heads

MAIL = x509.RFC822Name("releases@agency.example")
IPSEC, ANY = ObjectIdentifier("1.3.6.1.5.5.7.3.17"), ObjectIdentifier("2.5.29.37.0")


@pytest.fixture
def trusted(tmp_path: Path) -> Authority:
    """The authority that agency and attacker share."""
    return Authority.new(tmp_path / "ca")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """The attacker's private key."""
    return heads.new_keys(tmp_path / "attacker")[0]


@pytest.fixture
def folder(sealed: Sealed, tmp_path: Path) -> Path:
    """A bundle without its seal."""
    return sealed.copy(tmp_path, seal=False)


def agency(trusted: Authority, identity: str = "releases@agency.example") -> Verifier:
    """What a partner asks for."""
    return Verifier(authorities=(trusted.file,), identity=identity)


def sign_anyhow(monkeypatch: pytest.MonkeyPatch, sealed: Sealed, folder: Path, signer: Signer) -> None:
    """Sign as an attacker can, whom our own checks before signing do not bind."""
    with monkeypatch.context() as patched:
        patched.setattr(Signer, "check", lambda signer: None)
        seal(folder, sealed.row, signer)


def test_an_authority_alone_pins_nobody(trusted: Authority) -> None:
    """Whose certificate is wanted has to be said."""
    with pytest.raises(InputError, match="--identity"):
        Verifier(authorities=(trusted.file,))
    with pytest.raises(InputError, match="--authority"):
        Verifier(identity="releases@agency.example")


@pytest.mark.parametrize("purposes", [(), (ExtendedKeyUsageOID.CODE_SIGNING,)], ids=["any purpose", "code signing"])
def test_the_agencys_certificate_is_taken(
    sealed: Sealed, folder: Path, trusted: Authority, key: Path, purposes: tuple[Any, ...]
) -> None:
    """By its address, its URI or its whole subject; one of before, without extended key usage, too."""
    uri = x509.UniformResourceIdentifier("https://agency.example/releases")
    certificate = trusted.issue(key, purposes=purposes, alternative=(MAIL, uri))
    seal(folder, sealed.row, Signer(key, certificate, (trusted.file,)))
    for identity in ("releases@agency.example", "https://agency.example/releases", "CN=agency"):
        check(folder, agency(trusted, identity))


@pytest.mark.parametrize(
    "fields",
    [
        # named by the issue
        {"purposes": (ExtendedKeyUsageOID.SERVER_AUTH,)},
        {"purposes": (ExtendedKeyUsageOID.CLIENT_AUTH, IPSEC)},
        {"purposes": (ExtendedKeyUsageOID.EMAIL_PROTECTION,)},
        # its neighbours
        {"purposes": (ANY,)},
        {"purposes": (ExtendedKeyUsageOID.TIME_STAMPING,)},
        {"signs": False, "purposes": (ExtendedKeyUsageOID.CODE_SIGNING,)},
        {"ca": True},
    ],
    ids=["server", "network", "mailbox", "any", "time stamps", "encryption", "authority"],
)
def test_a_certificate_for_something_else(
    sealed: Sealed,
    folder: Path,
    trusted: Authority,
    key: Path,
    fields: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even with the agency's own name in it. Nor does the agency sign with one by mistake."""
    signer = Signer(key, trusted.issue(key, alternative=(MAIL,), **fields), (trusted.file,))
    with pytest.raises(UnsoundBundle, match="certificate is"):
        signer.check()
    sign_anyhow(monkeypatch, sealed, folder, signer)
    with pytest.raises(UnsoundBundle, match="certificate is") as refused:
        check(folder, agency(trusted))
    assert refused.value.file == SIGNATURE


@pytest.mark.parametrize(
    ("name", "alternative"),
    [
        ("another agency", ()),
        ("releases@agency.example", ()),  # the address as a common name
        ("another agency", (x509.DNSName("releases@agency.example"),)),  # as a server's name
        ("another agency", (x509.RFC822Name("releases@agency.example.evil.example"),)),
        ("another agency", (x509.RFC822Name("Releases@agency.example"),)),
        ("x,CN=releases@agency.example", ()),
    ],
)
def test_somebody_elses_certificate_of_the_same_authority(
    sealed: Sealed, folder: Path, trusted: Authority, key: Path, name: str, alternative: tuple[x509.GeneralName, ...]
) -> None:
    """For code signing, in order, and not the agency's, however near its name comes."""
    certificate = trusted.issue(key, name, purposes=(ExtendedKeyUsageOID.CODE_SIGNING,), alternative=alternative)
    seal(folder, sealed.row, Signer(key, certificate, (trusted.file,)))
    with pytest.raises(UnsoundBundle, match="somebody else"):
        check(folder, agency(trusted))


def test_a_certificate_of_a_certificate(
    sealed: Sealed, folder: Path, trusted: Authority, key: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whoever has a certificate is no authority: one that it gives itself, in the agency's name, counts for nothing."""
    own = trusted.issue(key, "another agency", purposes=(ExtendedKeyUsageOID.CODE_SIGNING,))
    false = Authority(tmp_path / "ca", heads.load_private_key(key), x509.load_pem_x509_certificate(own.read_bytes()))
    signer = Signer(key, false.issue(key, purposes=(ExtendedKeyUsageOID.CODE_SIGNING,), alternative=(MAIL,)), (own,))
    sign_anyhow(monkeypatch, sealed, folder, signer)
    with pytest.raises(UnsoundBundle, match="not trusted"):
        check(folder, agency(trusted))


def test_two_certificates_in_one_signature(sealed: Sealed, folder: Path, trusted: Authority, key: Path) -> None:
    """The agency's, public since its last bundle, for whoever looks at names; the attacker's for whoever verifies."""
    real = trusted.issue(heads.new_keys(trusted.folder / "agency")[0], alternative=(MAIL,))
    shown = base64.b64encode(
        x509.load_pem_x509_certificate(real.read_bytes()).public_bytes(serialization.Encoding.DER)
    ).decode()
    seal(folder, sealed.row, Signer(key, trusted.issue(key, "another agency"), (trusted.file,)))
    signature = json.loads((folder / SIGNATURE).read_text())
    material = signature["verificationMaterial"]
    chain = material["x509CertificateChain"]
    for changed in (
        material | {"x509CertificateChain": {"certificates": [{"rawBytes": shown}]}, "x509_certificate_chain": chain},
        material | {"x509CertificateChain": {"certificates": [{"rawBytes": shown, "raw_bytes": "AAAA"}]}},
        material | {"x509CertificateChain": {"certificates": [{"rawBytes": shown}, *chain["certificates"]]}},
        material | {"certificate": chain["certificates"][0]},
    ):
        (folder / SIGNATURE).write_text(json.dumps(signature | {"verificationMaterial": changed}))
        with pytest.raises(UnsoundBundle) as refused:
            check(folder, agency(trusted))
        assert refused.value.file == SIGNATURE
    twice = json.dumps(signature).replace(
        '"x509CertificateChain"',
        f'"x509CertificateChain": {{"certificates": [{{"rawBytes": "{shown}"}}]}}, "x509CertificateChain"',
    )
    (folder / SIGNATURE).write_text(twice)
    with pytest.raises(UnsoundBundle, match="twice"):
        check(folder, agency(trusted))


def test_a_certificate_that_ran_out(
    sealed: Sealed, folder: Path, trusted: Authority, key: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The right name and purpose do not make up for it."""
    certificate = trusted.issue(
        key, until=NOW - timedelta(days=1), purposes=(ExtendedKeyUsageOID.CODE_SIGNING,), alternative=(MAIL,)
    )
    sign_anyhow(monkeypatch, sealed, folder, Signer(key, certificate, (trusted.file,)))
    with pytest.raises(UnsoundBundle, match="expired"):
        check(folder, agency(trusted))
