"""Creates and verifies the ledger's proof in a bundle: the public fields of the committed row, its
hash, and the signed head.

The complete row remains with the agency. It contains digests of the records, the posterior and the
risk weights. These depend only on the records, so an attacker who knew all records but one could
test candidates for the last one until the digests agree, whatever the epsilon. The row also
contains requester, approvers, and the time to a microsecond. The partner receives the row's public
fields and its hash. The hash hides its inputs because it includes the microsecond times of this row
and, through the previous hash (which is also withheld), of all earlier rows. A later dispute can be
settled by the agency: either the row with this sequence and hash has this bundle's digest, or the
ledger was rewritten, and the partner has the signed head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from storage.artifacts import digest
from storage.bundle.folder import PROOF, STATEMENT, UnsoundBundle, require_same_files
from storage.errors import DamagedData, InputError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import (
        EllipticCurvePrivateKey,
        EllipticCurvePublicKey,
    )

    from storage.json_values import Json
    from storage.ledger.entries import ReleaseRow

SHARED = (
    "release_id",
    "population",
    "cohorts",
    "mechanism",
    "guarantee_kind",
    "epsilon",
    "delta",
    "delta_text",
    "sensitivity",
    "neighbouring_relation",
    "privacy_unit",
    "max_records_per_unit",
)
"""Fields of the row that the privacy statement repeats."""
_PUBLIC = {
    "sequence",
    "hash",
    "state",
    "bundle_digest",
    "supersedes",
    "unprotected_inputs",
    *SHARED,
}


def proof_of(
    row: ReleaseRow, files: dict[str, str], *, key: EllipticCurvePrivateKey | None
) -> dict[str, Json]:
    """The content of `ledger_proof.json` for a committed row and the digests of the bundle's
    content.
    """
    from storage.ledger.checkpoints import state_checkpoint

    if row.state != "committed" or row.bundle_digest != digest(files):
        raise DamagedData(
            f"release {row.release_id}: ledger row {row.sequence} does not match this bundle",
            kind="bundle-of-another-row",
        )
    complete_row, day = row.as_json(), row.recorded_at[:10]
    head = state_checkpoint(row.sequence, row.hash, key=key, stated_at=day)
    return {
        "schema": 1,
        "row": {name: complete_row[name] for name in complete_row if name in _PUBLIC}
        | {"committed_on": day},
        "withheld": sorted(set(complete_row) - _PUBLIC - {"recorded_at"}),
        "head": head.model_dump(mode="json"),
        "files": files,
    }


def check_proof(
    actual: Mapping[str, str],
    proof: dict[str, Any],
    statement: dict[str, Any],
    *,
    key: EllipticCurvePublicKey | None,
) -> None:
    """Verifies that a proof matches a bundle's files (by their digests) and its statement, and that
    its head was signed by the key.
    """
    from storage.ledger.checkpoints import Checkpoint, check_signature

    row, files = proof["row"], proof["files"]
    require_same_files(files, actual, since="the ledger's proof was made")
    if digest(files) != row["bundle_digest"]:
        raise UnsoundBundle(
            PROOF, "its row belongs to another bundle", kind="proof-of-another-bundle"
        )
    different = [name for name in SHARED if row[name] != statement[name]]
    if different:
        raise UnsoundBundle(
            STATEMENT,
            f"field {different[0]} differs from the ledger's row",
            kind="differs-from-row",
        )
    if missing := set(row.get("unprotected_inputs", ())) - set(statement["unprotected_inputs"]):
        raise UnsoundBundle(
            STATEMENT,
            f"field unprotected_inputs lacks {len(missing)} entries of the ledger's row",
            kind="inputs-missing",
        )
    head = Checkpoint.model_validate(proof["head"])
    if (head.sequence, head.hash) != (row["sequence"], row["hash"]):
        raise UnsoundBundle(PROOF, "its head belongs to another row", kind="head-of-another-row")
    if key is not None:
        try:
            check_signature(head, key)
        except InputError:
            raise UnsoundBundle(
                PROOF,
                "its head is not signed by the key that signed the bundle",
                kind="proof-by-another-key",
            ) from None
