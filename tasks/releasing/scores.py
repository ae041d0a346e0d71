"""Reads the scores of a plan's candidate and the baselines from the ledger's table
next to its chain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mechanisms.model.calibration import TARGETS
from storage.ledger import ComparisonFit, Evaluated, Sensitivity
from tasks.releasing.plan import PlannedRelease


def candidate_scores(
    measurements: Sequence[Evaluated], planned: PlannedRelease
) -> Mapping[str, float]:
    """Returns weighted and macro F1 of a plan's candidate on held-out records, and the shares that
    it codes without a person (`calibration.autocoded_shares`) if they were measured. Empty without
    scores.
    """
    fitted = planned.candidate.fitted.sha256
    for row in reversed(_scored(measurements)):
        measured = row.evaluation
        if (
            isinstance(measured.subject, ComparisonFit)
            and measured.artifact_digests.get("fit") == fitted
        ):
            return _scores(measured.details)
    return {}


def reference_f1(measurements: Sequence[Evaluated], planned: PlannedRelease) -> float | None:
    """Returns the best weighted F1 without privacy on these records: of the run's fit without risk
    weights, or of a comparison. None if neither was scored.
    """
    unprotected = [
        row
        for row in _scored(measurements)
        if isinstance(subject := row.evaluation.subject, Sensitivity)
        and subject.round == _UNWEIGHTED
        and row.evaluation.data_fingerprint == planned.plan.data_fingerprint
    ]
    unprotected += [row for row in _compared(measurements, planned) if row.guarantee_kind == "none"]
    return max(map(_weighted_f1, unprotected), default=None)


def accuracy_by_epsilon(
    measurements: Sequence[Evaluated], planned: PlannedRelease
) -> dict[float, float]:
    """Returns the weighted F1 of the plan's mechanism on these records by epsilon,
    as means over a comparison's seeds.
    """
    scores: dict[float, list[float]] = {}
    for row in _compared(measurements, planned):
        event, planned_event = row.evaluation.event, planned.plan.event
        same = event and event.of_training.mechanism == planned_event.of_training.mechanism
        if same and row.epsilon is not None:
            scores.setdefault(float(f"{row.epsilon:.3g}"), []).append(_weighted_f1(row))
    return {epsilon: sum(values) / len(values) for epsilon, values in scores.items()}


def _compared(measurements: Sequence[Evaluated], planned: PlannedRelease) -> list[Evaluated]:
    rows = [
        row for row in _scored(measurements) if isinstance(row.evaluation.subject, ComparisonFit)
    ]
    fingerprint = planned.plan.data_fingerprint
    return [row for row in rows if row.evaluation.data_fingerprint == fingerprint]


def _scored(measurements: Sequence[Evaluated]) -> list[Evaluated]:
    return [row for row in measurements if _F1 in row.evaluation.details]


def _weighted_f1(row: Evaluated) -> float:
    return row.evaluation.details[_F1]


def _scores(details: Mapping[str, Any]) -> dict[str, float]:
    alone = (f"coverage_at_{round(100 * target)}" for target in TARGETS)
    names = (_F1, "macro_f1", *alone, "best_accuracy", "best_coverage")
    return {name: details[name] for name in names if name in details}


_F1 = "weighted_f1"
_UNWEIGHTED = "base"
"""The round of a pseudo posterior with a fit that has no risk weights and no privacy."""
