"""Defines the result of an audit, aggregates alone, and records it as a row of the ledger."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from storage.artifacts import ArtifactRef, digest
from storage.ledger import Row
from tasks.auditing.alpha_spending import AuditAttempt
from tasks.branches.experiment import Outcome, Study
from tasks.releasing import ledger_records
from tasks.releasing.evidence import AUDITED_ARTIFACT, CONTRADICTED

_DELTAS = ("refuted_delta_epsilon", "refuted_delta_by_counts")


class BranchAudit(BaseModel, frozen=True):
    """Holds claim and measurement of one branch at one seed."""

    branch: str
    title: str
    seed: int
    mechanism: str
    guarantee_kind: str
    epsilon: float | None
    epsilon_add_remove: float | None
    """Compared with the bounds: both are for one record more or less."""
    delta: float
    epsilon_lower_bound: float
    reach: float
    """The bound that perfect guesses would have given."""
    confidence: float
    delta_refuted: float | None
    """The largest delta for which a contradicted claim stays refuted, where it names none itself."""
    attack: str
    """The strongest membership test, whose figures follow."""
    auc: float
    tpr_at_fpr_001: float
    tpr_at_fpr_0001: float
    loss_auc: float
    verdict: str
    weighted_f1: float
    macro_f1: float
    figures: dict[str, Any]
    curves: str
    """Folder with the ROC of each score, private."""
    ledger_sequence: int


class AuditResult(BaseModel, frozen=True):
    """Holds what an audit returns: aggregates."""

    branches: tuple[BranchAudit, ...]
    trials: int
    target_epsilon: float | None

    @property
    def contradicted(self) -> tuple[str, ...]:
        """Lists branches whose claim the measurement refutes."""
        return tuple(dict.fromkeys(one.branch for one in self.branches if one.verdict == CONTRADICTED))


def record(
    study: Study,
    outcome: Outcome,
    measured: ArtifactRef,
    figures: Mapping[str, Any],
    *,
    verdict: str,
    attempt: AuditAttempt,
    prefect_run_id: str | None,
) -> Row:
    """Writes claim and measurement to the ledger; the same audit again returns its row."""
    details = {
        "verdict": verdict,
        "epsilon_lower_bound": _down(figures["epsilon_lower_bound"]),
        "bound_from": figures["from"],
        "reach": _down(figures["reach"]),
        "confidence": attempt.confidence,
        "bound_delta": figures["delta"],
        "attack": figures["attack"],
        "coin": figures["coin"],
        "auc": figures["attack_auc"],
        "tpr_at_fpr_0.01": figures["attack_tpr_at_fpr_0.01"],
        "tpr_at_fpr_0.001": figures["attack_tpr_at_fpr_0.001"],
        "trials": figures.get("trials", 0),
        "gradient_runs": figures.get("gradient_runs", 0),
        "branch": outcome.branch.name,
        "seed": outcome.seed,
        "claim_of": attempt.claim_of,
        "evidence": dict(attempt.evidence),
        "attempts": dict(attempt.numbers),
        "attempt": attempt.number,
        "alpha_spent": attempt.spent,
        "epsilon_as_first": _down(figures["epsilon_as_first"]),
        "withheld": figures["withheld"],
    }
    if figures.get("epsilon_of_any") is not None:
        details["epsilon_of_any"] = _down(figures["epsilon_of_any"])
    if figures.get("noise_at_most") is not None:
        details["noise_at_most"] = math.ceil(figures["noise_at_most"] * 1e6) / 1e6
    details |= {name: _down(figures[name]) for name in _DELTAS if figures.get(name) is not None}
    return ledger_records.record_evaluation(
        study.context,
        study.parameters,
        kind="audit",
        label=f"audit: {outcome.branch.name}, seed {outcome.seed}",
        dataset=study.dataset,
        refs={AUDITED_ARTIFACT: outcome.fitted, "audit": measured},
        details=details,
        event=outcome.event,
        claim=outcome.claim,
        key=f"audit-{measured.sha256}",
        settings=digest(study.parameters.model_dump(mode="json", exclude={"release": True})),
        prefect_run_id=prefect_run_id,
    )


def _down(value: float) -> float:
    """Rounds down: a lower bound stays one."""
    return math.floor(value * 1e6) / 1e6
