"""Defines the result of an audit (aggregates only), describes it in words, and records it in the
ledger.
"""

import math

from pydantic import BaseModel

from mechanisms.privacy.numerics import epsilon_text, lower_text
from storage.artifacts import ArtifactRef, digest
from storage.json_values import Json
from tasks.auditing.measure import AuditFigures
from tasks.branches.experiment import Outcome, Study
from tasks.releasing import ledger_records
from tasks.releasing.evidence import (
    AUDITED_ARTIFACT,
    CONTRADICTED,
    INCONCLUSIVE,
    describe_bound,
    describe_reach,
)


class BranchAudit(BaseModel, frozen=True):
    """Claim and measurement of one branch at one seed."""

    branch: str
    title: str
    seed: int
    mechanism: str
    guarantee_kind: str
    epsilon: float | None
    epsilon_add_remove: float | None
    """Epsilon for adding or removing one record, to compare with the bounds."""
    delta: float | None
    confidence: float
    verdict: str
    figures: AuditFigures
    ledger_sequence: int

    @property
    def lines(self) -> list[str]:
        figures, percent = self.figures, f"{100 * self.confidence:.6g}%"
        claim = (
            "nothing"
            if self.epsilon is None
            else f"ε {epsilon_text(self.epsilon)} ({self.guarantee_kind})"
        )
        if self.epsilon_add_remove is not None and self.epsilon_add_remove != self.epsilon:
            claim += f", ε {epsilon_text(self.epsilon_add_remove)} for one record more or less"
        verdict = self.verdict
        if verdict == CONTRADICTED and figures.faults:
            verdict += f": the sums are not as stated ({', '.join(figures.faults)})"
        elif verdict == INCONCLUSIVE:
            verdict += f": {describe_reach(figures.reach, self.epsilon_add_remove)}"
        bound = describe_bound(
            figures.epsilon_lower_bound, figures.noise_at_most, figures.epsilon_of_any
        )
        lines = [
            f"{self.branch}, seed {self.seed}: {verdict}",
            f"  claimed   {claim}",
            f"  measured  {bound} at {percent} confidence",
        ]
        for entry in figures.bounds:
            claimed = entry.claimed_in_trials
            if claimed is not None and figures.epsilon_lower_bound < entry.epsilon:
                lines.append(
                    f"  {entry.name}: {lower_text(entry.epsilon)}, not counted, as a rerun "
                    f"claims {epsilon_text(claimed)}"
                )
        if figures.checks:
            checks = ", ".join(f"{name} {p_value:.2g}" for name, p_value in figures.checks.items())
            lines.append(f"  checked   {checks} (p-values)")
        return lines


class AuditResult(BaseModel, frozen=True):
    branches: tuple[BranchAudit, ...]
    trials: int

    @property
    def contradicted(self) -> tuple[str, ...]:
        """Branches with a claim that the measurement contradicts."""
        return tuple(
            dict.fromkeys(
                branch.branch for branch in self.branches if branch.verdict == CONTRADICTED
            )
        )

    @property
    def lines(self) -> list[str]:
        return [line for branch in self.branches for line in branch.lines]


def record(
    study: Study,
    outcome: Outcome,
    measured: ArtifactRef,
    figures: AuditFigures,
    *,
    verdict: str,
    confidence: float,
) -> int:
    """Writes claim and measurement to the ledger and returns the row's number. If the same audit is
    already recorded, returns its row.
    """
    details: dict[str, Json] = {
        "trials": figures.trials,
        "gradient_runs": figures.gradient_runs,
        "checks": figures.checks,
        "faults": list(figures.faults),
        "verdict": verdict,
        "confidence": confidence,
        "branch": outcome.branch.name,
        "seed": outcome.seed,
        # rounded down, so that a lower bound stays one
        "epsilon_lower_bound": _down(figures.epsilon_lower_bound),
        "reach": _down(figures.reach),
    }
    if figures.epsilon_of_any is not None:
        details["epsilon_of_any"] = _down(figures.epsilon_of_any)
    if figures.noise_at_most is not None:
        details["noise_at_most"] = math.ceil(figures.noise_at_most * 1e6) / 1e6
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
        prefect_run_id=study.context.run.id,
    ).sequence


def _down(bound: float) -> float:
    return math.floor(bound * 1e6) / 1e6
