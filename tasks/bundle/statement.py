"""The privacy statement: what is promised, to whom, and what is not; for machines, and for people without a formula."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from storage.ledger import Row
from storage.ledger.siblings import Sibling
from tasks.bundle.sentences import AUDITED, EVERY, SECTIONS, said_of
from tasks.pages.render import render


def statement(row: Row, siblings: Sequence[Sibling] = (), *, fields: Sequence[str] = ()) -> dict[str, Any]:
    """The privacy statement of a drawn release: what the partner may read, and nothing from which records follow.

    The audit's figures leave with it, so they are among what is not protected.

    Args:
        siblings: releases of the same records or cohorts that were reserved before this one.
        fields: that one model codes at once; none where it is one.
    """
    told, audited = row.as_json(), "audit" in row.details
    stated: dict[str, Any] = {"schema": 1} | {name: told[name] for name in _STATED}
    if audited:
        stated |= {"audit": row.details["audit"], "unprotected_inputs": [*told["unprotected_inputs"], AUDITED]}
    if fields:
        stated["fields"] = list(fields)
    if siblings:
        stated["siblings"] = [sibling.told() for sibling in siblings]
    stated["does_not_mean"] = list(DOES_NOT_MEAN[row.guarantee_kind])
    return stated | {"sentences": said_of(stated)}


def statement_page(statement: Mapping[str, Any]) -> str:
    """The statement as a page of Markdown; every figure in it is in `privacy_statement.json`."""
    return render("statement.md", statement=statement)


def claims_page() -> str:
    """`docs/claims.md`: every sentence that a statement may hold, by guarantee kind."""
    return render("claims.md", sections=SECTIONS, every=EVERY)


_STATED = (
    "release_id", "population", "cohorts", "mechanism", "guarantee_kind", "epsilon", "delta", "delta_text",
    "sensitivity", "epsilon_add_remove", "draws", "mc_failure_prob", "neighbouring_relation", "privacy_unit",
    "max_records_per_unit", "accountant", "assumptions", "unprotected_inputs", "trust_model", "randomness_source",
    "floating_point_caveat", "code_commit",
)  # fmt: skip
"""Fields of the row that a statement repeats."""

DOES_NOT_MEAN = {
    "asymptotic-local": (
        "Not a proof that no record can be recognised: a model that has memorised its records has small losses, and "
        "so a small epsilon of this kind.",
        "Not comparable with a formal (epsilon, delta): delta is not quantified, epsilon was estimated on these "
        "records.",
        "Not a promise about a second draw: each further draw spends its own epsilon.",
    ),
    "formal": (
        "Not a promise about what was not accounted for: what is listed as unprotected reached the model outside the "
        "bound.",
        "Not comparable with an asymptotic-local epsilon: this one bounds every data set and every record, and costs "
        "accuracy for it.",
        "Not a promise that nothing can be learned of a person: what the records of others say about them stays.",
    ),
}
"""By guarantee kind."""
