"""Writes the privacy statement, as JSON for programs and without formulas for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from mechanisms.privacy import gaussian_cost
from mechanisms.privacy.claims import epsilon_of_one_replaced
from mechanisms.privacy.events import (
    ComposedEvent,
    DpSgdEvent,
    GaussianReleaseEvent,
    ParallelEvent,
    decode,
    is_exact,
)
from storage.ledger import ReleaseRow, amounts
from tasks.bundle.sentences import EVERY, SECTIONS, sentences_of
from tasks.bundle.stated_fields import REPEATED
from tasks.bundle.untold import states_scale, untold_of
from tasks.pages.render import render


def statement(
    row: ReleaseRow,
    *,
    sampling: str,
    train_before: date | None = None,
    documents: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns the privacy statement of a drawn release, without anything that reveals records.

    It contains the audit's figures, so they are listed as unprotected.

    Args:
        sampling: how the records were sampled, from the ingest's figures.
        train_before: day that splits the records, if they are split by date.
        documents: file names of the record for a registry and of the answers to NIST SP 800-226, if
            the bundle has them.
    """
    audit = row.reserved.audit
    content: dict[str, Any] = {"schema": 1} | repeated_fields(row)
    content["sampling"] = sampling
    if train_before is not None:
        content["train_before"] = train_before.isoformat()
    event = decode(row.event)
    content["exact_arithmetic"] = is_exact(event)
    untold = untold_of(event, sampling=sampling)
    content["accuracy_stated"] = untold is None
    content["scale_stated"] = states_scale(event)
    if untold is not None:
        content["accuracy_untold"] = untold
    replaced = _epsilon_replaced(row)
    if replaced is not None:
        content["epsilon_replace_one"] = format(amounts.epsilon(replaced), "f")
    beyond = _chance_beyond(row)
    if beyond is not None:
        content["chance_beyond_odds"] = beyond
    if audit is not None:
        content["audit"] = audit.model_dump(mode="json")
    if documents:
        content["documents"] = list(documents)
    content["does_not_mean"] = list(DOES_NOT_MEAN[row.guarantee_kind])
    return content | {"sentences": sentences_of(content)}


def repeated_fields(row: ReleaseRow) -> dict[str, Any]:
    """Returns the row's fields that a statement repeats. They include every text that a person
    entered.
    """
    public = row.as_json()
    return {name: public[name] for name in REPEATED}


def _epsilon_replaced(row: ReleaseRow) -> float | None:
    if row.guarantee_kind != "formal" or row.epsilon is None:
        return None
    if row.claim.neighbouring_relation == "replace-one":
        return float(row.epsilon)
    return epsilon_of_one_replaced(
        decode(row.event),
        delta=float(row.exact.delta or 0),
        records_per_unit=row.claim.max_records_per_unit,
    )


def _chance_beyond(row: ReleaseRow) -> float | None:
    """Returns the probability that the odds stated for epsilon are exceeded, if it is known."""
    if row.guarantee_kind != "formal" or row.epsilon is None:
        return None
    if not row.exact.delta:
        return 0.0
    event, units = decode(row.event), row.claim.max_records_per_unit
    if not isinstance(event, DpSgdEvent | GaussianReleaseEvent | ComposedEvent | ParallelEvent):
        return None
    replaced = row.claim.neighbouring_relation == "replace-one"
    return gaussian_cost.chance_beyond(
        event, float(row.epsilon), units=2 * units if replaced else units
    )


def statement_page(statement: Mapping[str, Any]) -> str:
    """Renders the statement as Markdown. Every figure is also in `privacy_statement.json`."""
    return render("statement.md", statement=statement)


def claims_page() -> str:
    """Renders `docs/reference/statement-sentences.md` with all possible sentences."""
    return render("claims.md", sections=SECTIONS, every=EVERY)


DOES_NOT_MEAN = {
    "asymptotic-local": (
        "It is no proof that a record cannot be recognised: a model that memorised its records "
        "has small losses, and "
        "so a small ε of this kind.",
        "It cannot be compared with a formal (ε, δ).",
        "It does not cover a second sample: each costs its own ε.",
    ),
    "formal": (
        "It does not cover the items under “Not covered by ε”.",
        "Other people's records may still say something about a person.",
        "It cannot be compared with an asymptotic-local ε, which is an estimate for the records at "
        "hand and no guarantee.",
    ),
}
"""Disclaimers by type of guarantee."""
