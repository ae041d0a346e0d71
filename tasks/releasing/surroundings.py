"""Reads the facts about a plan from its workspace: its records, code lists, units and bundle."""

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
from tasks.releasing.ledger_access import ledger_url
from tasks.releasing.ledger_records import save_record_set
from tasks.running.stage import Context


@dataclass(frozen=True)
class Desk:
    """A place with a copy of the plan and a view of the ledger, which can sign but not release."""

    home: str | None
    """Folder of the ledger's copy. None if the ledger is a database server."""


@dataclass(frozen=True)
class Surroundings:
    """Facts for an officer from a plan's workspace, in addition to ledger and plan."""

    records: RecordSet | None = None
    """Marks of its records. Earlier releases of the same records, under any name,
    are charged and listed too.
    """
    lists: Sequence[CodeListVerdict] | None = ()
    """The gate's verdicts on its code lists. Empty if the records are not available, None if no
    bundle can contain the model.
    """
    outdated: Fault | None = None
    """Why it would be refused in its current state: other fits on its records were recorded since,
    or its fit is missing.
    """
    units: Units | None = None
    """Units of its records. None if each record is a unit, or if the records are not available."""
    told: AccuracyFigures | None = None
    """`accuracy.json` of its bundle. None before its release, or if no accuracy is reported."""
    desk: Desk | None = None
    """The desk that the page is read at, or None in the plan's workspace."""

    @staticmethod
    def of(context: Context, case: ReleaseCase) -> Surroundings:
        """Reads these facts. Returns defaults if the records are elsewhere, as on
        an officer's machine.
        """
        planned = case.planned
        folder, private = (
            Path(planned.candidate.dataset.path),
            Workspace(Path(context.home)).private,
        )
        # The order matters: an officer may not be allowed to read the folder of another workspace.
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
    """Returns the accuracy that the released bundle reports."""
    if case.released is None:
        return None
    return read_stated(context.workspace.bundles / case.released.release_id)


def desk_of(context: Context, case: ReleaseCase) -> Desk | None:
    """Returns the desk where a plan is read, or None if it is read in its workspace."""
    if case.planned.file(context).is_file():
        return None
    is_copy = ledger_url(context) == context.workspace.ledger_url
    return Desk(context.home if is_copy else None)


def require_releasable(context: Context, case: ReleaseCase) -> None:
    """Refuses to sign a plan that a release would refuse now."""
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
