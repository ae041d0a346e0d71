"""What is offered in place of a claim that is refuted or weak: the formal branch, with the command that makes it."""

from __future__ import annotations

import shlex
from decimal import ROUND_FLOOR, Decimal

from storage.ledger import Ledger
from storage.ledger.amounts import short
from tasks.releasing.plan import PlannedRelease

PROFILE, POPULATION = "osha-formal", "osha-severe-injuries"
"""The profile that releases formally, and the population that it is of by itself."""
USUAL = Decimal(5)
"""Asked for where more remains: the epsilon that docs/formal.md has figures of."""


def remaining(ledger: Ledger, planned: PlannedRelease) -> Decimal | None:
    """What may still be spent formally on every cohort of a plan; None where the policy has no formal cap for one."""
    plan, policy = planned.plan, ledger.policy()
    spent = {(a.population, a.cohort): a for line in ledger.budget() if (a := line.account).guarantee_kind == "formal"}
    left = []
    for cohort in plan.cohorts:
        cap = policy.cap(plan.population, cohort, "formal")
        if cap is None:
            return None
        account = spent.get((plan.population, cohort))
        left.append(cap.epsilon - (Decimal(0) if account is None else account.epsilon))
    return max(Decimal(0), min(left)).quantize(Decimal("0.0001"), rounding=ROUND_FLOOR)


def command(planned: PlannedRelease, epsilon: Decimal | float) -> str:
    """The retrain of the same records that ends in a formal plan, with the files of its own retrain."""
    shown = short(epsilon) if isinstance(epsilon, Decimal) else f"{epsilon:g}"
    population = planned.plan.population
    named = "" if population == POPULATION else f" --set data.population={shlex.quote(population)}"
    return f"autocoder retrain --profile {PROFILE} --data RECORDS --codelist CODELIST{named} --target-epsilon {shown}"


def offer(ledger: Ledger, planned: PlannedRelease) -> str:
    """The command in a sentence, with what the budget has for it."""
    left = remaining(ledger, planned)
    if left is None:
        return (
            f"A formal release of the same records rests on no estimate: give {planned.plan.population} a formal cap "
            f"in the policy (`autocoder ledger change-policy`), then `{command(planned, USUAL)}`"
        )
    if left == 0:
        return "The formal budget of these records is spent, so that a formal release of them needs another policy"
    asked = min(left, USUAL)
    return (
        f"Release a formal fit of the same records instead, with the RECORDS and the CODELIST of this retrain (ε "
        f"{short(left)} of the formal budget remain): `{command(planned, asked)}`"
    )
