"""Resumes runs that died, and reports low budgets.

If the process of a run dies, the run becomes `Crashed`. The worker reports that, or, if the worker
died too, the watch (flows/server/watch.py) does when the heartbeats stop. If no watch runs, this
flow does the same, more slowly. Stages resume from their files and a release from the ledger, so
resuming a run is always safe. A run is resumed only a few times.
"""

from datetime import UTC, datetime, timedelta
from typing import Annotated

from prefect import flow
from prefect.events import emit_event
from pydantic import BaseModel, Field

from flows.server.dead_runs import ATTEMPTS, PENDING, RESUMED, declare_dead, drop_missed, resume
from flows.server.form import with_title
from flows.server.prefect_run import NOTHING_STORED
from flows.server.settings import home_of
from storage.ledger.amounts import short
from tasks.parameters import LedgerParameters
from tasks.releasing import ledger_access
from tasks.running.failures import private_errors
from tasks.running.stage import Context


class HousekeepingReport(BaseModel, frozen=True):
    dead: tuple[str, ...] = Field(description="running runs that had stopped sending heartbeats")
    resumed: tuple[str, ...] = Field(description="runs that were resumed")
    given_up: tuple[str, ...] = Field(description="runs that died too often")
    put_back: tuple[str, ...] = Field(
        description="runs that had finished before they were marked as crashed"
    )
    missed: tuple[str, ...] = Field(description="missed runs of schedules, which are skipped")
    low_budgets: tuple[str, ...] = Field(description="accounts with little left")


@flow(
    name="housekeeping",
    description="Resume runs that died, and report low budgets.",
    **NOTHING_STORED,
)
def housekeeping(
    home: Annotated[str | None, with_title("Workspace")] = None,
    ledger: Annotated[LedgerParameters | None, with_title("Ledger")] = None,
    attempts: Annotated[int, Field(ge=1, le=100), with_title("Starts of a run")] = ATTEMPTS,
    days: Annotated[int, Field(ge=1, le=365), with_title("Days looked back")] = 7,
    pending_minutes: Annotated[int, Field(ge=1, le=1440), with_title("Minutes to begin")] = PENDING
    // timedelta(minutes=1),
    silent_minutes: Annotated[int, Field(ge=5, le=1440), with_title("Minutes of silence")] = 10,
    low_share: Annotated[float, Field(ge=0, le=1), with_title("Low budget")] = 0.2,
) -> HousekeepingReport:
    """Do one round.

    Args:
        home: workspace folder; empty: the worker's (AUTOCODER_HOME).
        ledger: which ledger.
        attempts: number of starts of a run before a person must act.
        days: runs that died longer ago are ignored.
        pending_minutes: a run that was assigned to a worker and has not started for this long has
            lost its worker.
        silent_minutes: a running run without a heartbeat for this long has lost its process.
        low_share: an account with less than this share of its cap left is low.
    """
    context = Context(home=str(home_of(home)))
    with private_errors("housekeeping"):
        age, now = timedelta(days=days), datetime.now(UTC)
        silent = now - timedelta(minutes=silent_minutes)
        dead = declare_dead(RESUMED, before=silent, age=age)
        found = resume(
            RESUMED, age=age, attempts=attempts, pending=timedelta(minutes=pending_minutes)
        )
        missed = drop_missed(before=now - timedelta(minutes=pending_minutes))
        low = _low_budgets(context, ledger or LedgerParameters(), low_share)
    return HousekeepingReport(
        dead=dead,
        resumed=found.resumed,
        given_up=found.given_up,
        put_back=found.put_back,
        missed=missed,
        low_budgets=low,
    )


def _low_budgets(context: Context, settings: LedgerParameters, share: float) -> tuple[str, ...]:
    low = []
    for line in ledger_access.open_ledger(context, settings).budget():
        account, cap = line.account, line.cap
        if cap is None or not line.used or line.left >= cap.epsilon * int(share * 1000) / 1000:
            continue
        low.append(account.name)
        emit_event(
            "autocoder.budget.low",
            resource={"prefect.resource.id": f"autocoder.account.{account.name}"},
            payload={
                "account": account.name,
                "left": short(line.left),
                "cap": short(cap.epsilon),
            },
        )
    return tuple(low)
