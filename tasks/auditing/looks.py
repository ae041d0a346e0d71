"""How often a claim has been audited: what one false-alarm rate is spent on, over all of its audits.

Somebody who audits until one audit contradicts, or shows the largest bound of several, would find too much at the
stated confidence. The k-th audit of a claim may raise a false alarm with probability alpha / (k (k + 1)), which add up
to alpha.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storage.artifacts import digest
from storage.ledger import Row
from tasks.auditing.settings import AuditParameters
from tasks.branches.outcome import Outcome, Study
from tasks.releasing.claims import NOT_METHOD, method_of


@dataclass(frozen=True)
class Look:
    """One audit of a claim among all that it has had.

    claim_of: digest of records and method, whatever the seed; design: of what this audit set out to do.
    """

    claim_of: str
    design: str
    number: int
    confidence: float
    """That all audits of the claim share."""

    @property
    def alpha(self) -> float:
        """What this one may spend."""
        return (1 - self.confidence) / (self.number * (self.number + 1))


def look(study: Study, settings: AuditParameters, outcome: Outcome, rows: Sequence[Row]) -> Look:
    """The number of this audit: that of the same one before, or one more than there were.

    Rows from before audits were counted are one each, where records and mechanism are the same.
    """
    claim_of = digest(
        {
            "records": study.facts["fingerprint"],
            "parameters": method_of(study.parameters, NOT_METHOD | {"fit": {"seed": True}}),
            "mechanism": outcome.mechanism.model_dump(mode="json"),
            "delta": study.delta(outcome.branch),
        }
    )
    design = digest(
        {
            "settings": settings.model_dump(mode="json"),
            "seed": study.parameters.fit.seed,
            "seeds": study.settings.seeds,
        }
    )
    mechanism = outcome.event.mechanism
    earlier: dict[str, int] = {}
    for row in rows:
        told: Mapping[str, Any] = row.details
        if row.kind != "audit" or "epsilon_lower_bound" not in told:
            continue
        older = "claim_of" not in told and row.data_fingerprint == study.facts["fingerprint"]
        if told.get("claim_of") == claim_of or (older and row.mechanism == mechanism):
            earlier.setdefault(told.get("design", row.hash), told.get("look", len(earlier) + 1))
    number = earlier.get(design, max(earlier.values(), default=0) + 1)
    return Look(claim_of, design, number, settings.confidence)
