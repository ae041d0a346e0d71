"""The ledger for people and other programs: one release in sections, as text or Markdown; rows and
budgets as data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from storage.durable import read_regular
from storage.errors import InputError
from storage.figures import delta_text, epsilon_text, escape
from storage.ledger import chain
from storage.ledger.amounts import short
from storage.ledger.budget import BudgetLine, Charge
from storage.ledger.models import Mark
from storage.ledger.reader import LedgerReader

Section = Sequence[tuple[str, str]]
"""Labels and values; a value without label is a line of a list."""

_MEANING = {
    "formal": (
        "a finite-sample (ε, δ) guarantee, for every data set, given the trust model and "
        "the randomness below"
    ),
    "asymptotic-local": (
        "NOT a formal guarantee: ε was estimated on this one data set, holds in the limit of "
        "many records, is low too "
        "where a model fits its training records closely, and is never added to a formal one"
    ),
    "none": "nothing is guaranteed",
}
_STATE = {
    "reserved": "the budget is charged, nothing was sampled or released",
    "drawn": "the released sample exists, its bundle is not recorded yet",
    "committed": "the bundle is complete and may be shared",
    "burned": "closed without a bundle; what it spent stays spent",
}


def describe(ledger: LedgerReader, release_id: str) -> dict[str, Section]:
    release, history = ledger.state().release(release_id), ledger.history(release_id)
    row, revoked = release.row, revocation_text(ledger, release_id)
    tree = {True: "with uncommitted changes", False: "clean", None: "unknown"}[row.code_dirty]
    unit = f"{row.privacy_unit}, of at most {row.max_records_per_unit or 1} records"
    relation = {"replace-one": "replaced", "add-remove": "added or removed"}.get(
        row.neighbouring_relation or "", "–"
    )
    sections: dict[str, Section] = {
        "What": _present(
            state=revoked or f"{row.state}: {_STATE[row.state]}",
            was=row.state if revoked else None,
            mechanism=row.mechanism,
            population=row.population,
            label=row.label,
            cohorts=", ".join(row.cohorts),
            records=f"about {row.records_rounded}",
            supersedes=row.supersedes,
            reason=row.reason,
        ),
        f"Guarantee: {row.guarantee_kind}": _present(
            meaning=_MEANING[row.guarantee_kind],
            ε=row.epsilon,
            δ=row.delta if row.delta is not None else row.delta_text or "not quantified",
            neighbours=f"one unit {relation}",
            unit=unit,
            sensitivity=row.sensitivity,
            ε_under_add_remove=row.epsilon_add_remove,
            draws=row.draws,
            probability_that_a_fresh_draw_exceeds_it=row.mc_failure_prob,
            accountant=row.accountant,
            measured_beside_the_claim=row.details.get("audit", {}).get("line"),
            trust_model=row.trust_model,
            randomness=row.randomness_source,
            floating_point=row.floating_point_caveat,
        ),
        "Assumes": [("", line) for line in row.assumptions] or [("", "nothing stated")],
        "Not protected": [("", line) for line in row.unprotected_inputs]
        or [("", "nothing stated")],
        "Cost": [(charge.account, cost_text(charge)) for charge in release.charges],
        "Provenance": _present(
            requester=row.requester,
            approvals=", ".join(row.approvals) or "none; the policy demanded none",
            code=f"{row.code_commit} ({tree})",
            lock_file=row.lock_digest,
            parameters=row.parameters_digest,
            records=row.data_fingerprint,
            draw=row.draw_digest,
            bundle=row.bundle_digest,
            policy=row.policy_digest,
            **row.artifact_digests,
            event=json.dumps(row.event, ensure_ascii=False, sort_keys=True),
        ),
        "History": [
            (f"row {row.sequence}", " ".join((row.recorded_at[:19], row.kind, row.state, row.hash)))
            for row in history
        ],
    }
    return sections


def partners_of(ledger: LedgerReader, release_id: str) -> list[str]:
    return sorted(
        {
            str(row.details.get("partner"))
            for row in ledger.history(release_id)
            if row.kind == "handover"
        }
    )


def shared_text(ledger: LedgerReader, release_id: str) -> str:
    """Says who has the bundle of a release."""
    return f"Shared with: {', '.join(partners_of(ledger, release_id)) or 'no one'}."


def revocation_text(ledger: LedgerReader, release_id: str) -> str:
    """Says that a release was revoked, when, why and who has the bundle; empty of one that was not."""
    revoked = ledger.revocation(release_id)
    if revoked is None:
        return ""
    why = (
        f"REVOKED on {revoked.recorded_at[:10]}: "
        f"{str(revoked.details.get('reason', '')).rstrip('.')}."
    )
    return f"{why} Do not use or share it. {shared_text(ledger, release_id)}"


def _present(**fields: Any) -> Section:
    return [
        (name.replace("_", " "), short(value) if isinstance(value, Decimal) else str(value))
        for name, value in fields.items()
        if value not in (None, "")
    ]


def cost_text(charge: Charge) -> str:
    """Says what an account was charged, and what is used and left of it, each ε with the δ at which
    it holds.
    """
    before, after, loss = charge.before, charge.after, charge.loss
    counted = after.delta_cap is not None
    cost = f"ε {epsilon_text(loss.epsilon)}" + (
        f" at δ {delta_text(loss.delta)}" if counted else ""
    )
    used = (
        f"ε {epsilon_text(before.epsilon)} before, {epsilon_text(after.epsilon)} after of "
        f"{short(charge.epsilon_cap)}"
    )
    return (
        f"{cost}; {used}"
        + (f", at δ {delta_text(after.delta)}" if counted else "")
        + f" ({after.rule})"
    )


def page(ledger: LedgerReader, release_id: str) -> str:
    """Returns all that the ledger says of a release as Markdown, for a review board's files."""
    return markdown(f"Release {release_id}", describe(ledger, release_id))


def markdown(title: str, sections: Mapping[str, Section]) -> str:
    parts = [f"# {escape(title)}"]
    for name, rows in sections.items():
        parts.append(f"## {escape(name)}")
        if all(not label for label, _ in rows):
            parts.append("\n".join(f"- {escape(value)}" for _, value in rows))
        else:
            parts.append(markdown_table(("", ""), rows))
    return "\n\n".join(parts) + "\n"


def export(ledger: LedgerReader) -> str:
    """Returns every row as it is stored, as a JSON array; each has its hash, so the file can be
    verified against.
    """
    with ledger.database.read() as connection:
        rows = [
            json.loads(entry.body) | {"hash": entry.hash}
            for entry in chain.whole_entries(connection)
        ]
    return json.dumps(rows, ensure_ascii=False, indent=1)


def read_export(path: Path) -> Sequence[Mark]:
    try:
        rows = json.loads(read_regular(path, 1 << 32))
        return [
            Mark(ledger=rows[0]["hash"], sequence=row["sequence"], hash=row["hash"]) for row in rows
        ]
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, ValidationError) as error:
        raise InputError(f"{path}: not a JSON export of a ledger") from error


def budget_json(lines: Iterable[BudgetLine]) -> list[dict[str, Any]]:
    """Return the accounts as plain data, amounts as text."""
    return [
        {
            "population": line.account.population,
            "cohort": line.account.cohort,
            "guarantee_kind": line.account.guarantee_kind,
            "composition": line.account.rule or (line.cap.composition if line.cap else None),
            "neighbouring_relation": line.relation,
            "epsilon_spent": short(line.account.epsilon),
            "epsilon_cap": short(line.cap.epsilon) if line.cap else None,
            "epsilon_left": short(line.epsilon_left),
            "further_releases": line.further,
            "delta_spent": short(line.account.delta),
            "delta_cap": short(line.cap.delta) if line.cap and line.cap.delta else None,
            "delta_left": short(line.delta_left) if line.delta_left is not None else None,
        }
        for line in lines
    ]


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; pipes and line breaks inside a cell are escaped."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(escape(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)
