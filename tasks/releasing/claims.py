"""What a release would claim and cost, before anything is drawn: the release plan."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from mechanisms.model.classifier import ModelConfig
from mechanisms.privacy.claims import claim_of
from mechanisms.privacy.events import BoundedSwagEvent, Claim, Event, SwagPpmEvent
from mechanisms.swag_ppm import event_of
from storage.artifacts import ArtifactRef, Store, digest, file_digest
from storage.errors import InputError
from storage.ingest import ALL, IngestConfig
from storage.ledger import ReleasePlan, same_database
from tasks.bundle.sentences import COUPLED
from tasks.parameters import LedgerParameters, RetrainParameters
from tasks.running.provenance import provenance
from tasks.running.stage import Context

TRUST_MODEL = (
    "central: the operator of this pipeline sees the records; the claim is against whoever holds the released draw"
)
RANDOMNESS = "operating system entropy (os.urandom), one pair of 53-bit uniforms a pair of normals, no seed"
FLOATING_POINT = (
    "the draw is a float32 rounding of a Gaussian sampled in floating point; attacks on the low-order bits of such "
    "samples are not covered by the claim"
)
WEIGHTS = "risk weights alpha, sensitivity Delta and constant k are computed from the records"
NUMBER = "the number of records n"
SETTINGS = "settings (rates, epochs, encoder, c, g, k), as far as somebody chose them by looking at these records"
BOUNDS = "the bounds of numeric columns: the smallest and largest values observed in the records"
LABELS = "the label set: the codes observed in the records"
COHORTS = "the names of the cohorts: the periods that the records are dated in; one record of another would add a name"
MATCHED = "the target epsilon, and with it noise or bound: taken from what SWAG-PPM came out with on these records"

NOT_METHOD: Any = {
    "release": True,
    "data": {"source": True, "codelist": True, "classification": True, "classification_version": True, "public": True},
}
"""Parameters that say where things lie or who asked: what is trained does not depend on them."""


SEARCHED = "c and k: searched for a target epsilon by fits on these records, each a row of the ledger"


def method_of(parameters: RetrainParameters, left_out: Any = NOT_METHOD) -> dict[str, Any]:
    """The parameters that a fit depends on, as JSON; of the code list of each of several fields what it holds, wherever
    it lies. (Of a single field's it follows from the records' fingerprint.)"""
    told = parameters.model_dump(mode="json", exclude=left_out)
    for name, path in parameters.data.codelists.items():
        if name and path is not None:
            told["data"]["ingest"]["fields"][name]["codelist"] = file_digest(path)
    return told


def method_digest(parameters: RetrainParameters) -> str:
    """What identifies the method: not where things lie or who asked, and not c, g and k where a search finds them."""
    config = parameters.pseudo_posterior
    if parameters.formal is not None:
        return digest(method_of(parameters, NOT_METHOD | {"pseudo_posterior": True}))
    searched = config.mechanism == "weighted" and config.target_epsilon is not None
    left_out = NOT_METHOD | ({"pseudo_posterior": {"c": True, "g": True, "k": True}} if searched else {})
    return digest(method_of(parameters, left_out))


def ledger_url(context: Context, settings: LedgerParameters) -> str:
    """Where the ledger of this run is.

    Raises:
        InputError: the setting names another ledger than the machine's own. A release on an empty ledger would be
            asked for no approval and charged to nobody.
    """
    own = os.environ.get("AUTOCODER_LEDGER_URL")
    if own and settings.ledger_url and not same_database(own, settings.ledger_url):
        raise InputError(
            "ledger_url: the ledger of this machine is the one in AUTOCODER_LEDGER_URL; leave the setting empty"
        )
    return own or settings.ledger_url or context.workspace.ledger_url


def unprotected_inputs(dataset: Mapping[str, Any], *, weights: bool = True) -> tuple[str, ...]:
    """What reached the release from the records without protection; `weights`: risk weights were computed.

    Args:
        dataset: figures of the ingest; one made before there was a choice of sampling was stratified.
    """
    listed = {
        WEIGHTS: weights,
        NUMBER: True,
        SETTINGS: True,
        COUPLED: dataset.get("sampling", "stratified") != "per-record",
        BOUNDS: dataset.get("bounds_source") == "records",
        LABELS: dataset["label_space_source"] != "codelist",
        COHORTS: dataset.get("cohorts_source", "records") == "records" and list(dataset["cohorts"]) != [ALL],
    }
    return tuple(line for line, holds in listed.items() if holds)


def public_inputs(model: ModelConfig) -> tuple[str, ...]:
    """What reached the model without a record being read, beside the encoder."""
    if model.prior == "none":
        return ()
    of_fields = (model.prior_sentences[name] for name in sorted(model.prior_sentences))  # a plan's file sorts them
    sentences = dict.fromkeys(one for one in (model.prior_sentence, *of_fields) if one)
    quoted = " or ".join(f"`{one}`" for one in sentences)
    said = f", in their hierarchy and in the sentence {quoted}" if quoted else ""
    return (
        f"the titles of the code list{said or ', in their hierarchy'}, through the encoder: where the head starts (its "
        f"scale {model.prior_scale:g} is a setting)",
    )


def swag_event(
    parameters: RetrainParameters, round_name: str, *, snapshots: int, rank: int, figures: Mapping[str, Any]
) -> SwagPpmEvent | BoundedSwagEvent:
    """What was done in one round, from the figures of its sensitivity (of its risks, for the base round)."""
    return event_of(
        round_name,
        parameters.bounded(round_name),
        snapshots=snapshots,
        rank=rank,
        sensitivity=figures["largest_risk" if round_name == "base" else "sensitivity"],
        draws=figures["draws"],
    )


def privacy_unit(ingest: IngestConfig) -> tuple[str, int]:
    """What is protected, and how many records it may have."""
    if ingest.unit_column is None or ingest.max_per_unit is None:
        return "record", 1
    return f"unit ({ingest.unit_column})", ingest.records_per_unit


def claim(parameters: RetrainParameters, event: Event, dataset: dict[str, Any]) -> Claim:
    """The claim of this event on these records."""
    ingest = parameters.data.ingest
    config = parameters.pseudo_posterior
    searched = (SEARCHED,) if config.mechanism == "weighted" and config.target_epsilon is not None else ()
    unit, most = privacy_unit(ingest)
    return claim_of(
        event,
        delta=None,
        privacy_unit=unit,
        max_records_per_unit=most,
        unprotected_inputs=(*unprotected_inputs(dataset, weights=event.risk_weights), *searched),
        public_inputs=public_inputs(parameters.model),
    )


def claim_at(sensitivity: float, event: Event, claim: Claim) -> Claim:
    """What the accountant would claim for the same unit at another sensitivity (or bound) of the event, in nats."""
    field = "bound" if isinstance(event, BoundedSwagEvent) else "sensitivity"
    return claim_of(
        event.model_copy(update={field: sensitivity}),
        delta=claim.delta,
        privacy_unit=claim.privacy_unit,
        max_records_per_unit=claim.max_records_per_unit,
        unprotected_inputs=claim.unprotected_inputs,
    )


def artifact_digests(*, dataset: ArtifactRef, fitted: ArtifactRef, measured: ArtifactRef | None) -> dict[str, str]:
    """Digests of what a release is made from, by the names that the ledger keeps them under."""
    if measured is None:
        return {"dataset": dataset.sha256, "fit": fitted.sha256}
    return {"dataset": dataset.sha256, "posterior": fitted.sha256, "sensitivity": measured.sha256}


def release_key(parameters: RetrainParameters, fingerprint: str) -> str:
    """The key of a retrain's release: the same records, method and label have one release, for ever."""
    method = method_digest(parameters)
    return digest({"data": fingerprint, "method": method, "label": parameters.release.label})


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
    event = swag_event(
        parameters,
        parameters.rounds[-1],
        snapshots=moments["snapshots"],
        rank=moments["rank"],
        figures=store.figures(measured),
    )
    artifacts = artifact_digests(dataset=dataset, fitted=posterior, measured=measured)
    source = provenance()
    method = method_digest(parameters)
    return ReleasePlan(
        idempotency_key=release_key(parameters, facts["fingerprint"]),
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
        supersedes=parameters.release.supersedes,
        prefect_run_id=prefect_run_id,
    )
