"""Checkpoints of the ledger: small signed statements of its newest row, for partners to keep.

Anyone with a checkpoint can verify later that the rows up to it still exist and are unchanged.
Files and options call a checkpoint a head.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from cryptography.hazmat.primitives.asymmetric.ec import (
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from pydantic import BaseModel, ConfigDict, Field

from storage.durable import read_regular
from storage.errors import InputError, Unreadable
from storage.ledger.keys import is_signed, key_id, signature_of

_MAX_BYTES = 1 << 16
"""Maximum size of a checkpoint file."""


class Checkpoint(BaseModel):
    """Sequence and hash of a ledger's newest row at some moment, optionally signed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    statement: Literal["autocoder release ledger head"] = "autocoder release ledger head"
    version: Literal[1] = 1
    sequence: int = Field(ge=0)
    hash: str = Field(pattern="^[0-9a-f]{64}$")
    stated_at: str
    """UTC, ISO 8601."""
    key_id: str | None = None
    """SHA-256 of the public key (DER, SubjectPublicKeyInfo), in hexadecimal."""
    signature: str | None = None
    """Base64, DER-encoded ECDSA."""


def state_checkpoint(
    sequence: int,
    row_hash: str,
    *,
    key: EllipticCurvePrivateKey | None = None,
    stated_at: str | None = None,
) -> Checkpoint:
    """The checkpoint at this row, signed if there is a key. `stated_at` is the current time by
    default.
    """
    checkpoint = Checkpoint(
        sequence=sequence,
        hash=row_hash,
        stated_at=stated_at or datetime.now(UTC).isoformat(timespec="microseconds"),
        key_id=None if key is None else key_id(key.public_key()),
    )
    if key is None:
        return checkpoint
    return checkpoint.model_copy(update={"signature": signature_of(checkpoint, key)})


def check_signature(checkpoint: Checkpoint, key: EllipticCurvePublicKey) -> None:
    if checkpoint.signature is None or checkpoint.key_id != key_id(key):
        raise InputError(
            f"head of row {checkpoint.sequence}: not signed with this key",
            kind="head-by-another-key",
        )
    if not is_signed(checkpoint, checkpoint.signature, key):
        raise InputError(
            f"head of row {checkpoint.sequence}: invalid signature",
            kind="invalid-head",
            row=checkpoint.sequence,
        )


def read_checkpoint(path: Path, *, key: EllipticCurvePublicKey | None = None) -> Checkpoint:
    """Reads a checkpoint from a file. With a public key, also verifies its signature."""
    try:
        checkpoint = Checkpoint.model_validate_json(read_regular(path, _MAX_BYTES))
    except ValueError as error:
        raise Unreadable(f"{path}: not an exported ledger head", kind="not-a-head") from error
    if key is not None:
        check_signature(checkpoint, key)
    return checkpoint
