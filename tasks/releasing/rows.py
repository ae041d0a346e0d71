"""Rows of the ledger for what was computed from the records and stays in the house: diagnostics, tuning."""

from __future__ import annotations

from collections.abc import Mapping

from mechanisms.privacy.events import Claim, Event
from storage.artifacts import ArtifactRef, digest
from storage.ledger import Evaluation
from tasks.parameters import RetrainParameters
from tasks.releasing.claims import NOT_METHOD, TRUST_MODEL
from tasks.releasing.publish import open_ledger
from tasks.running.provenance import provenance
from tasks.running.stage import Context


def record(
    context: Context,
    parameters: RetrainParameters,
    *,
    label: str,
    dataset: ArtifactRef,
    refs: Mapping[str, ArtifactRef],
    details: Mapping[str, float],
    event: Event | None = None,
    claim: Claim | None = None,
    prefect_run_id: str | None,
) -> None:
    """Write one internal row, once for the same artifacts and label; nothing is charged."""
    facts, source = context.store.figures(dataset), provenance()
    artifacts = {name: ref.sha256 for name, ref in refs.items()}
    open_ledger(context, parameters.release).record(
        Evaluation(
            label=label,
            population=parameters.data.population,
            cohorts=tuple(facts["cohorts"]),
            data_fingerprint=facts["fingerprint"],
            records_rounded=facts["records"],
            event=event,
            claim=claim,
            trust_model=TRUST_MODEL,
            code_commit=source.code_commit,
            code_dirty=source.code_dirty,
            lock_digest=source.lock_digest,
            parameters_digest=digest(parameters.model_dump(mode="json", exclude=NOT_METHOD)),
            artifact_digests=artifacts,
            requester=parameters.release.requester,
            prefect_run_id=prefect_run_id,
            idempotency_key=digest({"label": label, "population": parameters.data.population, "of": artifacts}),
            details={name: round(value, 6) for name, value in details.items()},
        )
    )
