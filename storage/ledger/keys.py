"""Signing keys for releases, approvals and checkpoints, and signatures with them.

A signature is ECDSA on P-256 with SHA-256 over a statement's canonical JSON (RFC 8785) without its
signature.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import rfc8785
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ec import (
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from pydantic import BaseModel

from storage.durable import read_regular
from storage.errors import Contradiction, InputError, Unreadable

_MOST = 1 << 16
"""Maximum size of a key file in bytes."""
PRIVATE_NAME, PUBLIC_NAME = "signing-key.pem", "signing-key.pub.pem"


def new_keys(folder: Path) -> tuple[Path, Path]:
    """Creates a P-256 key pair in `folder`: a private key that only its owner can read, and a
    public key for partners.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = public_pem(key.public_key())
    paths = (folder / PRIVATE_NAME, folder / PUBLIC_NAME)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if paths[1].exists():
            raise FileExistsError(str(paths[1]))
        for path, content, mode in ((paths[0], private, 0o600), (paths[1], public, 0o644)):
            # Created with restricted permissions. With a later chmod, others could open the file
            # for a moment.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
    except FileExistsError as error:
        raise Contradiction(
            f"{folder}: it already contains a key, which is never overwritten", kind="key-exists"
        ) from error
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}", kind="unwritable-keys") from error
    return paths


def load_private_key(path: Path) -> EllipticCurvePrivateKey:
    """Loads a private P-256 key (PEM, unencrypted) from a file that is not accessible to others."""
    try:
        content = read_regular(path, _MOST)
        if b"PUBLIC KEY" in content:
            raise Contradiction(
                f"{path}: this is a public key. Sign with its private key",
                kind="public-instead-of-private",
            )
        if path.stat().st_mode & 0o077:
            raise InputError(
                f"{path}: other users may read this private key. Run chmod 600 on it",
                kind="key-open-to-others",
            )
        key = serialization.load_pem_private_key(content, password=None)
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror}", kind="unreadable-key") from error
    except (ValueError, TypeError) as error:
        raise Unreadable(
            f"{path}: not an unencrypted private key in PEM format", kind="not-a-private-key"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise Unreadable(
            f"{path}: not a P-256 key. Create one with `autocoder keys new`", kind="not-p-256"
        )
    return key


def load_public_key(path: Path) -> EllipticCurvePublicKey:
    return parse_public_key(read_regular(path, _MOST), name=str(path))


def parse_public_key(pem: bytes, *, name: str) -> EllipticCurvePublicKey:
    """Parses a public P-256 key in PEM; `name` identifies it in errors."""
    return _public(serialization.load_pem_public_key, pem, name=name, form=" in PEM")


@lru_cache(maxsize=64)
def decoded_key(encoded: str) -> EllipticCurvePublicKey:
    """Decodes a public key from a row of the ledger: Base64, DER."""
    try:
        return _public(
            serialization.load_der_public_key,
            base64.b64decode(encoded, validate=True),
            name="its signer",
        )
    except ValueError:
        raise Unreadable("its signer: not Base64", kind="signer-not-base64") from None


@lru_cache(maxsize=64)
def encoded_key_id(encoded: str) -> str:
    """The id of a public key from a row of the ledger."""
    return key_id(decoded_key(encoded))


def _public(
    load: Callable[[bytes], Any], content: bytes, *, name: str, form: str = ""
) -> EllipticCurvePublicKey:
    try:
        key = load(content)
    except (ValueError, UnsupportedAlgorithm):
        raise Unreadable(f"{name}: not a public key{form}", kind="not-a-public-key") from None
    if not isinstance(key, EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise Unreadable(f"{name}: not a P-256 key", kind="signer-not-p-256")
    return key


def public_pem(key: EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def encoded_key(key: EllipticCurvePublicKey) -> str:
    """Encodes a public key for a row of the ledger: Base64, DER."""
    return base64.b64encode(_der(key)).decode()


def key_id(key: EllipticCurvePublicKey) -> str:
    """SHA-256 of a public key's DER encoding, in hexadecimal."""
    return hashlib.sha256(_der(key)).hexdigest()


def _der(key: EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def signature_of(statement: BaseModel, key: EllipticCurvePrivateKey) -> str:
    """An ECDSA signature over a statement's canonical JSON without its signatures, in Base64."""
    return sign_bytes(_signed_bytes(statement), key)


def is_signed(statement: BaseModel, signature: str, key: EllipticCurvePublicKey) -> bool:
    return verify_bytes(_signed_bytes(statement), signature, key)


def sign_bytes(content: bytes, key: EllipticCurvePrivateKey) -> str:
    return base64.b64encode(key.sign(content, ec.ECDSA(hashes.SHA256()))).decode()


def verify_encoded(content: bytes, signature: str, encoded: str) -> bool:
    """Verifies a signature over these bytes by a key from a row of the ledger."""
    return _is_valid(content, signature, _der_of(encoded))


@lru_cache(maxsize=64)
def _der_of(encoded: str) -> bytes:
    return _der(decoded_key(encoded))


def verify_bytes(content: bytes, signature: str, key: EllipticCurvePublicKey) -> bool:
    """Verifies a signature over these bytes; cached per process for the same bytes and key."""
    return _is_valid(content, signature, _der(key))


@lru_cache(maxsize=4096)
def _is_valid(content: bytes, signature: str, public: bytes) -> bool:
    key = _loaded(public)
    try:
        key.verify(base64.b64decode(signature, validate=True), content, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError):
        return False
    return True


@lru_cache(maxsize=64)
def _loaded(public: bytes) -> EllipticCurvePublicKey:
    key = serialization.load_der_public_key(public)
    assert isinstance(key, ec.EllipticCurvePublicKey)
    return key


def _signed_bytes(statement: BaseModel) -> bytes:
    return rfc8785.dumps(statement.model_dump(mode="json", exclude={"signature", "signatures"}))
