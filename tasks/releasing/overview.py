"""What stands in the ledger and waits in a workspace, for the commands that tell an operator and Prometheus of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from storage.errors import InputError
from storage.ledger import Ledger
from storage.ledger.report import budget_json
from tasks.parameters import LedgerParameters
from tasks.releasing import approval, publish
from tasks.releasing.claims import ledger_url
from tasks.releasing.plan import PlannedRelease
from tasks.running.stage import Context
from tasks.running.worker_metrics import at_work


@dataclass(frozen=True)
class PlanStatus:
    """A plan that is not released."""

    file: str
    population: str
    label: str
    epsilon: float | None
    approved_by: tuple[str, ...]
    missing: int
    refused: str | None


def ledger_overview(context: Context, settings: LedgerParameters) -> dict[str, Any]:
    """The ledger's head, budgets that were drawn on, open releases, plans not yet released, stages not ended.

    Raises:
        StorageError: the ledger does not answer, or is damaged.
    """
    address = ledger_url(context, settings)
    stages = [asdict(stage) for stage in at_work(context.workspace.private)]
    if address.startswith("sqlite:///") and not Path(address.removeprefix("sqlite:///")).exists():
        return {"ledger": None, "budget": [], "open_releases": [], "plans": [], "stages": stages}
    ledger = publish.open_ledger(context, settings)
    sequence, row_hash = ledger.head()
    return {
        "ledger": {"row": sequence, "hash": row_hash, "policy": ledger.policy().name},
        "budget": budget_json([line for line in ledger.budget() if line.account.sequence]),
        "open_releases": [
            {"release": row.release_id, "state": row.state, "since": row.recorded_at} for row in ledger.open_releases()
        ],
        "plans": [asdict(plan) for plan in _plans(context, ledger)],
        "stages": stages,
    }


def _plans(context: Context, ledger: Ledger) -> list[PlanStatus]:
    plans = []
    for file in sorted((context.workspace.private / "plans").glob("*.json")):
        try:
            planned = PlannedRelease.load(file)
        except InputError:
            continue  # of an older version: to be planned again before it can be released
        if ledger.release_of(planned.plan) is not None:
            continue
        stands = approval.standing(context, ledger, planned)
        refusal = ledger.refusal(planned.plan)
        plans.append(
            PlanStatus(
                file=str(file),
                population=planned.plan.population,
                label=planned.plan.release_label,
                epsilon=planned.plan.claim.epsilon,
                approved_by=stands.approved,
                missing=stands.missing,
                refused=None if refusal is None else refusal.reason,
            )
        )
    return plans
