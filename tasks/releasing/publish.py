"""Releases a plan: reserves, draws once, builds the bundle, commits, seals.

A release resumes after a crash: it finds the reservation by the plan's key, the draw by its file,
the bundle by its folder. A draw exists once its file is in place, and nothing depends on it
earlier. A link puts the file there and fails if one exists, so that there is never a second.

Whoever writes the private workspace may change a file at any moment. So each input is read once,
into a folder of this process (`Context.copying`): what is digested there is what is parsed and
released. The sample stays in memory, and one from before a crash counts by the digest in the
ledger's row, or by this machine's signature.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rfc8785
from pydantic import BaseModel

from mechanisms.model import checkpoint
from mechanisms.privacy.events import ParallelEvent
from storage.artifacts import ArtifactRef
from storage.bundle import folder as bundle
from storage.bundle.seal import release_key, seal
from storage.codelist import groups
from storage.datasets import load_codes
from storage.durable import read_regular, write_atomically
from storage.egress.allow_list import CONTENT
from storage.errors import InputError, StorageError
from storage.ledger import Ledger, ReleasePlan, ReleaseRow, heads
from storage.ledger.content import anticipated
from storage.ledger.fold import Sought
from storage.ledger.ledger import require_plan
from storage.ledger.recovery import (
    BEGUN_DRAW,
    FRESH_DRAW,
    announce_bundle,
    announced_bundle,
    draw_path,
    draws,
)
from storage.ledger.registry import (
    other_population_names,
    population_name_warning,
)
from tasks.bundle import fill, licence, thresholds
from tasks.bundle.deployment import Deployment
from tasks.fitting.candidate import Candidate
from tasks.parameters import BundleParameters, LedgerParameters, RetrainParameters
from tasks.releasing import approval, gate
from tasks.releasing.claims import claim_at, key_of
from tasks.releasing.gate import CheckedPlan
from tasks.releasing.ledger_access import existing_ledger, open_ledger
from tasks.releasing.ledger_records import save_record_set
from tasks.releasing.plan import PlannedRelease, own_candidate, release_lock
from tasks.releasing.samples import Sample
from tasks.running import progress
from tasks.running.failures import private_errors
from tasks.running.stage import Context

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey


_MOST_OF_A_DRAW = 16 << 30
"""Bytes of a sample's file."""


class Released(BaseModel, frozen=True):
    """Holds what a release returns: references and the row's public figures."""

    release_id: str
    bundle: str
    bundle_digest: str
    ledger_sequence: int
    epsilon: str
    sensitivity: str
    guarantee_kind: str
    warnings: tuple[str, ...] = ()
    """In sentences: other names that the records were released under, and what partners will miss
    in the bundle.
    """


def save_plan(
    context: Context, planned: PlannedRelease, settings: LedgerParameters
) -> tuple[PlannedRelease, Path]:
    """Binds a plan to the ledger of this run, adds its selection disclosures and saves it; returns
    plan and file.

    A policy given to this run is put in force, for audit, approval and release too.
    """
    ledger = open_ledger(context, settings)
    # guard: test_a_release_without_the_policy_is_held_against_it
    if settings.policy:
        ledger.put_in_force(requester=planned.plan.requester)
    row = ledger.find(planned.plan.idempotency_key)
    if (
        row is not None
    ):  # the reservation has its plan, whatever another run of the same method would plan now
        reserved = PlannedRelease.reserved(context, row)
        return reserved, reserved.save(context)
    planned = planned.bind(ledger, context)
    return planned, planned.save(context)


def require_current(context: Context, planned: PlannedRelease, settings: LedgerParameters) -> None:
    """Refuses a plan that is out of date, before a server starts and anyone is asked; creates no
    ledger.
    """
    ledger = existing_ledger(context, settings)
    if ledger is not None:
        checked = CheckedPlan.of(planned, ledger)
        checked.require_current(context)
        if checked.released is None:
            approval.require_read(checked, getattr(settings, "accept_texts", None))


def renew_plan(
    context: Context, file: Path, settings: LedgerParameters
) -> tuple[PlannedRelease, Path]:
    """States a plan's selection again, from the ledger's rows; fit and claim stay. Returns plan and
    file.
    """
    planned = PlannedRelease.load(file)
    ledger = open_ledger(context, settings)
    released = ledger.find(planned.plan.idempotency_key)
    if released is not None:
        raise InputError(
            f"plan {file}: it is release {released.release_id} already. There is nothing to renew"
        )
    planned.check(context)
    return save_plan(context, planned, settings)


def check_signing(context: Context, settings: BundleParameters) -> None:
    """Refuses settings that could not sign a bundle, or a licence without an SPDX name, before
    training starts.
    """
    licence.resolve(settings.licence)
    if settings.signing_key or os.environ.get("AUTOCODER_SIGNING_KEY"):
        _release_key(context, settings)  # without one, the workspace's key is made when needed


def existing_release(
    context: Context,
    parameters: RetrainParameters,
    dataset: ArtifactRef | None,
    method: Mapping[str, Any] | None,
) -> ReleaseRow | None:
    """Returns the ledger's row of the release that these parameters request, None without one.
    Creates nothing.

    Args:
        method: of the release; None where the records were not read yet.
    """
    ledger = None if dataset is None else existing_ledger(context, parameters.release)
    if dataset is None or ledger is None or method is None:
        return None
    fingerprint = context.store.figures(dataset)["fingerprint"]
    return ledger.find(key_of(method, fingerprint, parameters.release.label))


def release(context: Context, planned: PlannedRelease, settings: BundleParameters) -> Released:
    """Releases a plan, or resumes or returns the release that the plan already has."""
    with (
        private_errors("release"),
        progress.report_failures("release"),
        context.store.lock(release_lock(planned.plan)),
        ExitStack() as files,
    ):
        progress.started("release")
        started = time.monotonic()
        key = _release_key(context, settings)
        ledger = open_ledger(context, settings, key=key)
        ledger.require_signer()
        checked = CheckedPlan.of(planned, ledger)
        row = checked.released
        if row is None:
            ledger.require_here(planned.plan)
        else:
            # guard: test_a_fit_of_epsilon_900_under_the_signature_for_epsilon_1
            require_plan(row, planned.digest)
            planned = PlannedRelease.reserved(context, row)
        plan = planned.plan
        own = files.enter_context(context.copying(planned.output.public))
        planned.check(own)
        candidate = own_candidate(own, planned)
        settings = planned.output.apply_to(settings)
        if row is None:
            checked.require_current(own)
            approval.require_read(checked, settings.accept_texts)
            _require_undrawn(context, plan)
            status = approval.approval_status(context, checked)
            records = save_record_set(own, candidate.dataset)
            audit = gate.check(checked)
            charges = ledger.quote(
                plan, records=records
            )  # what the budget refuses need not be rehearsed
            expected, stated = anticipated(plan, audit=audit), checked.policy.registry
            deployment = Deployment(expected, charges, stated, repeated=False)
            # guard: test_a_title_that_nobody_signed
            fill.rehearse(own, expected, candidate, settings, planned.output.texts, deployment)
            planned.keep(context)
            row = ledger.reserve(
                plan,
                plan_digest=planned.digest,
                decisions=status.decisions,
                audit=audit,
                records=records,
            )
        release_id = row.release_id
        if row.state == "burned":
            raise StorageError(
                f"release {release_id} of this plan was burned ({row.reason}). Choose another "
                "release.label"
            )
        reused = row.state == "committed"
        if row.state == "reserved":
            # guard: test_an_audit_between_reservation_and_draw
            gate.check(checked)
        drawn: Draw | None = None
        if row.state != "committed":
            ledger.require_drawable(release_id)
            progress.report("release", 1, 4)
            drawn = _draw_once(own, row, planned, key)
            progress.report("release", 2, 4)
            row = _mark_drawn(own, ledger, row, drawn, planned, candidate)
            progress.report("release", 3, 4)
        deployment = Deployment.of(ledger, release_id)

        saved = partial(
            _saved_draw, own, draw_path(context.workspace, release_id), row, planned, key
        )
        draw = saved if drawn is None else lambda: drawn
        recorded = ledger.state().release(release_id).drawn or row
        drawn_on = recorded.recorded_at[:10]
        folder, digest = _bundle(
            own, row, planned, candidate, draw, settings, deployment, drawn_on=drawn_on
        )
        if row.state != "committed":
            row = ledger.commit(release_id, bundle_digest=digest, plan_digest=planned.digest)
        elif row.bundle_digest != digest:
            raise StorageError(
                f"bundle {folder} is not the committed one: ledger row {row.sequence} has "
                "another digest"
            )
        seal(folder, row, None if settings.unsigned else key)
        figures = {
            "release": release_id,
            "state": row.state,
            "guarantee": row.guarantee_kind,
            "epsilon": str(row.epsilon.normalize()) if row.epsilon is not None else "none",
            "sensitivity": str(row.sensitivity.normalize())
            if row.sensitivity is not None
            else "none",
            "bundle": str(folder),
        }
        records = save_record_set(own, candidate.dataset)
        named = other_population_names(
            plan.population, ledger.overlaps(Sought.of(plan), records=records)
        )
        warnings = [
            *([population_name_warning(named, plan.population)] if named else []),
            *_threshold_warnings(folder),
        ]
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


def _threshold_warnings(folder: Path) -> list[str]:
    file = folder / bundle.THRESHOLDS
    return thresholds.warnings(thresholds.read_thresholds(file) if file.is_file() else None)


def _require_undrawn(context: Context, plan: ReleasePlan) -> None:
    for draw in draws(context.workspace):
        if checkpoint.description(draw).get("plan") == plan.idempotency_key:
            raise StorageError(
                f"plan {plan.idempotency_key[:16]}: its sample is in {draw.parent}, but this "
                "ledger has no release of "
                "it. Give the ledger that charged it, or choose another release.label"
            )


@dataclass(frozen=True)
class Draw:
    """A release's sample, in memory, and the digest of its file."""

    sample: Sample
    digest: str


def _draw_once(
    context: Context,
    row: ReleaseRow,
    planned: PlannedRelease,
    key: EllipticCurvePrivateKey,
) -> Draw:
    """Returns the sample of a release: the one on the disk, or the first one.

    A note is on the disk before a sample is taken or the noise of a table. Whoever finds the note
    without the sample takes no second one: the first may have been read in the unfinished file. A
    fit that is released as it is, without a table, needs no note, since taking its parameters again
    gives the same.
    """
    release_id = row.release_id
    file = draw_path(context.workspace, release_id)
    fresh, begun = file.with_name(FRESH_DRAW), file.with_name(BEGUN_DRAW)
    if file.is_file() or row.state != "reserved":
        draw = _saved_draw(context, file, row, planned, key)
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        draw = _unlinked_draw(context, fresh, row, planned, key)
        if draw is None:
            sample = Sample.draw(context, planned, note=partial(_note, begun, release_id))
            content = _signed_draw(sample, row, planned, key)
            write_atomically(fresh, content)
            draw = Draw(sample, hashlib.sha256(content).hexdigest())
        try:
            os.link(fresh, file)
        except FileExistsError:
            raise StorageError(
                f"release {release_id}: another program wrote {file}. Run `autocoder ledger recover`"
            ) from None
        checkpoint.sync(file.parent)
    fresh.unlink(missing_ok=True)
    begun.unlink(missing_ok=True)
    return draw


def _note(begun: Path, release_id: str) -> None:
    try:
        # guard: test_a_sample_that_was_lost_is_not_taken_again
        begun.open("x").close()
    except FileExistsError:
        raise StorageError(
            f"release {release_id}: the run that sampled it was killed before the sample was on "
            "the disk, and nothing is sampled twice. Run `autocoder ledger recover`, which burns "
            "it, and plan again under another release.label"
        ) from None
    checkpoint.sync(begun)
    checkpoint.sync(begun.parent)


def _described(row: ReleaseRow, planned: PlannedRelease) -> dict[str, Any]:
    return {
        "release_id": row.release_id,
        "plan": planned.plan.idempotency_key,
        "plan_digest": planned.digest,
    }


def _vouched(sample: Sample, described: Mapping[str, Any]) -> bytes:
    """Returns the bytes that a releasing worker signs of a sample."""
    values = {
        name: hashlib.sha256(tensor.detach().cpu().contiguous().numpy().tobytes()).hexdigest()
        for name, tensor in sample.tensors.items()
    }
    return rfc8785.dumps({"statement": "autocoder draw", **values, **described})


def _signed_draw(
    sample: Sample, row: ReleaseRow, planned: PlannedRelease, key: EllipticCurvePrivateKey
) -> bytes:
    described = _described(row, planned)
    signature = heads.sign_bytes(_vouched(sample, described), key)
    return checkpoint.to_bytes(sample.tensors, described | {"signature": signature})


def _unlinked_draw(
    context: Context,
    fresh: Path,
    row: ReleaseRow,
    planned: PlannedRelease,
    key: EllipticCurvePrivateKey,
) -> Draw | None:
    if not fresh.is_file():
        return None
    return _saved_draw(context, fresh, row, planned, key)


def _saved_draw(
    context: Context,
    file: Path,
    row: ReleaseRow,
    planned: PlannedRelease,
    key: EllipticCurvePrivateKey,
) -> Draw:
    """Reads a sample once. It counts by its digest in the ledger's row; before there is one, a
    sample counts by the signature of this machine's key, and a fit without a table by its
    parameters.
    """
    release_id = row.release_id
    if not file.is_file():
        raise StorageError(
            f"release {release_id}: its sample is gone from {file}. Restore it, or run "
            "`autocoder ledger recover`"
        )
    content = read_regular(file, _MOST_OF_A_DRAW)
    digest = hashlib.sha256(content).hexdigest()
    # guard: test_a_sample_that_is_changed_after_it_was_recorded
    if row.draw_digest is not None and digest != row.draw_digest:
        raise StorageError(
            f"release {release_id}: the sample on the disk is not the recorded one. Run "
            "`autocoder ledger recover`"
        )
    try:
        tensors, described = checkpoint.from_bytes(content)
        sample = Sample.of(tensors, groups=_groups(context, planned))
    except (ValueError, KeyError):
        sample, described = None, {}
    expected = _described(row, planned)
    if sample is None or {name: described.get(name) for name in expected} != expected:
        raise StorageError(
            f"release {release_id}: {file} is not a sample of the reserved plan. Run "
            "`autocoder ledger recover`"
        )
    # guard: test_weights_of_another_fit_where_the_draw_lies
    planned.candidate.require_draw(context, sample.theta)
    signature, public = str(described.get("signature")), key.public_key()
    random = planned.candidate.is_sampled or sample.table is not None
    recorded = row.draw_digest is not None or not random
    # guard: test_a_sample_that_another_program_put_there
    if not recorded and not heads.verify_bytes(_vouched(sample, expected), signature, public):
        raise StorageError(
            f"release {release_id}: this machine's key did not sign the sample {file}. Run "
            "`autocoder ledger recover`"
        )
    return Draw(sample, digest)


def _groups(context: Context, planned: PlannedRelease) -> int | None:
    if not isinstance(planned.plan.event, ParallelEvent):
        return None
    codes = load_codes(context.store.open(planned.candidate.dataset))
    return len(groups(codes)[0])


def _mark_drawn(
    context: Context,
    ledger: Ledger,
    row: ReleaseRow,
    draw: Draw,
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
        raise InputError(
            "signing_key: the key of this machine is set by AUTOCODER_SIGNING_KEY. Leave the "
            "setting empty"
        )
    return release_key(
        context.workspace, None if settings.signing_key is None else Path(settings.signing_key)
    )


def _bundle(
    context: Context,
    row: ReleaseRow,
    planned: PlannedRelease,
    candidate: Candidate,
    draw: Callable[[], Draw],
    settings: BundleParameters,
    deployment: Deployment | None,
    *,
    drawn_on: str,
) -> tuple[Path, str]:
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
    left = row.state == "drawn" and earlier.is_dir()
    if left and bundle.bundle_digest(earlier) != announced_bundle(context.workspace, release_id):
        raise StorageError(
            f"bundle {earlier} is not what was built for this release. Remove it and run again"
        )
    return bundle.publish(
        context.workspace.bundles,
        release_id,
        allowed=CONTENT,
        build=build,
        expected=row.bundle_digest,
    )
