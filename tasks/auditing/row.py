"""An audit as a row of the ledger."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from storage.artifacts import ArtifactRef, digest
from storage.ledger import Row
from tasks.auditing.looks import Look
from tasks.branches.outcome import Outcome, Study
from tasks.releasing import rows
from tasks.releasing.gate import AUDITED

_DELTAS = ("refuted_delta_epsilon", "refuted_delta_by_counts", "refuted_delta_by_densities", "delta_rate")


def record(
    study: Study,
    outcome: Outcome,
    measured: ArtifactRef,
    figures: Mapping[str, Any],
    *,
    verdict: str,
    look: Look,
    prefect_run_id: str | None,
) -> Row:
    """Write claim and measurement to the ledger; the same audit again returns its row."""
    kept = {
        "verdict": verdict,
        "epsilon_lower_bound": _down(figures["epsilon_lower_bound"]),
        "bound_from": figures["from"],
        "reach": _down(figures["reach"]),
        "confidence": look.confidence,
        "bound_delta": figures["delta"],
        "attack": figures["attack"],
        "auc": figures["attack_auc"],
        "tpr_at_fpr_0.01": figures["attack_tpr_at_fpr_0.01"],
        "tpr_at_fpr_0.001": figures["attack_tpr_at_fpr_0.001"],
        "trials": figures.get("trials", 0),
        "gradient_runs": figures.get("gradient_runs", 0),
        "branch": outcome.branch.name,
        "seed": outcome.seed,
        "claim_of": look.claim_of,
        "evidence": dict(look.evidence),
        "looks": dict(look.numbers),
        "look": look.number,
        "alpha_spent": look.spent,
        "epsilon_as_first": _down(figures["epsilon_as_first"]),
        "withheld": figures["withheld"],
    }
    kept |= {name: _down(figures[name]) for name in _DELTAS if figures.get(name) is not None}
    return rows.record(
        study.context,
        study.parameters,
        kind="audit",
        label=f"audit: {outcome.branch.name}, seed {outcome.seed}",
        dataset=study.dataset,
        refs={AUDITED: outcome.fitted, "audit": measured},
        details=kept,
        event=outcome.event,
        claim=outcome.claim,
        key=f"audit-{measured.sha256}",
        settings=digest(study.parameters.model_dump(mode="json", exclude={"release": True})),
        prefect_run_id=prefect_run_id,
    )


def _down(value: float) -> float:
    """A lower bound stays one when it is rounded."""
    return math.floor(value * 1e6) / 1e6
