"""Releases a plan: reserves, draws once, builds the bundle, commits, seals.

A release resumes after a crash. It finds the reservation by the plan's key, the draw by its file,
and the bundle by its folder.

Anyone with write access to the private workspace could change a file at any moment. Each input is
therefore copied once into this process's own folder (`Context.copying`), so that the bytes that are
hashed are the bytes that are parsed and released. The sample remains in memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from storage.artifacts import ArtifactRef
from storage.bundle import folder as bundle
from storage.bundle.seal import release_key, seal
from storage.egress.allow_list import CONTENT
from storage.errors import Contradiction, DamagedData, InputError, WrongState
from storage.ledger import Ledger, ReleaseRow
from storage.ledger.content import anticipated
from storage.ledger.fold import Sought
from storage.ledger.ledger import require_plan
from storage.ledger.records import RecordSet
from storage.ledger.recovery import (
    announce_bundle,
    announced_bundle,
    draw_path,
)
from storage.ledger.registry import (
    other_population_names,
    population_name_warning,
)
from tasks.bundle import licence, thresholds
from tasks.bundle.deployment import Deployment
from tasks.fitting.candidate import Candidate
from tasks.fitting.ingest import ingest_figures
from tasks.parameters import BundleParameters, LedgerParameters, RetrainParameters
from tasks.releasing import approval, gate
from tasks.releasing.case import ReleaseCase
from tasks.releasing.claims import claim_at, key_of
from tasks.releasing.ledger_access import existing_ledger, open_ledger
from tasks.releasing.ledger_records import save_record_set
from tasks.releasing.plan import PlannedRelease, own_candidate, release_lock
from tasks.running import progress
from tasks.running.failures import private_errors
from tasks.running.stage import Context

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    from storage.json_values import Config
    from tasks.releasing import drawing


class Released(BaseModel, frozen=True):
    """The result of a release: references and the row's public figures."""

    release_id: str
    bundle: str
    bundle_digest: str
    ledger_sequence: int
    epsilon: str
    sensitivity: str
    guarantee_kind: str
    warnings: tuple[str, ...] = ()
    """Sentences on other names under which the records were released, and on
    features that the bundle lacks.
    """


def save_plan(context: Context, planned: PlannedRelease, settings: LedgerParameters) -> ReleaseCase:
    """Attaches a plan to the ledger of this run, adds its selection disclosures and saves it.

    If this run has a policy, it is put in force, also for audit, approval and release.
    """
    ledger = open_ledger(context, settings)
    # guard: test_a_release_without_the_policy_is_held_against_it
    if settings.policy:
        ledger.put_in_force(requester=planned.plan.requester)
    row = ledger.find(planned.plan.idempotency_key)
    # the reservation keeps its plan, whatever another run of the same method would plan now
    reserved = None if row is None else PlannedRelease.reserved(context, row)
    planned = reserved or planned.attach_ledger(ledger, context)
    return ReleaseCase.read(context, planned, ledger, file=planned.save(context))


def open_case(context: Context, file: Path, settings: BundleParameters) -> ReleaseCase:
    """Opens the case of a plan. Refuses a plan that is out of date, before a server starts and
    before anyone is asked. Creates nothing.
    """
    planned = PlannedRelease.load(file.expanduser())
    case = ReleaseCase.open(context, planned, settings, file=file)
    case.require_current(context)
    if case.released is None:
        approval.require_read(case, settings.accept_texts)
    return case


def renew_plan(context: Context, file: Path, settings: LedgerParameters) -> ReleaseCase:
    """Updates a plan's selection from the ledger's rows. Fit and claim are unchanged."""
    case = ReleaseCase.open(context, PlannedRelease.load(file), settings, file=file)
    if case.released is not None:
        raise InputError(
            f"plan {file}: it is already release {case.released.release_id}. "
            "There is nothing to renew",
            kind="already-released",
        )
    case.planned.check(context)
    return save_plan(context, case.planned, settings)


def check_signing(context: Context, settings: BundleParameters) -> None:
    """Refuses settings that could not sign a bundle, or a licence without an SPDX
    name, before training starts.
    """
    licence.resolve(settings.licence)
    if settings.signing_key or os.environ.get("AUTOCODER_SIGNING_KEY"):
        _release_key(context, settings)  # if none is set, the workspace's key is made when needed


def existing_release(
    context: Context,
    parameters: RetrainParameters,
    dataset: ArtifactRef | None,
    method: Config | None,
) -> ReleaseRow | None:
    """Returns the ledger's row of the release that these parameters request, or None. Creates
    nothing.

    Args:
        method: method of the release, or None if the records were not read yet.
    """
    ledger = None if dataset is None else existing_ledger(context, parameters.release)
    if dataset is None or ledger is None or method is None:
        return None
    fingerprint = ingest_figures(context.store, dataset)["fingerprint"]
    return ledger.find(key_of(method, fingerprint, parameters.release.label))


def release(context: Context, case: ReleaseCase, settings: BundleParameters) -> Released:
    """Releases a plan, or resumes or returns the release that the plan already has."""
    with (
        private_errors("release"),
        progress.report_failures("release"),
        context.store.lock(release_lock(case.plan)),
        ExitStack() as files,
    ):
        progress.started("release")
        started = time.monotonic()
        key = _release_key(context, settings)
        case = case.with_ledger(case.ledger.with_key(key))
        case.ledger.require_signer()
        row = case.ledger.find(case.plan.idempotency_key)
        if row is None:
            case.ledger.require_here(case.plan)
        else:
            # guard: test_a_fit_of_epsilon_900_under_the_signature_for_epsilon_1
            require_plan(row, case.digest)
            case = case.with_plan(PlannedRelease.reserved(context, row))
        copied = files.enter_context(context.copying(case.planned.output.public))
        case.planned.check(copied)
        candidate = own_candidate(copied, case.planned)
        settings = case.planned.output.apply_to(settings)
        records = save_record_set(copied, candidate.dataset)
        if row is None:
            row = _reserve(copied, case, candidate, settings, records)
        row, folder, reused = _finish(copied, case, row, candidate, settings, key)
        figures = _figures_of(row, folder)
        progress.finished("release", figures, reused=reused, seconds=time.monotonic() - started)
        return Released(
            release_id=row.release_id,
            bundle=str(folder),
            bundle_digest=str(row.bundle_digest),
            ledger_sequence=row.sequence,
            epsilon=figures["epsilon"],
            sensitivity=figures["sensitivity"],
            guarantee_kind=row.guarantee_kind,
            warnings=(*_name_warnings(case, records), *_threshold_warnings(folder)),
        )


def _reserve(
    own: Context,
    case: ReleaseCase,
    candidate: Candidate,
    settings: BundleParameters,
    records: RecordSet,
) -> ReleaseRow:
    """Charges a plan that no check refuses, after its bundle was rehearsed."""
    from tasks.bundle import fill
    from tasks.releasing import drawing

    plan, ledger = case.plan, case.ledger
    case.require_current(own)
    approval.require_read(case, settings.accept_texts)
    drawing.require_undrawn(own, plan)
    audit = gate.check(case)
    # a plan that the budget refuses need not be rehearsed
    charges = ledger.quote(plan, records=records)
    expected = anticipated(plan, audit=audit)
    deployment = Deployment(expected, charges, case.policy.registry, repeated=False)
    # guard: test_a_title_that_nobody_signed
    fill.rehearse(own, expected, candidate, settings, case.planned.output.texts, deployment)
    case.planned.save_reserved(own)
    return ledger.reserve(
        plan,
        plan_digest=case.digest,
        policy_digest=case.policy.digest,
        decisions=case.approvals.decisions,
        audit=audit,
        records=records,
    )


def _finish(
    own: Context,
    case: ReleaseCase,
    row: ReleaseRow,
    candidate: Candidate,
    settings: BundleParameters,
    key: EllipticCurvePrivateKey,
) -> tuple[ReleaseRow, Path, bool]:
    """Draws if nothing was drawn yet, then bundles, commits and seals. Returns the row, the
    bundle's folder, and whether it was committed before.
    """
    from tasks.releasing import drawing

    ledger, planned, release_id = case.ledger, case.planned, row.release_id
    if row.state == "burned":
        raise WrongState(
            f"release {release_id} of this plan was burned ({row.reason}). Choose another "
            "release.label",
            kind="burned",
        )
    if row.state == "reserved":
        # guard: test_an_audit_between_reservation_and_draw
        gate.check(case.reread(own))
    reused, drawn = row.state == "committed", None
    if not reused:
        ledger.require_drawable(release_id)
        progress.report("release", 1, 4)
        drawn = drawing.draw_once(own, row, planned, key)
        progress.report("release", 2, 4)
        row = _mark_drawn(own, ledger, row, drawn, planned, candidate)
        progress.report("release", 3, 4)
    file = draw_path(own.workspace, release_id)
    saved = partial(drawing.saved_draw, own, file, row, planned, key)
    recorded = ledger.state().release(release_id).drawn or row
    folder, digest = _bundle(
        own,
        row,
        planned,
        candidate,
        saved if drawn is None else lambda: drawn,
        settings,
        Deployment.of(ledger, release_id),
        drawn_on=recorded.recorded_at[:10],
    )
    if not reused:
        row = ledger.commit(release_id, bundle_digest=digest, plan_digest=case.digest)
    elif row.bundle_digest != digest:
        raise DamagedData(
            f"bundle {folder} is not the committed one: ledger row {row.sequence} has another "
            "digest",
            kind="another-bundle",
        )
    seal(folder, row, None if settings.unsigned else key)
    return row, folder, reused


def _figures_of(row: ReleaseRow, folder: Path) -> dict[str, str]:
    return {
        "release": row.release_id,
        "state": row.state,
        "guarantee": row.guarantee_kind,
        "epsilon": _number(row.epsilon),
        "sensitivity": _number(row.sensitivity),
        "bundle": str(folder),
    }


def _number(value: Decimal | None) -> str:
    return "none" if value is None else str(value.normalize())


def _name_warnings(case: ReleaseCase, records: RecordSet) -> list[str]:
    overlapping = case.ledger.overlaps(Sought.of(case.plan), records=records)
    names = other_population_names(case.plan.population, overlapping)
    return [population_name_warning(names, case.plan.population)] if names else []


def _threshold_warnings(folder: Path) -> list[str]:
    file = folder / bundle.THRESHOLDS
    return thresholds.warnings(thresholds.read_thresholds(file) if file.is_file() else None)


def _mark_drawn(
    context: Context,
    ledger: Ledger,
    row: ReleaseRow,
    draw: drawing.Draw,
    planned: PlannedRelease,
    candidate: Candidate,
) -> ReleaseRow:
    if row.state == "drawn":
        return row
    plan = planned.plan
    sensitivity = candidate.sensitivity_at(context, draw.sample.theta)
    epsilon = None if sensitivity is None else claim_at(sensitivity, plan.event, plan.claim).epsilon
    return ledger.mark_drawn(
        row.release_id,
        draw_digest=draw.digest,
        plan_digest=planned.digest,
        sensitivity=sensitivity,
        epsilon=epsilon,
    )


def _release_key(context: Context, settings: BundleParameters) -> EllipticCurvePrivateKey:
    machine_key = os.environ.get("AUTOCODER_SIGNING_KEY")
    if machine_key and settings.signing_key not in (None, machine_key):
        raise Contradiction(
            "signing_key: the key of this machine is set by AUTOCODER_SIGNING_KEY. Leave the "
            "setting empty",
            kind="signing-key-fixed",
        )
    return release_key(
        context.workspace, None if settings.signing_key is None else Path(settings.signing_key)
    )


def _bundle(
    context: Context,
    row: ReleaseRow,
    planned: PlannedRelease,
    candidate: Candidate,
    draw: Callable[[], drawing.Draw],
    settings: BundleParameters,
    deployment: Deployment | None,
    *,
    drawn_on: str,
) -> tuple[Path, str]:
    from tasks.bundle import fill

    release_id = row.release_id

    def build(folder: Path) -> None:
        sample = draw().sample
        fill.fill(
            folder,
            context,
            row,
            candidate,
            sample.theta,
            settings,
            planned.output.texts,
            deployment,
            table=sample.table,
            drawn_on=drawn_on,
        )
        announce_bundle(context.workspace, release_id, bundle.bundle_digest(folder))

    earlier = context.workspace.bundles / release_id
    is_leftover = row.state == "drawn" and earlier.is_dir()
    if is_leftover and bundle.bundle_digest(earlier) != announced_bundle(
        context.workspace, release_id
    ):
        raise DamagedData(
            f"bundle {earlier} was not built for this release. Remove it and run again",
            kind="bundle-of-another-build",
        )
    return bundle.publish(
        context.workspace.bundles,
        release_id,
        allowed=CONTENT,
        build=build,
        expected=row.bundle_digest,
    )
