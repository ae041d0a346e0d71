"""Opens the ledger of a run, and derives a claim's default delta from its policy."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from storage.errors import Missing, StorageError
from storage.figures import delta_text
from storage.ledger import Ledger, Policy, database_exists
from storage.ledger.database import parse_url
from storage.ledger.journal import journals_of
from storage.ledger.recovery import draws
from tasks.parameters import LedgerParameters, RetrainParameters
from tasks.running.stage import Context

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

DEFAULT_DELTA = 1e-5
"""Largest default delta. It is smaller for more than 10,000 records."""


def delta_for(records: int) -> float:
    """Returns the default delta for a number of training records: a tenth over their number,
    rounded down to a power of ten.

    A guarantee with some delta allows a mechanism that reveals each record with that probability,
    and therefore records x delta of them on average.
    """
    return min(DEFAULT_DELTA, float(f"1e-{len(str(10 * max(records, 1) - 1))}"))


def describe_large_delta(records: int, delta: float | None) -> str:
    """Returns a warning if delta is not far below one over the number of records,
    else an empty text.
    """
    expected = records * (delta or 0.0)
    if expected <= _FEW:
        return ""
    return (
        f"a guarantee with δ {delta:g} for each of about {records:,} records would still allow a "
        f"mechanism that reveals {expected:.2g} of them, on average. "
        f"Set δ to {delta_text(delta_for(records))} or less"
    )


_FEW = 0.5
"""Value of records x delta up to which there is no warning."""


def allowed_delta(policy: Policy, population: str, *, records: int = 1) -> float:
    """Returns the smallest formal cap on delta of any cohort of a population, or the default for
    its records if that is smaller.
    """
    budget = policy.populations.get(population, policy.default)
    caps = (
        ()
        if budget is None
        else (budget.formal, *(cohort.formal for cohort in budget.cohorts.values()))
    )
    return min(
        [
            delta_for(records),
            *(float(cap.delta) for cap in caps if cap is not None and cap.delta is not None),
        ]
    )


def default_delta(context: Context, parameters: RetrainParameters, *, records: int) -> float:
    """Returns the delta of a formal claim if none is specified, such that one release fits under
    the policy's caps.

    It depends on the policy and not on the budget already spent, so the same command always plans
    the same release.
    """
    return allowed_delta(
        current_policy(context, parameters.release), parameters.data.population, records=records
    )


def current_policy(context: Context, settings: LedgerParameters) -> Policy:
    """Returns the current policy, or the policy that a first release would put in
    force. Creates no ledger.
    """
    ledger = existing_ledger(context, settings)
    return given_policy(settings) if ledger is None else ledger.policy()


def given_policy(settings: LedgerParameters) -> Policy:
    return Policy.load(Path(settings.policy).expanduser() if settings.policy else None)


def existing_ledger(context: Context, settings: LedgerParameters) -> Ledger | None:
    return open_ledger(context, settings) if database_exists(ledger_url(context)) else None


def require_ledger(context: Context, settings: LedgerParameters) -> Ledger:
    """Opens the ledger that a workspace's plans were made under. Creates none."""
    ledger = existing_ledger(context, settings)
    if ledger is not None:
        return ledger
    place = parse_url(ledger_url(context)).database
    for journal in journals_of(context.workspace):
        mark = journal.last()
        if mark is not None:
            raise StorageError(
                f"there is no ledger at {place}, but {journal.name} has used "
                f"{mark}. Restore or specify the ledger that was used",
                kind="ledger-missing",
            )
    raise Missing(
        f"{context.home} has no ledger with budget and audits. Set --home to the "
        "plan's workspace or to a desk with a copy of its ledger, or set AUTOCODER_LEDGER_URL",
        kind="workspace-without-ledger",
    )


def ledger_url(context: Context) -> str:
    """Returns the address of the machine's ledger, or else of the workspace's."""
    return os.environ.get("AUTOCODER_LEDGER_URL") or context.workspace.ledger_url


def open_ledger(
    context: Context, settings: LedgerParameters, *, key: EllipticCurvePrivateKey | None = None
) -> Ledger:
    """Opens the ledger of this run, under the policy of this run.

    Args:
        key: key of the releasing worker, which is the only one that writes rows of releases.
    """
    policy, journals = given_policy(settings), journals_of(context.workspace)
    ledger = Ledger.open(ledger_url(context), policy=policy, journals=journals, key=key)
    if draws(context.workspace) and ledger.state().mark is None:
        raise StorageError(
            f"ledger {ledger.database.name} is empty, but this workspace has "
            "releases. Use the ledger that charged them",
            kind="empty-ledger",
        )
    return ledger
