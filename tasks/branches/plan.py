"""A comparison's branch as a planned release: by the same path as a retrain's."""

from __future__ import annotations

from mechanisms.privacy.events import Claim
from storage.artifacts import digest
from storage.errors import InputError
from storage.ledger import ReleasePlan
from tasks.branches.outcome import Outcome, Study
from tasks.branches.swag_chain import parameters_of
from tasks.fitting.candidate import Candidate
from tasks.releasing.claims import FLOATING_POINT, NOT_METHOD, TRUST_MODEL, artifact_digests, method_of
from tasks.releasing.plan import CHOSEN_AFTER_COMPARISON, NOISE_OF_THE_FIT, Output, PlannedRelease, fields_of
from tasks.running.provenance import provenance


def planned(study: Study, outcome: Outcome, *, prefect_run_id: str | None) -> PlannedRelease:
    """The release of one outcome of a comparison.

    Raises:
        InputError: its target epsilon was computed from the records.
    """
    if outcome.branch.takes_target_from_records(study.settings):
        raise InputError(
            f"target_epsilon=match: {outcome.branch.name} has its noise or bound from what SWAG-PPM came out with "
            "on these records, which nobody accounts for; to release it, compare with a number (--target-epsilon 4)"
        )
    unprotected = (*outcome.claim.unprotected_inputs, CHOSEN_AFTER_COMPARISON)
    claim = outcome.claim.model_copy(update={"unprotected_inputs": unprotected})
    if outcome.sensitivity is not None:
        plan = PlannedRelease.of_posterior(
            study.context,
            parameters_of(study, outcome.branch, outcome.seed),
            dataset=study.dataset,
            prepared=study.prepared,
            posterior=outcome.fitted,
            measured=outcome.sensitivity,
            prefect_run_id=prefect_run_id,
        )
        return plan.model_copy(update={"plan": plan.plan.model_copy(update={"claim": claim})})
    parameters = study.at_seed(outcome.seed)
    method = digest(
        {
            "parameters": method_of(parameters, NOT_METHOD | {"pseudo_posterior": True}),
            "branch": outcome.branch.name,
            **({"prior": outcome.branch.prior} if outcome.branch.prior else {}),
            "delta": claim.delta,
            "epsilon": study.settings.target_epsilon,
            "event": outcome.event.model_dump(mode="json"),
        }
    )
    key = digest({"data": study.facts["fingerprint"], "method": method, "label": parameters.release.label})
    return of_fit(study, outcome, claim, method=method, key=key, prefect_run_id=prefect_run_id)


def of_fit(
    study: Study, outcome: Outcome, claim: Claim, *, method: str, key: str, prefect_run_id: str | None
) -> PlannedRelease:
    """The release of a fit as it is.

    Args:
        method, key: digest of what was done, and the key under which a release of it is found.
    """
    parameters, facts = study.at_seed(outcome.seed), study.facts
    source, wanted = provenance(), parameters.release
    release = ReleasePlan(
        idempotency_key=key,
        release_label=wanted.label,
        population=parameters.data.population,
        cohorts=tuple(facts["cohorts"]),
        data_fingerprint=facts["fingerprint"],
        records_rounded=facts["records"],
        event=outcome.event,
        claim=claim,
        trust_model=TRUST_MODEL,
        randomness_source=NOISE_OF_THE_FIT,
        floating_point_caveat=FLOATING_POINT,
        code_commit=source.code_commit,
        code_dirty=source.code_dirty,
        lock_digest=source.lock_digest,
        parameters_digest=method,
        artifact_digests=artifact_digests(dataset=study.dataset, fitted=outcome.fitted, measured=None),
        requester=wanted.requester,
        supersedes=wanted.supersedes,
        prefect_run_id=prefect_run_id,
    )
    candidate = Candidate(
        dataset=study.dataset,
        prepared=study.prepared,
        fitted=outcome.fitted,
        measured=None,
        model=outcome.branch.model(parameters),
        seed=outcome.seed,
    )
    return PlannedRelease(
        plan=release, candidate=candidate, output=Output.of(study.context, wanted), fields=fields_of(facts)
    )
