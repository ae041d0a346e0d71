"""Rows of the ledger for what was computed from the records and stays in the house: comparisons, audits, tuning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from mechanisms.privacy.events import Claim, Event
from storage.artifacts import ArtifactRef, digest
from storage.ledger import Evaluation, Row
from storage.ledger.records import SAMPLE
from tasks.parameters import RetrainParameters
from tasks.releasing.claims import TRUST_MODEL, method_of
from tasks.releasing.publish import open_ledger
from tasks.releasing.selection import sample_of
from tasks.running.provenance import provenance
from tasks.running.stage import Context


def record(
    context: Context,
    parameters: RetrainParameters,
    *,
    label: str,
    dataset: ArtifactRef,
    refs: Mapping[str, ArtifactRef],
    details: Mapping[str, Any],
    event: Event | None = None,
    claim: Claim | None = None,
    kind: Literal["evaluation", "audit"] = "evaluation",
    key: str | None = None,
    settings: str | None = None,
    prefect_run_id: str | None,
) -> Row:
    """Write one internal row, or return the one that these artifacts have under this label; nothing is charged.

    Args:
        details: figures that may stand in the ledger; numbers are rounded to six decimals.
        key: of idempotency; by default from label, population and artifacts.
        settings: digest of what the row rests on; by default the parameters' without the release.
    """
    facts, source = context.store.figures(dataset), provenance()
    artifacts = {name: ref.sha256 for name, ref in refs.items()}
    return open_ledger(context, parameters.release).record(
        Evaluation(
            kind=kind,
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
            parameters_digest=settings or digest(method_of(parameters)),
            artifact_digests=artifacts,
            requester=parameters.release.requester,
            prefect_run_id=prefect_run_id,
            idempotency_key=key or digest({"label": label, "population": parameters.data.population, "of": artifacts}),
            details={n: round(v, 6) if isinstance(v, float) else v for n, v in details.items()}
            | {SAMPLE: sample_of(context, dataset)},
        )
    )
