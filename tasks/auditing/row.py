"""An audit as a row of the ledger."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mechanisms.privacy.events import Claim
from storage.artifacts import ArtifactRef, digest
from storage.ledger import Evaluation, Row
from tasks.comparing.summary import Outcome
from tasks.parameters import RetrainParameters
from tasks.releasing.claims import TRUST_MODEL
from tasks.releasing.gate import AUDITED, verdict
from tasks.releasing.publish import open_ledger
from tasks.running.provenance import provenance
from tasks.running.stage import Context


def record(
    context: Context,
    parameters: RetrainParameters,
    outcome: Outcome,
    claim: Claim,
    measured: ArtifactRef,
    figures: Mapping[str, Any],
    *,
    facts: Mapping[str, Any],
    prefect_run_id: str | None,
) -> Row:
    """Write claim and measurement to the ledger; the same audit again returns its row."""
    source = provenance()
    kept = {
        "verdict": verdict(claim, figures["epsilon_lower_bound"]),
        "epsilon_lower_bound": _down(figures["epsilon_lower_bound"]),
        "bound_from": figures["from"],
        "confidence": figures["confidence"],
        "bound_delta": figures["delta"],
        "auc": round(figures["loss_auc"], 6),
        "tpr_at_fpr_0.01": round(figures["loss_tpr_at_fpr_0.01"], 6),
        "tpr_at_fpr_0.001": round(figures["loss_tpr_at_fpr_0.001"], 6),
        "trials": figures.get("trials", 0),
        "branch": outcome.branch.name,
        "seed": outcome.seed,
    }
    return open_ledger(context, parameters.release).record(
        Evaluation(
            kind="audit",
            label=f"audit: {outcome.branch.name}, seed {outcome.seed}",
            population=parameters.data.population,
            cohorts=tuple(facts["cohorts"]),
            data_fingerprint=facts["fingerprint"],
            records_rounded=facts["records"],
            event=outcome.event,
            claim=claim,
            trust_model=TRUST_MODEL,
            code_commit=source.code_commit,
            code_dirty=source.code_dirty,
            lock_digest=source.lock_digest,
            parameters_digest=digest(parameters.model_dump(mode="json", exclude={"release": True})),
            artifact_digests={AUDITED: outcome.fitted.sha256, "audit": measured.sha256},
            requester=parameters.release.requester,
            prefect_run_id=prefect_run_id,
            idempotency_key=f"audit-{measured.sha256}",
            details=kept,
        )
    )


def _down(value: float) -> float:
    """A lower bound stays one when it is rounded."""
    return math.floor(value * 1e6) / 1e6
