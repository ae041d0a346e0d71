"""Resumes runs that died, and reports low budgets.

A run whose worker or host died is `Crashed`: the worker says so, or, where the worker died too, the
rule `zombies` of deployments/automations.yaml when its heartbeat stops, or, where the rule missed
it, this flow. Stages resume from their files and a release from the ledger, so resuming a run is
always safe; it is done a few times, not for ever.
"""

from datetime import UTC, datetime, timedelta
from typing import Annotated

from prefect import flow
from prefect.events import emit_event
from pydantic import BaseModel, Field

from flows.server.dead_runs import declare_dead, drop_missed, resume
from flows.server.form import with_title
from flows.server.prefect_run import NOTHING_STORED
from flows.server.settings import home_of
from storage.ledger.amounts import short
from tasks.parameters import LedgerParameters
from tasks.releasing import ledger_access
from tasks.running.failures import private_errors
from tasks.running.stage import Context

RESUMED = (
    "retrain",
    "compare",
    "audit",
    "release",
    "code-batch",
    "handover",
    "revoke",
    "ledger-verify",
)
"""Flows whose runs resume: all but this one. They send heartbeats while they are at work."""


class HousekeepingReport(BaseModel, frozen=True):
    dead: tuple[str, ...] = Field(description="runs at work that had fallen silent")
    resumed: tuple[str, ...] = Field(description="runs that were resumed")
    given_up: tuple[str, ...] = Field(description="runs that died too often")
    missed: tuple[str, ...] = Field(
        description="runs of schedules that were missed, and are left out"
    )
    low_budgets: tuple[str, ...] = Field(description="accounts with little left")


@flow(
    name="housekeeping",
    description="Resume runs that died, and report low budgets.",
    **NOTHING_STORED,
)
def housekeeping(
    home: Annotated[str | None, with_title("Workspace")] = None,
    ledger: Annotated[LedgerParameters | None, with_title("Ledger")] = None,
    attempts: Annotated[int, Field(ge=1, le=100), with_title("Starts of a run")] = 4,
    days: Annotated[int, Field(ge=1, le=365), with_title("Days looked back")] = 7,
    pending_minutes: Annotated[int, Field(ge=1, le=1440), with_title("Minutes to begin")] = 15,
    silent_minutes: Annotated[int, Field(ge=30, le=1440), with_title("Minutes of silence")] = 30,
    low_share: Annotated[float, Field(ge=0, le=1), with_title("Low budget")] = 0.2,
) -> HousekeepingReport:
    """Do one round.

    Args:
        home: workspace folder; empty: that of the worker (AUTOCODER_HOME).
        ledger: which ledger.
        attempts: how often a run is started before a person must act.
        days: runs that died longer ago are left alone.
        pending_minutes: a run that was handed to a worker so long ago and has not begun lost that
            worker.
        silent_minutes: a run at work of which no heartbeat came for so long lost its process.
        low_share: an account with less than this share of its cap left is low.
    """
    context = Context(home=str(home_of(home)))
    with private_errors("housekeeping"):
        age = timedelta(days=days)
        dead = declare_dead(RESUMED, silent=timedelta(minutes=silent_minutes), age=age)
        resumed, given_up = resume(
            RESUMED, attempts=attempts, age=age, pending=timedelta(minutes=pending_minutes)
        )
        missed = drop_missed(before=datetime.now(UTC) - timedelta(minutes=pending_minutes))
        low = _low_budgets(context, ledger or LedgerParameters(), low_share)
    return HousekeepingReport(
        dead=dead, resumed=resumed, given_up=given_up, missed=missed, low_budgets=low
    )


def _low_budgets(context: Context, settings: LedgerParameters, share: float) -> tuple[str, ...]:
    low = []
    for line in ledger_access.open_ledger(context, settings).budget():
        account, cap = line.account, line.cap
        if (
            cap is None
            or not line.used
            or line.epsilon_left >= cap.epsilon * int(share * 1000) / 1000
        ):
            continue
        low.append(account.name)
        emit_event(
            "autocoder.budget.low",
            resource={"prefect.resource.id": f"autocoder.account.{account.name}"},
            payload={
                "account": account.name,
                "left": short(line.epsilon_left),
                "cap": short(cap.epsilon),
            },
        )
    return tuple(low)
