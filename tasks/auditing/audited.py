"""What an audit says of each branch: claim and measurement side by side, aggregates alone."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from tasks.releasing.gate import CONTRADICTED


class Audited(BaseModel):
    """One branch at one seed: claim and measurement."""

    model_config = ConfigDict(frozen=True)

    branch: str
    title: str
    seed: int
    mechanism: str
    guarantee_kind: str
    epsilon: float | None
    epsilon_add_remove: float | None
    """What bounds are held against: both are for one record more or less."""
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


class AuditResult(BaseModel):
    """What an audit returns: aggregates."""

    model_config = ConfigDict(frozen=True)

    branches: tuple[Audited, ...]
    trials: int
    target_epsilon: float | None
    refused: dict[str, str] = {}
    """Branches whose draws were refused, by title, and why: there is no candidate to audit."""

    @property
    def contradicted(self) -> tuple[str, ...]:
        """Branches whose claim the measurement refutes."""
        return tuple(dict.fromkeys(one.branch for one in self.branches if one.verdict == CONTRADICTED))
