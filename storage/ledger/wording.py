"""Words and data for what an account is charged and has left: every page, message
and JSON of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from decimal import ROUND_FLOOR, Decimal
from typing import TYPE_CHECKING, Any, TypedDict

from storage.figures import delta_text, epsilon_text, left_text
from storage.ledger import amounts
from storage.ledger.amounts import short

if TYPE_CHECKING:
    from storage.ledger.budget import Balance, Charge


def arithmetic(charge: Charge) -> str:
    """Says what a charge adds up to, and whether that is within the cap."""
    show, before, after = amounts.short, charge.before, charge.after
    if after.exact:
        sign, verdict = ("<=", "within") if charge.fits else (">", "over")
        return (
            f"epsilon spent {show(before.epsilon)}, with this release {show(after.epsilon)} at "
            "delta "
            f"{show(after.delta)} {sign} {show(charge.epsilon_cap)}, {verdict} the cap"
        )
    parts = [_sum("epsilon", before.spent.epsilon, charge.loss.epsilon, charge.epsilon_cap)]
    if after.delta_cap is not None:
        share = after.delta_cap if after.rule == "basic" else after.delta_cap / 100
        parts.append(_sum("delta", before.spent.delta, charge.loss.delta, share))
    return "; ".join(parts)


def _sum(name: str, before: Decimal, charged: Decimal, cap: Decimal) -> str:
    after = amounts.add(before, charged)
    sign, verdict = (">", "over the cap") if after > cap else ("<=", "within the cap")
    show = amounts.short
    return (
        f"{name} spent {show(before)} + asked {show(charged)} = {show(after)} {sign} "
        f"{show(cap)}, {verdict}"
    )


def cost_text(charge: Charge) -> str:
    """Says what an account was charged, and what is used and left of it, each ε with the δ at which
    it holds.
    """
    before, after, loss = charge.before, charge.after, charge.loss
    counted = after.delta_cap is not None
    cost = f"ε {epsilon_text(loss.epsilon)}" + (
        f" at δ {delta_text(loss.delta)}" if counted else ""
    )
    used = (
        f"ε {epsilon_text(before.epsilon)} before, {epsilon_text(after.epsilon)} after of "
        f"{short(charge.epsilon_cap)}"
    )
    return (
        f"{cost}; {used}"
        + (f", at δ {delta_text(after.delta)}" if counted else "")
        + f" ({after.rule})"
    )


def budget_after(charge: Charge) -> str:
    """Says what is used and left of an account after a charge, with the delta at which that epsilon
    holds.
    """
    account = charge.after
    holds = "" if not account.delta else f" at δ {delta_text(account.delta)}"
    used = f"ε {epsilon_text(account.epsilon)} of {left_text(charge.epsilon_cap)} used"
    return f"budget{holds}: {used}, {left_text(charge.balance.left)} left"


def charge_json(charge: Charge) -> dict[str, Any]:
    """Returns a charge as plain data, amounts as text; each epsilon beside the delta that it holds
    at.
    """
    account, loss, text = charge.after, charge.loss, amounts.text
    sums = {"epsilon": loss.epsilon, "delta": loss.delta, "mu_squared": loss.mu_squared}
    return {
        "population": None if charge.own else account.population,
        "cohort": account.cohort,
        "composition": account.rule,
        "loss": {name: text(value) for name, value in sums.items()},
        "sampled": None if loss.sampled is None else asdict(loss.sampled),
        "neighbouring_relation": account.neighbouring_relation,
        "privacy_unit": account.privacy_unit,
        "epsilon_before": text(charge.before.epsilon),
        "delta_before": text(charge.before.delta),
        "epsilon_after": text(account.epsilon),
        "delta_after": text(account.delta),
        "epsilon_cap": text(charge.epsilon_cap),
        "delta_cap": text(account.delta_cap),
    }


def describe_balance(balance: Balance, policy: str) -> str:
    """Describes what an account has left for a release."""
    if balance.cap is None:
        return f"policy {policy} grants nothing of this kind"
    left, cap = left_text(balance.left), short(balance.cap.epsilon)
    delta = ""
    if balance.delta_left is not None:
        delta = f", and δ {delta_text(balance.delta_left, rounding=ROUND_FLOOR)}"
    more = f"\n  after this one, {describe_successors(balance.more - 1)}" if balance.more else ""
    return f"ε {left} of {cap} left{delta}{more}"


def describe_successors(more: int) -> str:
    """Describes how many releases of a release's size fit after it."""
    return f"room for about {more} more like this" if more > 0 else "no room for another like this"


class BudgetLine(TypedDict):
    """An account and what it has left; amounts are text."""

    population: str
    cohort: str
    guarantee_kind: str
    composition: str | None
    neighbouring_relation: str | None
    epsilon_spent: str
    epsilon_cap: str | None
    epsilon_left: str
    further_releases: int | None
    delta_spent: str
    delta_cap: str | None
    delta_left: str | None


def budget_json(lines: Iterable[Balance]) -> list[BudgetLine]:
    """Return the accounts as plain data, amounts as text."""
    return [
        {
            "population": line.account.population,
            "cohort": line.account.cohort,
            "guarantee_kind": line.account.guarantee_kind,
            "composition": line.account.rule or (line.cap.composition if line.cap else None),
            "neighbouring_relation": line.relation,
            "epsilon_spent": short(line.account.epsilon),
            "epsilon_cap": short(line.cap.epsilon) if line.cap else None,
            "epsilon_left": short(line.left),
            "further_releases": line.more,
            "delta_spent": short(line.account.delta),
            "delta_cap": short(line.cap.delta) if line.cap and line.cap.delta else None,
            "delta_left": short(line.delta_left) if line.delta_left is not None else None,
        }
        for line in lines
    ]
