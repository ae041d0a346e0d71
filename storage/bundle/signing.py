"""Signs and verifies a whole bundle offline: OpenSSF model signing with an EC key.

`model.sig` is a Sigstore bundle: an in-toto statement with the SHA-256 of every other file, in a
DSSE envelope. The tests verify it with the published library `model_signing`, so that partners need
not install its seventy packages.
"""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from storage.artifacts import file_digest
from storage.bundle.folder import SIGNATURE, UnsoundBundle, require_same_files
from storage.durable import sync
from storage.egress.documents import strict_json
from storage.ledger import keys

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import (
        EllipticCurvePrivateKey,
        EllipticCurvePublicKey,
    )

    from storage.json_values import Json

_BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_PAYLOAD = "application/vnd.in-toto+json"


def sign(folder: Path, key: EllipticCurvePrivateKey, out: Path) -> None:
    """Signs every file of a bundle except the signature; writes and syncs `out`."""
    payload = json.dumps(
        _statement(folder.name, _digests(folder)), indent=1, sort_keys=True
    ).encode()
    signature = base64.b64decode(keys.sign_bytes(_envelope(payload), key))
    out.write_bytes(_file(payload, signature, key.public_key()))
    sync(out)


def verify_signature(folder: Path, key: EllipticCurvePublicKey) -> dict[str, str]:
    """Verifies a bundle's signature by a key, and the digest of every file; returns the digests.

    This is stricter than the library: the file must be the one that `sign` writes for this payload
    and this signature, byte for byte. It is the only file that no digest covers, so anyone on its
    way could add words to it otherwise.
    """
    if not (folder / SIGNATURE).is_file():
        raise UnsoundBundle(SIGNATURE, "is missing: the bundle is not signed", kind="unsigned")
    try:
        content = (folder / SIGNATURE).read_bytes()
        sigstore_bundle = strict_json(SIGNATURE, content)
        material, envelope = (
            sigstore_bundle["verificationMaterial"],
            sigstore_bundle["dsseEnvelope"],
        )
        if set(material) != {"publicKey", "tlogEntries"} or set(material["publicKey"]) != {"hint"}:
            raise UnsoundBundle(
                SIGNATURE,
                "was not made with a bare key alone. Ask the agency for a bundle that was",
                kind="not-a-bare-key",
            )
        (signature,) = envelope["signatures"]
        payload = base64.b64decode(envelope["payload"], validate=True)
        if material["publicKey"]["hint"] != _hint(key):
            raise UnsoundBundle(SIGNATURE, "was made by another key", kind="another-key")
        if (sigstore_bundle["mediaType"], envelope["payloadType"]) != (
            _BUNDLE,
            _PAYLOAD,
        ) or not keys.verify_bytes(_envelope(payload), signature["sig"], key):
            raise UnsoundBundle(
                SIGNATURE, "invalid signature, or its key is not trusted", kind="invalid-signature"
            )
        # guard: test_words_next_to_a_signature
        if content != _file(payload, base64.b64decode(signature["sig"]), key):
            raise UnsoundBundle(
                SIGNATURE,
                "contains more than a signature, or was written by another program",
                kind="more-than-a-signature",
            )
        statement = strict_json(SIGNATURE, payload)
        name, resources = statement["subject"][0]["name"], statement["predicate"]["resources"]
        signed = {str(entry["name"]): str(entry["digest"]) for entry in resources}
        if statement != _statement(name, signed):
            raise UnsoundBundle(
                SIGNATURE,
                "signs something other than the digests of a bundle's files",
                kind="signature-of-another-list",
            )
    except (OSError, KeyError, TypeError, AttributeError, IndexError, ValueError, RecursionError):
        raise UnsoundBundle(SIGNATURE, "is damaged", kind="damaged-signature") from None
    actual = _digests(folder)
    require_same_files(signed, actual, since="it was signed")
    return actual


def _file(payload: bytes, signature: bytes, key: EllipticCurvePublicKey) -> bytes:
    """The bytes of `model.sig`."""
    content = {
        "mediaType": _BUNDLE,
        "verificationMaterial": {"publicKey": {"hint": _hint(key)}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": base64.b64encode(payload).decode(),
            "payloadType": _PAYLOAD,
            "signatures": [{"sig": base64.b64encode(signature).decode(), "keyid": ""}],
        },
    }
    return json.dumps(content).encode()


def _digests(folder: Path) -> dict[str, str]:
    names = {
        path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if not path.is_dir()
    }
    if links := [name for name, path in names.items() if path.is_symlink()]:
        raise UnsoundBundle(links[0], "is a link. Only regular files may be released", kind="link")
    return {name: file_digest(names[name]) for name in sorted(names) if name != SIGNATURE}


def _statement(name: str, digests: dict[str, str]) -> dict[str, Json]:
    combined = hashlib.sha256(bytes.fromhex("".join(digests.values()))).hexdigest()
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": combined}}],
        "predicateType": "https://model_signing/signature/v1.0",
        "predicate": {
            "serialization": {
                "method": "files",
                "hash_type": "sha256",
                "allow_symlinks": False,
                "ignore_paths": [SIGNATURE],
            },
            "resources": [
                {"name": file, "algorithm": "sha256", "digest": digest}
                for file, digest in digests.items()
            ],
        },
    }


def _envelope(payload: bytes) -> bytes:
    return b"DSSEv1 %d %s %d %s" % (len(_PAYLOAD), _PAYLOAD.encode(), len(payload), payload)


def _hint(key: EllipticCurvePublicKey) -> str:
    return hashlib.sha256(keys.public_pem(key)).hexdigest()
