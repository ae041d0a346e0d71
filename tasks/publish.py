"""The one act by which anything leaves: reserve, draw once, bundle, commit.

Each step is found done after a crash: the reservation by the plan's key, the draw by its file, the bundle by its
folder. A draw exists from the moment its file is in place, and nothing depends on it before; the file is put there by a
link that fails if there is one already, so that there is never a second.
"""

from __future__ import annotations

import csv
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from pydantic import BaseModel, ConfigDict

from mechanisms import checkpoint, export, pseudo_posterior, swag
from mechanisms.accounting import claim_of
from mechanisms.entropy import system_normal
from storage import bundle
from storage.artifacts import ArtifactRef, file_digest
from storage.datasets import load_codes
from storage.errors import StorageError
from storage.ledger import Evaluation, Ledger, Policy, ReleasePlan, Row
from storage.ledger.recovery import announce_bundle, announced_bundle, draw_path
from tasks import progress
from tasks.account import ledger_url
from tasks.card import model_card
from tasks.data import load_inputs
from tasks.failures import private_errors
from tasks.parameters import RetrainParameters
from tasks.stage import Context
from tasks.train import build, load_weights


class Released(BaseModel):
    """What a release returns: references and the row's public figures."""

    model_config = ConfigDict(frozen=True)

    release_id: str
    bundle: str
    bundle_digest: str
    ledger_sequence: int
    epsilon: str
    sensitivity: str
    guarantee_kind: str


@dataclass(frozen=True)
class Sources:
    """References that a release draws from."""

    dataset: ArtifactRef
    prepared: ArtifactRef
    posterior: ArtifactRef
    measured: ArtifactRef


def open_ledger(context: Context, parameters: RetrainParameters) -> Ledger:
    """The ledger of this run, under the policy of this run."""
    policy = parameters.release.policy
    loaded = Policy.load(Path(policy).expanduser() if policy else None)
    return Ledger.open(ledger_url(context, parameters), policy=loaded)


# Never retried and never cached by Prefect: a second attempt goes through the ledger's idempotency key instead.
@task(
    name="release",
    task_run_name="release",
    retries=0,
    persist_result=False,
    result_serializer="json",
    cache_policy=NO_CACHE,
    log_prints=False,
)
def release(context: Context, parameters: RetrainParameters, plan: ReleasePlan, sources: Sources) -> Released:
    """Release one draw under `plan`, or go on with, or return, the release that this plan already has.

    Raises:
        BudgetRefused: the budget does not allow it.
        StorageError: the release was burned, or what lies on the disk is not what the ledger recorded.
    """
    with private_errors("release"), context.store.locked(f"release-{plan.idempotency_key[:32]}"):
        progress.started("release")
        started = time.monotonic()
        ledger = open_ledger(context, parameters)
        row = ledger.reserve(plan)
        release_id = _require(row.release_id)
        if row.state == "burned":
            raise StorageError(
                f"release {release_id} of this plan was burned ({row.reason}); choose another release.label"
            )
        reused = row.state == "committed"
        if row.state != "committed":
            progress.report("release", 1, 4)
            draw = _draw_once(context, row, parameters, sources)
            progress.report("release", 2, 4)
            row = _mark_drawn(context, ledger, row, draw, parameters, sources)
            progress.report("release", 3, 4)
        folder, digest = _bundle(context, row, parameters, sources)
        if row.state != "committed":
            row = ledger.commit(release_id, bundle_digest=digest)
        elif row.bundle_digest != digest:
            raise StorageError(
                f"bundle {folder} is not what was committed: ledger row {row.sequence} has another digest"
            )
        figures = {
            "release": release_id,
            "state": row.state,
            "guarantee": row.guarantee_kind,
            "epsilon": str(row.epsilon.normalize()) if row.epsilon is not None else "none",
            "sensitivity": str(row.sensitivity.normalize()) if row.sensitivity is not None else "none",
            "bundle": str(folder),
        }
        progress.finished("release", figures, reused=reused, seconds=time.monotonic() - started)
        return Released(
            release_id=release_id,
            bundle=str(folder),
            bundle_digest=digest,
            ledger_sequence=row.sequence,
            epsilon=figures["epsilon"],
            sensitivity=figures["sensitivity"],
            guarantee_kind=row.guarantee_kind,
        )


def _draw_once(context: Context, row: Row, parameters: RetrainParameters, sources: Sources) -> Path:
    release_id = _require(row.release_id)
    file = draw_path(context.workspace, release_id)
    if file.is_file():
        return file
    if row.state == "drawn":
        raise StorageError(f"release {release_id}: its draw is gone from {file}; restore it, or run ledger recover")
    file.parent.mkdir(parents=True, exist_ok=True)
    posterior = swag.load(context.store.open(sources.posterior), std_scale=parameters.fit.swag.std_scale)
    fresh = file.with_name(f"draw-{os.getpid()}.new")
    try:
        checkpoint.save(fresh, {"theta": swag.sample(posterior, normal=system_normal)}, {"release_id": release_id})
        with suppress(FileExistsError):  # another process of the same plan was first: its draw is the draw
            os.link(fresh, file)
        checkpoint.sync(file.parent)
    finally:
        fresh.unlink(missing_ok=True)
    return file


def _mark_drawn(
    context: Context, ledger: Ledger, row: Row, draw: Path, parameters: RetrainParameters, sources: Sources
) -> Row:
    release_id, digest = _require(row.release_id), file_digest(draw)
    if row.state == "drawn":
        if row.draw_digest != digest:
            raise StorageError(
                f"release {release_id}: the draw on the disk is not the one recorded; run ledger recover"
            )
        return row
    store = context.store
    trained = build(context, parameters.model, store.open(sources.dataset), seed=parameters.fit.seed)
    trained.flat.copy_(checkpoint.load(draw)[0]["theta"])
    records, labels = load_inputs(store.open(sources.prepared), "train")
    weights = load_weights(store.open(sources.measured))
    sensitivity = pseudo_posterior.at_draw(trained, records, labels, weights=weights)
    # as the accountant has it: two Delta for each record that a unit may contribute
    epsilon = 2 * (row.max_records_per_unit or 1) * sensitivity
    return ledger.mark_drawn(release_id, draw_digest=digest, sensitivity=sensitivity, epsilon=epsilon)


def _bundle(context: Context, row: Row, parameters: RetrainParameters, sources: Sources) -> tuple[Path, str]:
    release_id = _require(row.release_id)
    dataset = context.store.open(sources.dataset)
    codes = load_codes(dataset)

    def fill(folder: Path) -> None:
        trained = build(context, parameters.model, dataset, seed=parameters.fit.seed)
        trained.flat.copy_(checkpoint.load(draw_path(context.workspace, release_id))[0]["theta"])
        export.save(trained, folder, codes=[entry.code for entry in codes])
        with (folder / bundle.CODELIST).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["code", "title"])
            writer.writerows([entry.code, entry.title] for entry in codes)
        claimed = statement(row)
        bundle.write_statement(folder, claimed)
        (folder / bundle.CARD).write_text(model_card(claimed, parameters.model, labels=len(codes)), encoding="utf-8")
        announce_bundle(context.workspace, release_id, bundle.bundle_digest(folder))

    standing = context.workspace.bundles / release_id
    left = row.state == "drawn" and standing.is_dir()
    if left and bundle.bundle_digest(standing) != announced_bundle(context.workspace, release_id):
        raise StorageError(f"bundle {standing} is not what was built for this release; remove it and run again")
    allowed = export.MODEL_FILES | export.MODULE_FILES | bundle.OWN_FILES
    return bundle.publish(
        context.workspace.bundles, release_id, allowed=allowed, build=fill, expected=row.bundle_digest
    )


def statement(row: Row) -> dict[str, Any]:
    """The privacy statement of a drawn release: what the partner may read, and nothing from which records follow."""
    told = row.as_json()
    fields = (
        "release_id",
        "population",
        "cohorts",
        "mechanism",
        "guarantee_kind",
        "epsilon",
        "delta",
        "delta_text",
        "sensitivity",
        "epsilon_add_remove",
        "draws",
        "mc_failure_prob",
        "neighbouring_relation",
        "privacy_unit",
        "max_records_per_unit",
        "accountant",
        "assumptions",
        "unprotected_inputs",
        "trust_model",
        "randomness_source",
        "floating_point_caveat",
        "code_commit",
    )
    return {"schema": 1} | {name: told[name] for name in fields} | {"does_not_mean": list(DOES_NOT_MEAN)}


DOES_NOT_MEAN = (
    "Not a proof that no record can be recognised: a model that has memorised its records has small losses, and so a "
    "small epsilon of this kind.",
    "Not comparable with a formal (epsilon, delta): delta is not quantified, epsilon was estimated on these records.",
    "Not a promise about a second draw: each further draw spends its own epsilon.",
)


def record_internal(
    context: Context,
    parameters: RetrainParameters,
    plan: ReleasePlan,
    *,
    evaluated: ArtifactRef,
    measured: Mapping[str, ArtifactRef | None],
) -> None:
    """Write what stays in the house to the ledger: scores on the test half, and each round's epsilon and Delta."""
    copied = plan.model_dump(
        include={
            "population",
            "cohorts",
            "data_fingerprint",
            "records_rounded",
            "trust_model",
            "code_commit",
            "code_dirty",
            "lock_digest",
            "parameters_digest",
            "requester",
            "prefect_run_id",
        }
    )
    ledger, store = open_ledger(context, parameters), context.store
    for name, ref in measured.items():
        if ref is None:
            continue
        figures = store.figures(ref)
        event = plan.event.model_copy(
            update={
                "sensitivity": figures["largest_risk" if name == "base" else "sensitivity"],
                "sensitivity_draws": figures["draws"],
                "reweighted": name == "reweighted",
            }
        )
        ledger.record(
            Evaluation(
                **copied,
                label=f"sensitivity of the {name} posterior, no release",
                idempotency_key=f"sensitivity-{plan.population}-{ref.sha256}",
                artifact_digests={"sensitivity": ref.sha256},
                event=event,
                claim=claim_of(
                    event,
                    delta=None,
                    privacy_unit=plan.claim.privacy_unit,
                    max_records_per_unit=plan.claim.max_records_per_unit,
                    unprotected_inputs=plan.claim.unprotected_inputs,
                ),
            )
        )
    scores = store.figures(evaluated)
    ledger.record(
        Evaluation(
            **copied,
            label="internal evaluation on the test half",
            idempotency_key=f"evaluation-{plan.population}-{evaluated.sha256}",
            artifact_digests={"evaluation": evaluated.sha256},
            details={name: round(value, 6) for name, value in scores.items() if isinstance(value, float)},
        )
    )


def _require(value: str | None) -> str:
    if value is None:
        raise StorageError("the ledger returned a release without an id")
    return value
