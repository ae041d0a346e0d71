"""What a release would claim and cost, before anything is drawn: the release plan."""

from __future__ import annotations

import os
from typing import Any

from mechanisms.accounting import claim_of
from mechanisms.events import Claim, SwagPpmEvent
from storage.artifacts import ArtifactRef, Store, digest
from storage.ledger import ReleasePlan
from tasks.parameters import RetrainParameters
from tasks.provenance import provenance
from tasks.stage import Context

TRUST_MODEL = (
    "central: the operator of this pipeline sees the records; the claim is against whoever holds the released draw"
)
RANDOMNESS = "operating system entropy (os.urandom), one pair of 53-bit uniforms a pair of normals, no seed"
FLOATING_POINT = (
    "the draw is a float32 rounding of a Gaussian sampled in floating point; attacks on the low-order bits of such "
    "samples are not covered by the claim"
)
ALWAYS_UNPROTECTED = (
    "risk weights alpha, sensitivity Delta and constant k are computed from the records",
    "the number of records n",
    "settings (rates, epochs, encoder, c, g, k), as far as somebody chose them by looking at these records",
)

_NOT_METHOD: Any = {"release": True, "data": {"source": True, "codelist": True}}
"""Parameters that say where things lie or who asked: what is trained does not depend on them."""


def ledger_url(context: Context, parameters: RetrainParameters) -> str:
    """Where the ledger of this run is."""
    return parameters.release.ledger_url or os.environ.get("AUTOCODER_LEDGER_URL") or context.workspace.ledger_url


def unprotected_inputs(dataset: dict[str, Any]) -> tuple[str, ...]:
    """What reached the release from the records without protection."""
    if dataset["label_space_source"] == "codelist":
        return ALWAYS_UNPROTECTED
    return (*ALWAYS_UNPROTECTED, "the label set: the codes observed in the records")


def swag_ppm_event(parameters: RetrainParameters, *, snapshots: int, rank: int, sensitivity: float) -> SwagPpmEvent:
    """What was done, with the sensitivity as far as it is known."""
    return SwagPpmEvent(
        reweighted=parameters.pseudo_posterior.reweight,
        snapshots=snapshots,
        rank=rank,
        sensitivity_draws=parameters.pseudo_posterior.sensitivity_draws,
        sensitivity=sensitivity,
    )


def claim(parameters: RetrainParameters, event: SwagPpmEvent, dataset: dict[str, Any]) -> Claim:
    """The claim of this event on these records."""
    ingest = parameters.data.ingest
    by_unit = ingest.unit_column is not None and ingest.max_per_unit is not None
    return claim_of(
        event,
        delta=None,
        privacy_unit=f"unit ({ingest.unit_column})" if by_unit else "record",
        max_records_per_unit=ingest.max_per_unit or 1 if by_unit else 1,
        unprotected_inputs=unprotected_inputs(dataset),
    )


def release_plan(
    parameters: RetrainParameters,
    store: Store,
    *,
    dataset: ArtifactRef,
    posterior: ArtifactRef,
    measured: ArtifactRef,
    prefect_run_id: str | None,
) -> ReleasePlan:
    """The plan of releasing one draw of `posterior`.

    The same records, method and label always give the same key, so that running again, also after a change of code
    that gave another posterior, never releases and spends twice unless the operator asks by another label.
    """
    facts = store.figures(dataset)
    moments = store.figures(posterior)
    event = swag_ppm_event(
        parameters,
        snapshots=moments["snapshots"],
        rank=moments["rank"],
        sensitivity=store.figures(measured)["sensitivity"],
    )
    artifacts = {"dataset": dataset.sha256, "posterior": posterior.sha256, "sensitivity": measured.sha256}
    source = provenance()
    method = digest(parameters.model_dump(mode="json", exclude=_NOT_METHOD))
    return ReleasePlan(
        idempotency_key=digest({"data": facts["fingerprint"], "method": method, "label": parameters.release.label}),
        release_label=parameters.release.label,
        population=parameters.data.population,
        cohorts=tuple(facts["cohorts"]),
        data_fingerprint=facts["fingerprint"],
        records_rounded=facts["records"],
        event=event,
        claim=claim(parameters, event, facts),
        trust_model=TRUST_MODEL,
        randomness_source=RANDOMNESS,
        floating_point_caveat=FLOATING_POINT,
        code_commit=source.code_commit,
        code_dirty=source.code_dirty,
        lock_digest=source.lock_digest,
        parameters_digest=method,
        artifact_digests=artifacts,
        requester=parameters.release.requester,
        approvals=parameters.release.approvals,
        supersedes=parameters.release.supersedes,
        prefect_run_id=prefect_run_id,
    )
