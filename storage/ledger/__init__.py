"""The release ledger: a budget that can't be overspent, a history that can't be rewritten, one draw
a release.

Invariants, whatever the order of calls, crashes and processes:

1. For every account (population, cohort, guarantee kind) the sum of all charges is at most the cap
  in force
   when the newest was made, and equals the account's running total. Claims about units of several
   records have one more account, of all cohorts, and what is charged in one population and kind all
   protects the same.
2. A charge is never taken back: not by burning, not by a crash, not by a change of policy.
3. A release passes through `reserved`, `drawn`, `committed`, each at most once and in this order,
  or ends
   `burned` from either of the first two. Nothing follows `committed` or `burned`.
4. One idempotency key has one release; one release has at most one draw digest and one bundle
  digest.
5. The epsilon and the sensitivity of a release never fall from one of its rows to the next.
6. Row n holds the hash of row n - 1, and its own hash is the SHA-256 of its canonical JSON. Rows
  are added at
   the end and never changed.
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
"""Modules by their names; those of the others are in `models`."""


def __getattr__(name: str) -> Any:
    """Loads a module at the first use of a name of it: anyone who checks a signature needs no
    database.
    """
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES.get(name, 'models')}"), name)
