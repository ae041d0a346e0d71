"""What comparisons, retrains and diagnostics left in the ledger about the same records: F1, claims, audits."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, cast

from mechanisms.model.calibration import TARGETS
from mechanisms.privacy.events import Claim, Event
from storage.artifacts import ArtifactRef
from storage.ledger import Ledger, ReleasePlan, Row
from tasks.fitting.candidate import Candidate
from tasks.releasing import gate
from tasks.releasing.plan import PlannedRelease, event_of
from tasks.releasing.recommendation import AuditVerdict, Figures

COMPARED, DIAGNOSED = "compare: ", "diagnostics of a retrain"
"""How labels of rows begin."""


def audit_of(ledger: Ledger, *, fitted: str, fingerprint: str, event: Event, claim: Claim) -> gate.Measured | None:
    """What audits say of a claim, as the gate would: of its own fit, or a contradiction of the same method.

    Args:
        fitted: digest of the fit or posterior.
        fingerprint: of its records.
    """
    plan = ReleasePlan.model_construct(data_fingerprint=fingerprint, event=event, claim=claim)
    candidate = Candidate.model_construct(fitted=ArtifactRef(uri="", sha256=fitted, kind=""))
    return gate.measured(ledger, PlannedRelease.model_construct(plan=plan, candidate=candidate))


def verdict_of(found: gate.Measured | None) -> AuditVerdict | None:
    """What an audit found, None where there was none."""
    return None if found is None else cast(AuditVerdict, found.verdict)


def compared(ledger: Ledger, fingerprint: str) -> list[Figures]:
    """Branches that were compared on these records, a claim each, with mean and spread over seeds.

    Of a branch that was compared under several settings at the same epsilon and delta the newest counts.
    """
    newest: dict[tuple[Any, ...], str | None] = {}
    grouped: dict[tuple[Any, ...], list[Row]] = {}
    for row in ledger.rows():
        if _is_compared(row) and row.data_fingerprint == fingerprint and "weighted_f1" in row.details:
            at = None if row.epsilon is None or row.guarantee_kind != "formal" else round(float(row.epsilon), 2)
            key = (row.label.removeprefix(COMPARED).split(",")[0], at, row.delta)
            if newest.get(key) != row.parameters_digest:
                newest[key], grouped[key] = row.parameters_digest, []
            grouped[key].append(row)
    return [_figures(ledger, key[0], rows) for key, rows in grouped.items()]


def own_scores(ledger: Ledger, planned: PlannedRelease) -> Mapping[str, float]:
    """Weighted and macro F1 of a plan's own candidate on held-out records, and what it could code alone
    (`calibration.coded_alone`) where that was measured; empty where nobody scored it.
    """
    fitted = planned.candidate.fitted.sha256
    for row in reversed(ledger.rows()):
        if _is_compared(row) and row.artifact_digests.get("fit") == fitted and "weighted_f1" in row.details:
            return _own(row.details, "")
        if _is_evaluation_of(planned.plan, row):
            last = [name for name in row.details if name.endswith("_weighted_f1") and "quartile" not in name]
            for name in sorted(last, key=_round, reverse=True)[:1]:
                return _own(row.details, name.removesuffix("weighted_f1"))
    return {}


def own_reference(ledger: Ledger, planned: PlannedRelease) -> Figures | None:
    """Scores of the fit without risk weights that a retrain begins with, on the same held-out records as its last; None
    where it has none, as a formal one has.
    """
    for row in reversed(ledger.rows()):
        if _is_evaluation_of(planned.plan, row) and "base_weighted_f1" in row.details:
            own = _own(row.details, "base_")
            title = "the retrain's own fit without privacy"
            return Figures("base", title, "none", own["weighted_f1"], own.get("macro_f1"))
    return None


def _is_evaluation_of(plan: ReleasePlan, row: Row) -> bool:
    """Whether a row has the scores of the retrain that a plan came of."""
    same = row.data_fingerprint == plan.data_fingerprint and row.parameters_digest == plan.parameters_digest
    return row.kind == "evaluation" and same and row.label == "internal evaluation on the test half"


def _own(details: Mapping[str, Any], stem: str) -> dict[str, float]:
    """Scores of one fit, by their names without the round's."""
    alone = (f"alone_at_{round(100 * target)}" for target in TARGETS)
    named = ("weighted_f1", "macro_f1", *alone, "surest_accuracy", "surest_share")
    return {name: details[stem + name] for name in named if stem + name in details}


def diagnosed(ledger: Ledger, plan: ReleasePlan) -> Mapping[str, str] | None:
    """Verdicts of the newest diagnostics of a plan's method on its records, by question; None where there are none."""
    for row in reversed(ledger.rows()):
        same = row.data_fingerprint == plan.data_fingerprint and row.parameters_digest == plan.parameters_digest
        if row.label == DIAGNOSED and same and "verdicts" in row.details:
            return row.details["verdicts"]
    return None


def _is_compared(row: Row) -> bool:
    return row.kind == "evaluation" and row.label.startswith(COMPARED)


_ROUNDS = ("base", "weighted", "reweighted", "censored", "both")


def _round(name: str) -> int:
    return _ROUNDS.index(name.split("_")[0]) if name.split("_")[0] in _ROUNDS else -1


def _figures(ledger: Ledger, branch: str, rows: Sequence[Row]) -> Figures:
    f1 = [float(row.details["weighted_f1"]) for row in rows]
    epsilons = [float(row.epsilon) for row in rows if row.epsilon is not None]
    first = rows[0]
    found = [_audit(ledger, row) for row in rows]
    worst = max((one for one in found if one is not None), key=against, default=None)
    return Figures(
        name=branch,
        title=branch,
        kind=first.guarantee_kind,
        weighted_f1=statistics.fmean(f1),
        macro_f1=statistics.fmean(float(row.details.get("macro_f1", 0.0)) for row in rows),
        spread=statistics.stdev(f1) if len(f1) > 1 else 0.0,
        seeds=len(f1),
        epsilon=max(epsilons, default=None),
        delta=None if first.delta is None else float(first.delta),
        relation=first.neighbouring_relation or "add-remove",
        audit=verdict_of(worst),
        lower_bound=None if worst is None else worst.epsilon_lower_bound,
    )


def against(found: gate.Measured) -> tuple[bool, bool, float]:
    """What counts most: a contradiction, then a result, then the larger bound."""
    return found.verdict == gate.CONTRADICTED, found.verdict != gate.INCONCLUSIVE, found.epsilon_lower_bound


def _audit(ledger: Ledger, row: Row) -> gate.Measured | None:
    if row.event is None or row.epsilon is None or row.guarantee_kind == "none":
        return None
    claim = Claim(
        guarantee_kind=row.guarantee_kind,
        epsilon=float(row.epsilon),
        delta=None if row.delta is None else float(row.delta),
        epsilon_add_remove=None if row.epsilon_add_remove is None else float(row.epsilon_add_remove),
        neighbouring_relation=row.neighbouring_relation or "add-remove",
        accountant=row.accountant or "",
    )
    fitted, records = row.artifact_digests.get("fit", ""), row.data_fingerprint or ""
    return audit_of(ledger, fitted=fitted, fingerprint=records, event=event_of(row.event), claim=claim)
