"""A comparison's branch as a planned release: by the same path as a retrain's, from any branch that has a claim."""

from __future__ import annotations

from mechanisms.privacy.events import Claim
from storage.artifacts import ArtifactRef, digest
from storage.ledger import ReleasePlan
from tasks.branches.branch import CompareParameters, of_round
from tasks.comparing.summary import Outcome
from tasks.fitting.candidate import Candidate
from tasks.parameters import RetrainParameters
from tasks.releasing.claims import FLOATING_POINT, NOT_METHOD, TRUST_MODEL, artifact_digests
from tasks.releasing.plan import PlannedRelease
from tasks.running.provenance import provenance
from tasks.running.stage import Context

CHOSEN_AFTER_COMPARISON = "the choice of this mechanism, after a comparison on held-out records of the same kind"
NOISE_OF_THE_FIT = (
    "drawn once while training, from a secret AES-256 stream keyed by operating system entropy (os.urandom); the key "
    "is kept with the checkpoints alone and goes with them when the fit ends"
)


def planned(
    context: Context,
    parameters: RetrainParameters,
    settings: CompareParameters,
    outcome: Outcome,
    claim: Claim,
    *,
    dataset: ArtifactRef,
    prepared: ArtifactRef,
    measured: ArtifactRef | None,
    prefect_run_id: str | None,
) -> PlannedRelease:
    """The release of one outcome.

    Args:
        parameters: with `fit.seed` as the outcome's.
        measured: risk weights and sensitivity of a SWAG branch, None of a formal one.
    """
    inputs = {"unprotected_inputs": (*claim.unprotected_inputs, CHOSEN_AFTER_COMPARISON)}
    claim = claim.model_copy(update=inputs)
    if outcome.branch.family == "swag":
        assert measured is not None
        plan = PlannedRelease.of_posterior(
            context,
            of_round(
                parameters,
                outcome.branch,
                seed=outcome.seed,
                target=claim.epsilon,
                records_per_unit=claim.max_records_per_unit,
            ),
            dataset=dataset,
            prepared=prepared,
            posterior=outcome.fitted,
            measured=measured,
            prefect_run_id=prefect_run_id,
        )
        return plan.model_copy(update={"plan": plan.plan.model_copy(update={"claim": claim})})
    facts = context.store.figures(dataset)
    method = digest(
        {
            "parameters": parameters.model_dump(mode="json", exclude=NOT_METHOD | {"pseudo_posterior": True}),
            "branch": outcome.branch.name,
            "delta": claim.delta,
            "epsilon": settings.target_epsilon,
            "event": outcome.event.model_dump(mode="json"),
        }
    )
    source, wanted = provenance(), parameters.release
    release = ReleasePlan(
        idempotency_key=digest({"data": facts["fingerprint"], "method": method, "label": wanted.label}),
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
        artifact_digests=artifact_digests(dataset=dataset, fitted=outcome.fitted, measured=None),
        requester=wanted.requester,
        supersedes=wanted.supersedes,
        prefect_run_id=prefect_run_id,
    )
    candidate = Candidate(
        dataset=dataset,
        prepared=prepared,
        fitted=outcome.fitted,
        measured=None,
        model=parameters.model,
        seed=outcome.seed,
    )
    return PlannedRelease(plan=release, candidate=candidate)
