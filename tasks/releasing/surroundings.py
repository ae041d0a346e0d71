"""Reads what surrounds a plan in its workspace: its records, code lists, units and bundle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mechanisms.errors import MechanismError
from storage.bundle.stated import AccuracyFigures, read_stated
from storage.errors import Fault, InputError, StorageError
from storage.ingest import Units, units_of
from storage.ledger import BudgetRefused
from storage.ledger.records import RecordSet
from storage.paths import Workspace
from tasks.releasing import code_lists, gate
from tasks.releasing.case import ReleaseCase
from tasks.releasing.code_lists import CodeListVerdict
from tasks.releasing.ledger_records import save_record_set
from tasks.running.stage import Context


@dataclass(frozen=True)
class Surroundings:
    """What the workspace of a plan tells an officer beside ledger and plan."""

    records: RecordSet | None = None
    """Marks of its records: earlier releases of them, by whatever name, are charged and named with
    it.
    """
    lists: Sequence[CodeListVerdict] | None = ()
    """The gate's verdicts on its code lists; empty without the records, None where no bundle can
    hold the model.
    """
    outdated: Fault | None = None
    """Why it would be refused as it is: other fits of its records were recorded since, or its fit
    is gone.
    """
    units: Units | None = None
    """Of its records; None where a record is the unit, or without them."""
    told: AccuracyFigures | None = None
    """`accuracy.json` of its bundle; None before its release, or where nothing is stated."""

    @staticmethod
    def of(context: Context, case: ReleaseCase) -> Surroundings:
        """Reads the surroundings; returns defaults where the records are elsewhere, as on an
        officer's machine.
        """
        planned = case.planned
        folder, private = (
            Path(planned.candidate.dataset.path),
            Workspace(Path(context.home)).private,
        )
        # In this order: an officer may not look into the folder of another workspace.
        if not folder.resolve().is_relative_to(private.resolve()) or not folder.is_dir():
            return Surroundings()
        try:
            records = save_record_set(context, planned.candidate.dataset)
        except StorageError:
            return Surroundings()
        bundled = planned.has_bundle(context.store)
        lists = (
            (code_lists.assess_dataset(context, planned.candidate.dataset),) if bundled else None
        )
        return Surroundings(records, lists, _outdated(context, case), units_of(folder))


def _outdated(context: Context, case: ReleaseCase) -> Fault | None:
    if case.released is not None:
        return None  # the choice no longer matters
    try:
        case.require_current(context)
    except (MechanismError, StorageError, BudgetRefused) as error:
        return Fault(str(error), kind=error.kind)
    return None


def told_by_bundle(context: Context, case: ReleaseCase) -> AccuracyFigures | None:
    """Returns what the released bundle tells of how often the model is right."""
    if case.released is None:
        return None
    return read_stated(context.workspace.bundles / case.released.release_id)


def require_releasable(context: Context, case: ReleaseCase) -> None:
    """Refuses to sign what a release would refuse now."""
    plan, ledger = case.plan, case.ledger
    if case.released is not None:
        raise InputError(
            f"plan {plan.release_label}: it is already release {case.released.release_id}",
            kind="released-already",
        )
    refusal = ledger.refusal(plan)
    if refusal is not None:
        raise InputError(
            f"plan {plan.release_label}: {refusal.entry.reason} (ledger row {refusal.sequence})",
            kind="plan-refused",
            row=refusal.sequence,
        )
    ledger.require_here(plan)
    here = Surroundings.of(context, case)
    if here.outdated is not None:
        raise InputError(here.outdated.text, kind=here.outdated.kind)
    ledger.quote(plan, records=here.records)
    obstacle = gate.obstacle(case)
    if obstacle is not None:
        raise InputError(f"plan {plan.release_label}: {obstacle.text}", kind=obstacle.kind)
