"""An audit as a row of the ledger."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from storage.artifacts import ArtifactRef, digest
from storage.ledger import Row
from tasks.branches.outcome import Outcome, Study
from tasks.releasing import rows
from tasks.releasing.gate import AUDITED, verdict


def record(
    study: Study,
    outcome: Outcome,
    measured: ArtifactRef,
    figures: Mapping[str, Any],
    *,
    prefect_run_id: str | None,
) -> Row:
    """Write claim and measurement to the ledger; the same audit again returns its row."""
    kept = {
        "verdict": verdict(outcome.claim, figures["epsilon_lower_bound"]),
        "epsilon_lower_bound": _down(figures["epsilon_lower_bound"]),
        "bound_from": figures["from"],
        "confidence": figures["confidence"],
        "bound_delta": figures["delta"],
        "auc": figures["loss_auc"],
        "tpr_at_fpr_0.01": figures["loss_tpr_at_fpr_0.01"],
        "tpr_at_fpr_0.001": figures["loss_tpr_at_fpr_0.001"],
        "trials": figures.get("trials", 0),
        "branch": outcome.branch.name,
        "seed": outcome.seed,
    }
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
