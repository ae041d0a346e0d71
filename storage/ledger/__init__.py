"""The release ledger: a budget that cannot be overspent, a history that cannot be rewritten, and
one draw per release.

Invariants, for any order of calls, crashes and processes:

1. For every account (population, cohort, guarantee kind), the sum of all charges is at most the cap
in force at the newest charge, and equals the account's running total. Claims about units of several
records have an additional account for all cohorts, and all charges in one population and kind have
the same privacy unit. 2. A charge is never returned, whether by burning, a crash, or a change of
policy. 3. A release passes through `reserved`, `drawn`, `committed`, each at most once and in this
order, or ends `burned` from either of the first two. Nothing follows `committed` or `burned`. 4.
One idempotency key has one release. One release has at most one draw digest and one bundle digest.
5. The epsilon and the sensitivity of a release never decrease from one of its rows to the next. 6.
Row n contains the hash of row n - 1, and its own hash is the SHA-256 of its canonical JSON. Rows
are appended and never changed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from storage.ledger.budget import Account, Balance, BudgetRefused, Charge
    from storage.ledger.database import database_exists
    from storage.ledger.decisions import Decision
    from storage.ledger.entries import Evaluated, ReleaseRow
    from storage.ledger.ledger import Ledger
    from storage.ledger.models import (
        ComparisonFit,
        Evaluation,
        ReleasePlan,
        Scores,
        SearchFit,
        Sensitivity,
        Subject,
    )
    from storage.ledger.policy import Policy

__all__ = [
    "Account",
    "Balance",
    "BudgetRefused",
    "Charge",
    "ComparisonFit",
    "Decision",
    "Evaluated",
    "Evaluation",
    "Ledger",
    "Policy",
    "ReleasePlan",
    "ReleaseRow",
    "Scores",
    "SearchFit",
    "Sensitivity",
    "Subject",
    "database_exists",
]

_PLACES = dict.fromkeys(("Account", "Balance", "BudgetRefused", "Charge"), "budget")
_PLACES |= {
    "database_exists": "database",
    "Decision": "decisions",
    "Evaluated": "entries",
    "ReleaseRow": "entries",
    "Ledger": "ledger",
    "Policy": "policy",
}
"""Modules of these names. All other names are in `models`."""


def __getattr__(name: str) -> Any:
    """Loads a module when one of its names is first used, so that verifying a signature needs no
    database.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES.get(name, 'models')}"), name)
