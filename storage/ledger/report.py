"""The ledger for people and other programs: one release in sections, as text or Markdown, and rows
and budgets as data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from storage.durable import read_regular
from storage.errors import Unreadable
from storage.figures import escape
from storage.ledger import chain
from storage.ledger.amounts import short
from storage.ledger.entries import Evaluated, HandedOver, LedgerRow, ReleaseRow, Row
from storage.ledger.models import LedgerPosition
from storage.ledger.reader import LedgerReader
from storage.ledger.wording import cost_text

Section = Sequence[tuple[str, str]]
"""Labels and values. A value without a label is a list item."""

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
    row, plan, claim = release.row, release.plan, release.plan.claim
    state_of_code = "with uncommitted changes" if plan.code_dirty else "clean"
    return {
        "What": _what(row, revocation_text(ledger, release_id)),
        f"Guarantee: {claim.guarantee_kind}": _guarantee(row),
        "Assumes": _lines(claim.assumptions),
        "Not protected": _lines(claim.unprotected_inputs),
        "Cost": [(charge.account, cost_text(charge)) for charge in release.charges],
        "Provenance": _present(
            requester=plan.requester,
            approvals=", ".join(row.reserved.approvals) or "none; the policy demanded none",
            code=f"{plan.code_commit} ({state_of_code})",
            lock_file=plan.lock_digest,
            parameters=plan.parameters_digest,
            records=plan.data_fingerprint,
            draw=row.draw_digest,
            bundle=row.bundle_digest,
            policy=row.reserved.policy_digest,
            **plan.artifact_digests,
            event=json.dumps(row.event, ensure_ascii=False, sort_keys=True),
        ),
        "History": [_event(row) for row in history],
    }


def _what(row: ReleaseRow, revoked: str) -> Section:
    plan = row.plan
    return _present(
        state=revoked or f"{row.state}: {_STATE[row.state]}",
        was=row.state if revoked else None,
        mechanism=plan.event.of_training.mechanism,
        population=plan.population,
        label=plan.release_label,
        cohorts=", ".join(plan.cohorts),
        records=f"about {plan.records_rounded}",
        supersedes=plan.supersedes,
        reason=row.reason,
    )


def _guarantee(row: ReleaseRow) -> Section:
    plan, claim, exact = row.plan, row.claim, row.exact
    change = "replaced" if claim.neighbouring_relation == "replace-one" else "added or removed"
    return _present(
        meaning=_MEANING[claim.guarantee_kind],
        ε=exact.epsilon,
        δ=exact.delta if exact.delta is not None else claim.delta_text or "not quantified",
        neighbours=f"one unit {change}",
        unit=f"{claim.privacy_unit}, of at most {claim.max_records_per_unit} records",
        sensitivity=exact.sensitivity,
        ε_under_add_remove=exact.epsilon_add_remove,
        draws=claim.draws,
        probability_that_a_fresh_draw_exceeds_it=exact.mc_failure_prob,
        accountant=claim.accountant,
        measured_beside_the_claim=row.reserved.audit and row.reserved.audit.line,
        trust_model=plan.trust_model,
        randomness=plan.randomness_source,
        floating_point=plan.floating_point_caveat,
    )


def _lines(stated: Sequence[str]) -> Section:
    return [("", line) for line in stated] or [("", "nothing stated")]


def _event(row: LedgerRow | Evaluated) -> tuple[str, str]:
    moment = row.recorded_at[:19]
    if isinstance(row, Evaluated):
        return f"measurement {row.sequence}", f"{moment} {row.evaluation.kind}"
    stored = row.row if isinstance(row, ReleaseRow) else row
    return f"row {row.sequence}", f"{moment} {stored.entry.kind} {row.hash}"


def partners_of(ledger: LedgerReader, release_id: str) -> list[str]:
    return sorted(
        {
            row.entry.partner
            for row in ledger.rows()
            if isinstance(row, Row)
            and isinstance(row.entry, HandedOver)
            and row.release_id == release_id
        }
    )


def shared_text(ledger: LedgerReader, release_id: str) -> str:
    """Which partners have the bundle of a release, as a sentence."""
    return f"Shared with: {', '.join(partners_of(ledger, release_id)) or 'no one'}."


def revocation_text(ledger: LedgerReader, release_id: str) -> str:
    """That a release was revoked, when and why, and who has the bundle; empty if it was not
    revoked.
    """
    revoked = ledger.revocation(release_id)
    if revoked is None:
        return ""
    why = f"REVOKED on {revoked.recorded_at[:10]}: {revoked.entry.reason.rstrip('.')}."
    return f"{why} Do not use or share it. {shared_text(ledger, release_id)}"


def _present(**fields: Any) -> Section:
    return [
        (name.replace("_", " "), short(value) if isinstance(value, Decimal) else str(value))
        for name, value in fields.items()
        if value not in (None, "")
    ]


def page(ledger: LedgerReader, release_id: str) -> str:
    """All ledger information about a release as Markdown, for a review board's files."""
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
    """Every row as stored, as a JSON array. Each includes its hash, so that the ledger can be
    verified against the file.
    """
    with ledger.database.read() as connection:
        rows = [json.loads(row.body) | {"hash": row.hash} for row in chain.whole_rows(connection)]
    return json.dumps(rows, ensure_ascii=False, indent=1)


def read_export(path: Path) -> Sequence[LedgerPosition]:
    try:
        rows = json.loads(read_regular(path, 1 << 32))
        return [
            LedgerPosition(ledger=rows[0]["hash"], sequence=row["sequence"], hash=row["hash"])
            for row in rows
        ]
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, ValidationError) as error:
        raise Unreadable(f"{path}: not a JSON export of a ledger", kind="not-an-export") from error


def current_rows(ledger: LedgerReader) -> list[LedgerRow]:
    """The current state of each release and every other row, in the order of their newest rows."""
    newest = {row.sequence for row in ledger.releases()}
    rows = ledger.rows()
    return [row for row in rows if isinstance(row, Row) or row.sequence in newest]


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table. Pipes and line breaks inside cells are escaped."""
    first, *body = ("| " + " | ".join(map(escape, row)) + " |" for row in (header, *rows))
    return "\n".join([first, "|" + "---|" * len(header), *body])
