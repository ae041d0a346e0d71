"""The one act by which anything leaves: reserve, draw once, bundle, commit, seal.

Each step is found done after a crash: the reservation by the plan's key, the draw by its file, the bundle by its
folder. A draw exists from the moment its file is in place, and nothing depends on it before; the file is put there by a
link that fails if there is one already, so that there is never a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from mechanisms.model import checkpoint
from mechanisms.privacy.claims import claim_of
from storage.artifacts import ArtifactRef, file_digest
from storage.bundle import folder as bundle
from storage.bundle.seal import seal, workspace_signer
from storage.bundle.signing import Signer
from storage.datasets import load_spaces
from storage.egress.allowed import content_of, fields_in
from storage.errors import InputError, StorageError
from storage.ledger import Evaluation, Ledger, Policy, ReleasePlan, Row
from storage.ledger.content import anticipated
from storage.ledger.journal import journals_of
from storage.ledger.records import SAMPLE
from storage.ledger.recovery import announce_bundle, announced_bundle, draw_path, draws
from storage.ledger.siblings import Sibling, other_names, others_names, siblings
from tasks.bundle import fill, licence, thresholds
from tasks.fitting.candidate import Candidate
from tasks.parameters import BundleParameters, LedgerParameters, RetrainParameters
from tasks.releasing import approval, gate, selection
from tasks.releasing.claims import claim_at, ledger_url, release_key, swag_event
from tasks.releasing.plan import PlannedRelease
from tasks.releasing.records import record_set
from tasks.running import progress
from tasks.running.failures import private_errors
from tasks.running.stage import Context


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
    warnings: tuple[str, ...] = ()
    """In sentences: other names that the records were released under, and what partners will miss in the bundle."""


def open_ledger(context: Context, settings: LedgerParameters) -> Ledger:
    """The ledger of this run, under the policy of this run.

    Raises:
        ForeignLedger: it is not the one that this workspace used before, or it went back.
    """
    loaded = Policy.load(Path(settings.policy).expanduser() if settings.policy else None)
    ledger = Ledger.open(ledger_url(context, settings), policy=loaded, journals=journals_of(context.workspace))
    if draws(context.workspace) and ledger.mark() is None:
        raise StorageError(
            f"ledger {ledger.database.name} is empty, and releases were drawn in this workspace; give the ledger that "
            "they were charged to"
        )
    return ledger


def keep_plan(context: Context, planned: PlannedRelease, settings: LedgerParameters) -> tuple[PlannedRelease, Path]:
    """Put a plan under the ledger of this run, where alone it is released, with what that knows of its choice, and save
    it; return plan and file. A policy that this run was given holds from here on: for audit, approval and release too.
    """
    ledger = open_ledger(context, settings)
    if settings.policy:
        ledger.put_in_force(requester=planned.plan.requester)
    kept = selection.stated(ledger, context, planned).under(ledger, context)
    return kept, kept.save(context)


def check(context: Context, settings: BundleParameters) -> None:
    """Refuse before anybody waits or trains what could not sign a bundle, or a licence that cannot be read.

    Raises:
        InputError: names the field.
        UnsoundBundle: the certificate has expired.
    """
    if settings.licence is not None and settings.licence not in licence.SPDX:
        licence.read(settings.licence)
    if settings.signing_key or os.environ.get("AUTOCODER_SIGNING_KEY"):
        _signer(context, settings)  # else the workspace's own, which is made when needed


def standing(context: Context, parameters: RetrainParameters, dataset: ArtifactRef | None) -> Row | None:
    """The ledger's row of the release that these parameters ask for, None where there is none yet. Creates nothing."""
    url = ledger_url(context, parameters.release)
    if dataset is None or (url.startswith("sqlite:///") and not Path(url.removeprefix("sqlite:///")).is_file()):
        return None
    key = release_key(parameters, context.store.figures(dataset)["fingerprint"])
    return open_ledger(context, parameters.release).find(key)


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
def release(context: Context, planned: PlannedRelease, settings: BundleParameters) -> Released:
    """Release what is planned, or go on with, or return, the release that this plan already has.

    Raises:
        BudgetRefused: the budget does not allow it, or an audit contradicts the claim.
        StorageError: the release was burned, or what lies on the disk is not what the ledger recorded.
    """
    plan, candidate = planned.plan, planned.candidate
    with (
        private_errors("release"),
        progress.failures_told("release"),
        context.store.locked(f"release-{plan.idempotency_key[:32]}"),
    ):
        progress.started("release")
        started = time.monotonic()
        ledger = open_ledger(context, settings)
        row = ledger.release_of(plan)
        if row is None:
            ledger.require_here(plan)
        planned.check(context)
        signer, settings = _signer(context, settings), planned.output.settled(context, settings)
        if row is None:
            selection.check(ledger, context, planned)
            _require_undrawn(context, plan)
            stands = approval.standing(context, ledger, planned)
            records = record_set(context, candidate.dataset)
            audit = gate.check(ledger, planned, records=records)
            ledger.quote(plan, records=records)  # what the budget refuses need not be rehearsed
            others = siblings(ledger, plan, records=records)
            fill.rehearse(context, anticipated(plan, audit=audit), candidate, settings, others)
            row = ledger.reserve(
                plan, plan_digest=planned.digest, decisions=stands.decisions, audit=audit, records=records
            )
        release_id = _require(row.release_id)
        if row.state == "burned":
            raise StorageError(
                f"release {release_id} of this plan was burned ({row.reason}); choose another release.label"
            )
        reused = row.state == "committed"
        if row.state != "committed":
            progress.report("release", 1, 4)
            draw = _draw_once(context, row, plan, candidate)
            progress.report("release", 2, 4)
            row = _mark_drawn(context, ledger, row, draw, planned)
            progress.report("release", 3, 4)
        earlier = _earlier(context, ledger, plan, row, candidate)
        folder, digest = _bundle(context, row, candidate, settings, earlier)
        if row.state != "committed":
            row = ledger.commit(release_id, bundle_digest=digest)
        elif row.bundle_digest != digest:
            raise StorageError(
                f"bundle {folder} is not what was committed: ledger row {row.sequence} has another digest"
            )
        seal(folder, row, signer)
        figures = {
            "release": release_id,
            "state": row.state,
            "guarantee": row.guarantee_kind,
            "epsilon": str(row.epsilon.normalize()) if row.epsilon is not None else "none",
            "sensitivity": str(row.sensitivity.normalize()) if row.sensitivity is not None else "none",
            "bundle": str(folder),
        }
        named = others_names(plan, earlier)
        warnings = [*([other_names(named, plan.population)] if named else []), *_of_thresholds(folder)]
        progress.finished("release", figures, reused=reused, seconds=time.monotonic() - started)
        return Released(
            release_id=release_id,
            bundle=str(folder),
            bundle_digest=digest,
            ledger_sequence=row.sequence,
            epsilon=figures["epsilon"],
            sensitivity=figures["sensitivity"],
            guarantee_kind=row.guarantee_kind,
            warnings=tuple(warnings),
        )


def _of_thresholds(folder: Path) -> list[str]:
    """What is to be said of a bundle's thresholds."""
    said = []
    for name in fields_in(folder) or ("",):
        file = folder / name / bundle.THRESHOLDS
        known = thresholds.warnings(thresholds.read_thresholds(file) if file.is_file() else None)
        said += [f"{name}: {line}" if name else line for line in known]
    return said


def _require_undrawn(context: Context, plan: ReleasePlan) -> None:
    """Refuse a plan that the ledger does not know and that was drawn here all the same: another ledger paid for it."""
    for draw in draws(context.workspace):
        if checkpoint.description(draw).get("plan") == plan.idempotency_key:
            raise StorageError(
                f"plan {plan.idempotency_key[:16]}: its draw lies in {draw.parent}, and this ledger has no release of "
                "it; give the ledger that it was charged to, or choose another release.label"
            )


def _draw_once(context: Context, row: Row, plan: ReleasePlan, candidate: Candidate) -> Path:
    release_id = _require(row.release_id)
    file = draw_path(context.workspace, release_id)
    # One name for all: whoever died between writing it and linking it has drawn, and this is the draw.
    fresh = file.with_name("draw.new")
    if not file.is_file():
        if row.state == "drawn":
            raise StorageError(f"release {release_id}: its draw is gone from {file}; restore it, or run ledger recover")
        file.parent.mkdir(parents=True, exist_ok=True)
        if not fresh.is_file():
            described = {"release_id": release_id, "plan": plan.idempotency_key}
            checkpoint.save(fresh, {"theta": candidate.take(context)}, described)
        with suppress(FileExistsError):
            os.link(fresh, file)
        checkpoint.sync(file.parent)
    fresh.unlink(missing_ok=True)
    return file


def _mark_drawn(context: Context, ledger: Ledger, row: Row, draw: Path, planned: PlannedRelease) -> Row:
    release_id, digest = _require(row.release_id), file_digest(draw)
    if row.state == "drawn":
        if row.draw_digest != digest:
            raise StorageError(
                f"release {release_id}: the draw on the disk is not the one recorded; run ledger recover"
            )
        return row
    sensitivity = planned.candidate.sensitivity_at(context, _theta(draw))
    if sensitivity is None:
        return ledger.mark_drawn(release_id, draw_digest=digest)
    epsilon = claim_at(sensitivity, planned.plan.event, planned.plan.claim).epsilon
    return ledger.mark_drawn(release_id, draw_digest=digest, sensitivity=sensitivity, epsilon=epsilon)


def _signer(context: Context, settings: BundleParameters) -> Signer | None:
    """Who signs: nobody, the machine's key ($AUTOCODER_SIGNING_KEY), the key named, or the workspace's own."""
    if settings.unsigned:
        return None
    own = os.environ.get("AUTOCODER_SIGNING_KEY")
    if own and settings.signing_key not in (None, own):
        raise InputError("signing_key: the key of this machine is the one in AUTOCODER_SIGNING_KEY; leave it empty")
    key = own or settings.signing_key
    if key is None:
        return workspace_signer(context.workspace.private, context.workspace.home)
    certificate = settings.signing_certificate
    signer = Signer(
        Path(key).expanduser(),
        None if certificate is None else Path(certificate).expanduser(),
        tuple(Path(name).expanduser() for name in settings.certificate_chain),
    )
    signer.check()
    return signer


def _earlier(
    context: Context, ledger: Ledger, plan: ReleasePlan, row: Row, candidate: Candidate
) -> tuple[Sibling, ...]:
    """Other releases of these records that came before this one: the same whenever its bundle is built."""
    reserved = next(one for one in ledger.history(_require(row.release_id)) if one.state == "reserved")
    return siblings(ledger, plan, records=record_set(context, candidate.dataset), before=reserved.sequence)


def _bundle(
    context: Context, row: Row, candidate: Candidate, settings: BundleParameters, others: Sequence[Sibling]
) -> tuple[Path, str]:
    release_id = _require(row.release_id)

    def build(folder: Path) -> None:
        theta = _theta(draw_path(context.workspace, release_id))
        fill.fill(folder, context, row, candidate, theta, settings, others)
        announce_bundle(context.workspace, release_id, bundle.bundle_digest(folder))

    standing = context.workspace.bundles / release_id
    left = row.state == "drawn" and standing.is_dir()
    if left and bundle.bundle_digest(standing) != announced_bundle(context.workspace, release_id):
        raise StorageError(f"bundle {standing} is not what was built for this release; remove it and run again")
    spaces = load_spaces(context.store.open(candidate.dataset))
    allowed = content_of([name for name in spaces if name])
    return bundle.publish(
        context.workspace.bundles, release_id, allowed=allowed, build=build, expected=row.bundle_digest
    )


def _theta(draw: Path) -> Tensor:
    return checkpoint.load(draw)[0]["theta"]


def record_internal(
    context: Context,
    parameters: RetrainParameters,
    plan: ReleasePlan,
    *,
    dataset: ArtifactRef,
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
    ledger, store = open_ledger(context, parameters.release), context.store
    sample = {SAMPLE: selection.sample_of(context, dataset)}
    for name, ref in measured.items():
        if ref is None:
            continue
        figures = store.figures(ref)
        moments = plan.event.model_dump(include={"snapshots", "rank"})
        event = swag_event(parameters, name, **moments, figures=figures)
        claim = claim_of(
            event,
            delta=None,
            privacy_unit=plan.claim.privacy_unit,
            max_records_per_unit=plan.claim.max_records_per_unit,
            unprotected_inputs=plan.claim.unprotected_inputs,
        )
        ledger.record(
            Evaluation(
                **copied,
                label=f"sensitivity of the {name} posterior, no release",
                idempotency_key=f"sensitivity-{plan.population}-{ref.sha256}",
                artifact_digests={"posterior": store.recipe(ref)["inputs"]["posterior"], "sensitivity": ref.sha256},
                details=sample,
                event=event,
                claim=claim,
            )
        )
        shown = {"epsilon": claim.epsilon, "guarantee": claim.guarantee_kind, "unit": claim.privacy_unit}
        progress.finished(f"claim ({name})", shown, reused=False, seconds=0.0)
    scores = store.figures(evaluated)
    ledger.record(
        Evaluation(
            **copied,
            label="internal evaluation on the test half",
            idempotency_key=f"evaluation-{plan.population}-{evaluated.sha256}",
            artifact_digests={"evaluation": evaluated.sha256},
            # a share of 0 comes back from a manifest as an integer
            details={n: round(float(v), 6) for n, v in scores.items() if isinstance(v, int | float)} | sample,
        )
    )


def _require(value: str | None) -> str:
    if value is None:
        raise StorageError("the ledger returned a release without an id")
    return value
