"""The ledger's proof in a bundle: what the committed row says of this content, its place in the chain, the signed head.

The whole row stays in the house. It holds digests of the records, the posterior and the risk weights, which follow
from the records alone: whoever knew all records but one could try candidates for the last one until the digests agree,
against any epsilon. It also names who asked and approved, and the moment to a microsecond. What the partner gets are
the row's public fields and its hash. That hash hides what it is made of: times to the microsecond of this row and, by
the hash of the row before (which stays too), of every row before it. A later dispute is settled in the house: the row
of this sequence and hash either has this bundle's digest, or the ledger was rewritten, and the partner holds the signed
head.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.artifacts import digest
from storage.bundle import folder as bundle
from storage.bundle.folder import PROOF, STATEMENT, UnsoundBundle
from storage.errors import InputError, StorageError
from storage.ledger import heads
from storage.ledger.models import Row

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

SHARED = (
    "release_id", "population", "cohorts", "mechanism", "guarantee_kind", "epsilon", "delta", "delta_text",
    "sensitivity", "neighbouring_relation", "privacy_unit", "max_records_per_unit",
)  # fmt: skip
"""Fields of the row that the privacy statement repeats."""
_TOLD = {"sequence", "hash", "state", "bundle_digest", "supersedes", "unprotected_inputs", *SHARED}


def proof_of(row: Row, files: dict[str, str], *, key: EllipticCurvePrivateKey | None) -> dict[str, Any]:
    """The content of `ledger_proof.json` for a committed row and the digests of the bundle's content.

    Raises:
        StorageError: the row is not committed, or has another content's digest.
    """
    if row.state != "committed" or row.bundle_digest != digest(files):
        raise StorageError(f"release {row.release_id}: ledger row {row.sequence} does not bear out this bundle")
    whole, day = row.as_json(), row.recorded_at[:10]
    head = heads.state_head(row.sequence, row.hash, key=key, stated_at=day)
    return {
        "schema": 1,
        "row": {name: whole[name] for name in whole if name in _TOLD} | {"committed_on": day},
        "withheld": sorted(set(whole) - _TOLD - {"recorded_at"}),
        "head": head.model_dump(mode="json"),
        "files": files,
    }


def check_proof(
    folder: Path, proof: dict[str, Any], statement: dict[str, Any], *, key: EllipticCurvePublicKey | None
) -> None:
    """Check that a proof is of this bundle, agrees with its statement, and has a head signed by the bundle's key.

    Raises:
        UnsoundBundle: names the file at fault.
    """
    row, files = proof["row"], proof["files"]
    found = bundle.content_files(folder)
    for name in sorted(set(files) | set(found)):
        if name not in files:
            raise UnsoundBundle(name, "is not among the files that the ledger's proof names")
        if name not in found:
            raise UnsoundBundle(name, "is named by the ledger's proof, and missing")
        if files[name] != found[name]:
            raise UnsoundBundle(name, "has another digest than the ledger's proof")
    if digest(files) != row["bundle_digest"]:
        raise UnsoundBundle(PROOF, "its row is of another bundle")
    different = [name for name in SHARED if row[name] != statement[name]]
    if different:
        raise UnsoundBundle(STATEMENT, f"field {different[0]} is not what the ledger's row says")
    if untold := set(row.get("unprotected_inputs", ())) - set(statement["unprotected_inputs"]):
        raise UnsoundBundle(STATEMENT, f"field unprotected_inputs lacks {len(untold)} of those of the ledger's row")
    head = heads.Head.model_validate(proof["head"])
    if (head.sequence, head.hash) != (row["sequence"], row["hash"]):
        raise UnsoundBundle(PROOF, "its head is of another row")
    if key is not None:
        try:
            heads.check_signature(head, key)
        except InputError:
            raise UnsoundBundle(PROOF, "its head is not signed by the key that signed the bundle") from None
