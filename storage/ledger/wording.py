"""Text and data about an account's charges and remaining budget, for every page, message and
JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import TYPE_CHECKING, TypedDict

from mechanisms.privacy.numerics import epsilon_text
from storage.figures import delta_text, left_text
from storage.ledger import amounts
from storage.ledger.amounts import short

if TYPE_CHECKING:
    from storage.json_values import Json
    from storage.ledger.budget import Balance, Charge


def describe_excess(charges: Sequence[Charge], policy: str, *, adds: str) -> str:
    """By how much charges exceed their caps, in whole sentences without the final full stop.
    Accounts with equal amounts share a sentence.

    Args:
        charges: charges that do not fit, at least one.
        policy: name of the policy in force.
        adds: what is charged, such as `this release`.
    """
    groups: dict[tuple[str, str], list[str]] = {}
    for charge in charges:
        key = (charge.after.population, _excess(charge, policy, adds))
        groups.setdefault(key, []).append(charge.after.cohort)
    return ". ".join(
        f"The budget of {population}, {_listed(cohorts)} {told}"
        for (population, told), cohorts in groups.items()
    )


def _excess(charge: Charge, policy: str, adds: str) -> str:
    after, delta_cap = charge.after, _summed_delta_cap(charge)
    granted, spent = f"ε {short(charge.epsilon_cap)}", f"ε {_cents(charge.earlier)}"
    total, verb = f"ε {_cents(after.epsilon)}", "is"
    if delta_cap is not None:
        granted += f" and δ {delta_text(delta_cap)}"
        spent += f" and δ {delta_text(_earlier_delta(charge))}"
        total += f" and δ {delta_text(after.delta)}"
        verb = "are"
    elif after.delta_cap is not None:
        granted += f" at δ {delta_text(after.delta_cap)}"
    write = {"ε": _cents, "δ": delta_text}
    much = " and ".join(
        f"{sign} {write[sign](amounts.add(value, -cap))}" for sign, _, value, cap in _over(charge)
    )
    return (
        f"(policy {policy}) is {granted}. {spent} {verb} already spent. "
        f"With {adds} it would be {total}, which is {much + ' ' if much else ''}too much"
    )


def _summed_delta_cap(charge: Charge) -> Decimal | None:
    """The cap on the sum of the claims' deltas, if the account sums them."""
    after = charge.after
    if after.exact or after.delta_cap is None:
        return None
    return after.delta_cap if after.rule == "basic" else after.delta_cap / 100


def _earlier_delta(charge: Charge) -> Decimal:
    """The δ that was spent earlier on the records of a release, under any name."""
    return charge.after.spent.plus(charge.own_loss, -1).delta


def _over(charge: Charge) -> Iterator[tuple[str, Decimal, Decimal, Decimal]]:
    """Yields the sign of each amount that exceeds its cap, with its values before and after, and
    the cap.
    """
    after, delta_cap = charge.after, _summed_delta_cap(charge)
    if after.epsilon > charge.epsilon_cap:
        yield "ε", charge.earlier, after.epsilon, charge.epsilon_cap
    if delta_cap is not None and after.delta > delta_cap:
        yield "δ", _earlier_delta(charge), after.delta, delta_cap


def describe_need(charges: Iterable[Charge]) -> str:
    """What would have to change for the charges to fit, as a sentence."""
    over = [excess for charge in charges for excess in _over(charge)]
    if not over or any(before >= cap for _, before, _, cap in over):
        return "A new policy would be needed"
    signs = " and ".join(dict.fromkeys(sign for sign, *_ in over))
    return f"A smaller {signs}, or a new policy, would be needed"


def _cents(epsilon: Decimal) -> str:
    """A spent epsilon with two decimals, rounded up."""
    return short(epsilon.quantize(Decimal("0.01"), ROUND_CEILING, Context(prec=80)))


def _listed(names: Sequence[str]) -> str:
    *first_names, last = names
    return f"{', '.join(first_names)} and {last}" if first_names else last


def cost_text(charge: Charge) -> str:
    """The charge of an account, and its used and remaining budget, each ε with its δ."""
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
    """The used and remaining budget of an account after a charge, with the delta of that
    epsilon.
    """
    account = charge.after
    holds = "" if not account.delta else f" at δ {delta_text(account.delta)}"
    used = f"ε {epsilon_text(account.epsilon)} of {left_text(charge.epsilon_cap)} used"
    return f"budget{holds}: {used}, {left_text(charge.balance.left)} left"


def charge_json(charge: Charge) -> dict[str, Json]:
    """A charge as plain data, with amounts as text; each epsilon is next to its delta."""
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
    """The remaining budget of an account for a release, as text."""
    if balance.cap is None:
        return f"policy {policy} grants nothing of this kind"
    remaining, cap = left_text(balance.left), short(balance.cap.epsilon)
    delta = ""
    if balance.delta_left is not None:
        delta = f", and δ {delta_text(balance.delta_left, rounding=ROUND_FLOOR)}"
    more = f"\n  after this one, {describe_successors(balance.more - 1)}" if balance.more else ""
    return f"ε {remaining} of {cap} left{delta}{more}"


def describe_successors(more: int) -> str:
    """How many releases of the same size fit after a release, as text."""
    return f"room for about {more} more like this" if more > 0 else "no room for another like this"


class BudgetLine(TypedDict):
    """An account and its remaining budget, with amounts as text."""

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
    """The accounts as plain data, with amounts as text."""
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
