"""What can be asked of a plan only where its records lie: by which names they were released, and what a release of it
would be refused for before anything is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mechanisms.errors import MechanismError
from storage.errors import StorageError
from storage.ledger import Ledger
from storage.ledger.records import RecordSet
from storage.paths import Workspace
from tasks.releasing import code_lists, selection
from tasks.releasing.code_lists import Word
from tasks.releasing.plan import PlannedRelease
from tasks.releasing.records import record_set
from tasks.running.stage import Context


@dataclass(frozen=True)
class AtHand:
    """What the workspace says of a plan, beside the ledger."""

    records: RecordSet | None = None
    """Marks of its records: earlier releases of them, by whatever name, are charged and named with it."""
    lists: Sequence[Word] | None = ()
    """What the gate will say of its code lists; empty where that cannot be told here, None where there is no bundle."""
    outdated: str | None = None
    """Why it would be refused as it is: other fits of its records were recorded since, or its fit is gone."""

    @staticmethod
    def of(context: Context, ledger: Ledger, planned: PlannedRelease) -> AtHand:
        """Nothing but defaults where the records do not lie here, as on an officer's own machine."""
        folder, private = Path(planned.candidate.dataset.path), Workspace(Path(context.home)).private
        if not folder.is_dir() or not folder.resolve().is_relative_to(private.resolve()):
            return AtHand()
        try:
            records = record_set(context, planned.candidate.dataset)
        except StorageError:
            return AtHand()
        return AtHand(records, code_lists.of_plan(context, planned), _outdated(context, ledger, planned))


def _outdated(context: Context, ledger: Ledger, planned: PlannedRelease) -> str | None:
    if ledger.release_of(planned.plan) is not None:
        return None  # nobody asks any more how it was chosen
    try:
        selection.check(ledger, context, planned)
    except (MechanismError, StorageError) as error:
        return str(error)
    return None
