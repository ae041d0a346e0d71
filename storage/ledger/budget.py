"""Accounts and caps: what a cohort has spent, and whether one more charge fits.

An account is kept a population, cohort and guarantee kind, in one neighbouring relation and one privacy unit. A record
is in one cohort, so that cohorts compose in parallel (Theorem 3 of McSherry, Privacy Integrated Queries, 2009). A unit
may have records in each, so that a claim about units is charged beside to the account `all cohorts` of its population.

In one population, claims about records and about units are not added: what a record-level epsilon e costs a unit with k
records is k e (group privacy), and nothing bounds k where no unit is named. So whichever came first stays the only one.
Composition is basic (Dwork and Roth, The Algorithmic Foundations of Differential Privacy, 2014, Theorem 3.16):
epsilons add up, deltas add up. It holds for releases that were chosen in the light of earlier ones too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from mechanisms.privacy.events import GuaranteeKind
from storage.errors import StorageError
from storage.ledger import amounts, chain
from storage.ledger.models import Charge, Row
from storage.ledger.policy import ALL_COHORTS, Cap, Policy
from storage.ledger.schema import ledger_row, spend

_S = spend.c
RECORD = "record"
"""The privacy unit that is no unit of several records."""


def accounts_of(population: str, cohorts: Iterable[str], privacy_unit: str | None) -> list[tuple[str, str]]:
    """The accounts, population and cohort, that a release is charged to by its own name."""
    own = [(population, cohort) for cohort in cohorts]
    return own if privacy_unit == RECORD else [*own, (population, ALL_COHORTS)]


class BudgetRefused(StorageError):
    """The budget, or a rule beside it, forbids the release; the text shows the arithmetic."""


@dataclass(frozen=True)
class Account:
    """What one cohort of a population has spent of one guarantee kind, after the row `sequence`."""

    population: str
    cohort: str
    guarantee_kind: GuaranteeKind
    epsilon: Decimal = amounts.ZERO_EPSILON
    delta: Decimal = amounts.ZERO_DELTA
    neighbouring_relation: str | None = None
    privacy_unit: str | None = None
    sequence: int = 0

    @property
    def name(self) -> str:
        """The account in words."""
        return f"{self.population}/{self.cohort} ({self.guarantee_kind})"


@dataclass(frozen=True)
class Cost:
    """What one release costs, as its claim states it."""

    relation: str
    privacy_unit: str
    epsilon: Decimal
    delta: Decimal

    @staticmethod
    def of(row: Row) -> Cost:
        """Of a release, by its newest row."""
        formal = row.guarantee_kind == "formal" and row.delta is not None
        return Cost(
            row.neighbouring_relation or "", row.privacy_unit or "", row.epsilon or amounts.ZERO_EPSILON,
            row.delta if formal and row.delta is not None else amounts.ZERO_DELTA,
        )  # fmt: skip


@dataclass(frozen=True)
class SpendPoint:
    """An account's total after one charge."""

    cohort: str
    recorded_at: str
    sequence: int
    epsilon: Decimal
    delta: Decimal
    epsilon_cap: Decimal
    """The cap when the charge was made."""


def spend_history(connection: Connection, population: str, kind: GuaranteeKind) -> list[SpendPoint]:
    """Return every charge to a population's accounts of one kind, oldest first."""
    sequences = sa.select(_S.sequence).where(_S.population == population, _S.guarantee_kind == kind).scalar_subquery()
    return [
        SpendPoint(
            charge.cohort, row.recorded_at, row.sequence, charge.epsilon_after, charge.delta_after, charge.epsilon_cap
        )
        for row in chain.select_rows(connection, ledger_row.c.sequence.in_(sequences))
        for charge in row.charges
        if (charge.population or row.population) == population
    ]


def read_account(connection: Connection, population: str, cohort: str, kind: GuaranteeKind) -> Account:
    """Return the newest total of an account, as the row of the chain has it that the running total points to.

    The running totals only say where to look: where they do not agree with the chain, the chain is read.
    """
    found = connection.execute(
        sa.select(spend)
        .where(_S.population == population, _S.cohort == cohort, _S.guarantee_kind == kind)
        .order_by(_S.sequence.desc())
        .limit(1)
    ).one_or_none()
    if found is None:
        return Account(population, cohort, kind)
    row = chain.newest(connection, ledger_row.c.sequence == found.sequence)
    account = None if row is None else _charged(row, population, cohort, kind)
    total = (Decimal(found.epsilon), Decimal(found.delta))
    if account is not None and total == (account.epsilon, account.delta):
        return account
    rows = chain.select_rows(
        connection,
        ledger_row.c.kind == "release",
        ledger_row.c.guarantee_kind == kind,
    )
    charged = [account for row in rows if (account := _charged(row, population, cohort, kind)) is not None]
    return charged[-1] if charged else Account(population, cohort, kind)


def _charged(row: Row, population: str, cohort: str, kind: GuaranteeKind) -> Account | None:
    """The account after a row's charge to it, None where it has none."""
    for charge in row.charges if row.guarantee_kind == kind else ():
        if (charge.population or row.population, charge.cohort) == (population, cohort):
            return Account(
                population, cohort, kind, charge.epsilon_after, charge.delta_after, charge.neighbouring_relation,
                charge.privacy_unit, row.sequence,
            )  # fmt: skip
    return None


def other_unit(connection: Connection, population: str, kind: GuaranteeKind, privacy_unit: str | None) -> str | None:
    """What else than this unit some account of a population protects, None where nothing."""
    unit = privacy_unit or ""
    for differs in (_S.privacy_unit < unit, _S.privacy_unit > unit):  # each a range of the index
        cohorts = sa.select(_S.cohort).where(_S.population == population, _S.guarantee_kind == kind, differs)
        for cohort in dict.fromkeys(connection.scalars(cohorts)):  # DISTINCT would have SQLite read all of it
            kept = read_account(connection, population, cohort, kind).privacy_unit  # as the chain has it
            if kept not in (None, privacy_unit):
                return kept
    return None


def require_one_unit(connection: Connection, population: str, kind: GuaranteeKind, privacy_unit: str | None) -> None:
    """Require that a population's releases all protect the same: a unit's loss by claims about others is not known.

    Raises:
        BudgetRefused: they do not.
    """
    other = other_unit(connection, population, kind, privacy_unit)
    if other is not None:
        raise BudgetRefused(
            f"{population} ({kind}): its accounts are kept a {other}, the claim protects a {privacy_unit}; these "
            "can't be added, since how many records of the one belong to the other is not bounded"
        )


def all_accounts(connection: Connection) -> list[Account]:
    """Return every account that anything was ever charged to, sorted."""
    keys = connection.execute(
        sa.select(_S.population, _S.cohort, _S.guarantee_kind)
        .distinct()
        .order_by(_S.population, _S.cohort, _S.guarantee_kind)
    ).all()
    accounts = [read_account(connection, *key) for key in keys]
    return [account for account in accounts if account.sequence]


def charge_account(
    account: Account,
    *,
    policy: Policy,
    costs: Sequence[Cost],
    population: str | None = None,
) -> Charge:
    """Return the charge of costs, the first of them the claim's own, to an account.

    Args:
        costs: beside the claim's own those of earlier releases that share records with it and were not charged here.
        population: of the account where it is another release's, which shares records.

    Raises:
        BudgetRefused: when there is no cap, the account is kept in terms that the claim doesn't fit, or the
            sum exceeds the cap.
    """
    cap = policy.cap(account.population, account.cohort, account.guarantee_kind)
    if cap is None:
        raise BudgetRefused(f"{account.name}: policy {policy.name} has no cap for it, so nothing may be spent; add one")
    kept_in, privacy_unit = _relation_of(account, cap, costs), costs[0].privacy_unit
    epsilon, delta = amounts.ZERO_EPSILON, amounts.ZERO_DELTA
    for cost in costs:
        if account.privacy_unit not in (None, cost.privacy_unit) or cost.privacy_unit != privacy_unit:
            raise BudgetRefused(
                f"{account.name}: the account is kept a {account.privacy_unit or privacy_unit}, the claim protects a "
                f"{cost.privacy_unit}; these can't be added"
            )
        if kept_in != cost.relation and cost.relation != "add-remove":
            raise BudgetRefused(
                f"{account.name}: the account is kept under {kept_in}, the claim holds under {cost.relation}, which"
                f" says nothing about {kept_in}; keep the account under replace-one (policy,"
                " neighbouring_relation) before its first release"
            )
        more = (
            amounts.as_replace_one(cost.epsilon, cost.delta) if kept_in != cost.relation else (cost.epsilon, cost.delta)
        )
        epsilon, delta = amounts.add(epsilon, more[0]), amounts.add(delta, more[1] or amounts.ZERO_DELTA)
    after = (amounts.add(account.epsilon, epsilon), amounts.add(account.delta, delta))
    charge = Charge(
        population=population,
        cohort=account.cohort,
        neighbouring_relation="replace-one" if kept_in == "replace-one" else "add-remove",
        privacy_unit=privacy_unit,
        epsilon=epsilon,
        delta=delta,
        epsilon_before=account.epsilon,
        delta_before=account.delta,
        epsilon_after=after[0],
        delta_after=after[1],
        epsilon_cap=cap.epsilon,
        delta_cap=cap.delta,
    )
    if not fits(charge):
        raise BudgetRefused(f"{account.name} under policy {policy.name}: {arithmetic(charge)}")
    return charge


def _relation_of(account: Account, cap: Cap, costs: Sequence[Cost]) -> str:
    wanted = cap.neighbouring_relation
    if account.neighbouring_relation is None:
        every = {cost.relation for cost in costs}  # an account that begins with earlier costs can take all of them so
        return wanted or ("replace-one" if "replace-one" in every else costs[0].relation)
    if wanted not in (None, account.neighbouring_relation):
        raise BudgetRefused(
            f"{account.name}: spent so far under {account.neighbouring_relation}, the policy now says {wanted};"
            " the sum would mean nothing"
        )
    return account.neighbouring_relation


def fits(charge: Charge) -> bool:
    """Say whether a charge stays within its cap. A cap without delta (asymptotic-local) bounds epsilon alone."""
    return charge.epsilon_after <= charge.epsilon_cap and (
        charge.delta_cap is None or charge.delta_after <= charge.delta_cap
    )


def arithmetic(charge: Charge) -> str:
    """Return the sum in words and figures."""
    parts = [_sum("epsilon", charge.epsilon_before, charge.epsilon, charge.epsilon_after, charge.epsilon_cap)]
    if charge.delta_cap is not None:
        parts.append(_sum("delta", charge.delta_before, charge.delta, charge.delta_after, charge.delta_cap))
    return "; ".join(parts)


def _sum(name: str, before: Decimal, asked: Decimal, after: Decimal, cap: Decimal) -> str:
    sign, verdict = (">", "over the cap") if after > cap else ("<=", "within the cap")
    show = amounts.short
    return f"{name} spent {show(before)} + asked {show(asked)} = {show(after)} {sign} {show(cap)}, {verdict}"


@dataclass(frozen=True)
class BudgetLine:
    """One account beside its cap; `cap` is None where the policy in force no longer has one."""

    account: Account
    cap: Cap | None

    @property
    def relation(self) -> str | None:
        """The neighbouring relation that the account is or will be kept in; None until the first release."""
        return self.account.neighbouring_relation or (self.cap.neighbouring_relation if self.cap else None)

    @property
    def epsilon_left(self) -> Decimal:
        """What may still be spent."""
        return self.cap.epsilon - self.account.epsilon if self.cap else amounts.ZERO_EPSILON

    @property
    def delta_left(self) -> Decimal | None:
        """What may still be spent, None for a kind whose delta isn't counted."""
        if self.cap is None or self.cap.delta is None:
            return None
        return self.cap.delta - self.account.delta


def budget_lines(policy: Policy, accounts: Sequence[Account] = ()) -> list[BudgetLine]:
    """Return every account that was charged, and what the policy grants besides: `*` is any other cohort."""
    known = {(a.population, a.cohort, a.guarantee_kind): a for a in accounts}
    granted = [(population, cohort) for population, own in policy.populations.items() for cohort in (*own.cohorts, "*")]
    if policy.default is not None:
        granted += [("*", cohort) for cohort in (*policy.default.cohorts, "*")]
    for population, cohort in granted:
        for kind in _COUNTED:
            if policy.cap(population, cohort, kind) is not None:
                known.setdefault((population, cohort, kind), Account(population, cohort, kind))
    return [BudgetLine(a, policy.cap(a.population, a.cohort, a.guarantee_kind)) for _, a in sorted(known.items())]


_COUNTED: tuple[GuaranteeKind, ...] = ("formal", "asymptotic-local")
