"""Budgets for a page: four decimals, what is spent rounded up and what is left rounded down. The ledger has twelve."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from storage.ledger.amounts import short
from storage.ledger.budget import BudgetLine
from storage.ledger.report import BUDGET_COLUMNS
from tasks.pages.render import Table

_DIGITS = Decimal("0.0001")


def up(value: Decimal) -> str:
    """An amount that was spent or is asked for."""
    return short(value.quantize(_DIGITS, rounding=ROUND_CEILING))


def down(value: Decimal) -> str:
    """An amount that is left."""
    return short(value.quantize(_DIGITS, rounding=ROUND_FLOOR))


def budget_table(lines: Iterable[BudgetLine]) -> Table:
    """Accounts beside their caps; a delta has three digits."""
    return list(BUDGET_COLUMNS), [_cells(line) for line in lines]


def _cells(line: BudgetLine) -> list[str]:
    account, cap = line.account, line.cap
    with_delta = cap is not None and cap.delta is not None
    return [
        *(account.population, account.cohort, account.guarantee_kind),
        *(up(account.epsilon), "no cap" if cap is None else short(cap.epsilon), down(line.epsilon_left)),
        f"{float(account.delta):.3g}" if with_delta else "–",
        f"{float(cap.delta):.3g}" if cap is not None and cap.delta is not None else "–",
        "–" if line.delta_left is None else f"{float(line.delta_left):.3g}",
        line.relation or "–",
    ]
