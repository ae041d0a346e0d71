"""Accounts and caps: what a cohort has spent, and whether one more charge fits.

Each population, cohort and guarantee kind has one account, in one neighbouring relation and one privacy unit. A record
is in one cohort, so that cohorts compose in parallel (Theorem 3 of McSherry, Privacy Integrated Queries, 2009). A unit
may have records in each, so that a claim about units is also charged to the account `all cohorts` of its population.

In one population, claims about records and about units are not added: what a record-level epsilon e costs a unit with k
records is k e (group privacy), and nothing bounds k where no unit is named. So whichever came first stays the only one.
How releases add up is in `storage.ledger.composition`; it holds where they are chosen in the light of earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from mechanisms.privacy.events import GuaranteeKind
from storage.errors import StorageError
from storage.ledger import amounts, chain, composition
from storage.ledger.composition import Loss, Rule
from storage.ledger.models import Charge, Row
from storage.ledger.policy import ALL_COHORTS, Cap, Policy
from storage.ledger.schema import ledger_row, spend

_S = spend.c
RECORD = "record"
"""The privacy unit of a single record."""


def accounts_of(population: str, cohorts: Iterable[str], privacy_unit: str | None) -> list[tuple[str, str]]:
    """Returns the accounts, population and cohort, that a release is charged to by its own name."""
    accounts = [(population, cohort) for cohort in cohorts]
    # guard: a release about units is charged to all cohorts
    return accounts if privacy_unit == RECORD else [*accounts, (population, ALL_COHORTS)]


class BudgetRefused(StorageError):
    """The budget, or a rule beside it, forbids the release; the text shows the arithmetic."""


@dataclass(frozen=True)
class Account:
    """Holds what one cohort of a population has spent of one guarantee kind, after the row `sequence`."""

    population: str
    cohort: str
    guarantee_kind: GuaranteeKind
    epsilon: Decimal = amounts.ZERO_EPSILON
    delta: Decimal = amounts.ZERO_DELTA
    neighbouring_relation: str | None = None
    privacy_unit: str | None = None
    sequence: int = 0
    rule: Rule | None = None
    """Of its last charge; None before the first."""
    spent: Loss | None = None
    last: Loss | None = None
    """What the last release was charged, for a forecast."""

    @property
    def exact(self) -> bool:
        """Tells whether its epsilon holds at the delta of the cap, and is not a sum of claims."""
        return self.rule not in (None, "basic")

    @property
    def name(self) -> str:
        """Returns the account in words."""
        return f"{self.population}/{self.cohort} ({self.guarantee_kind})"


@dataclass(frozen=True)
class Cost:
    """Holds what one release costs, as its claim states it."""

    relation: str
    privacy_unit: str
    epsilon: Decimal
    delta: Decimal
    event: Mapping[str, Any] | None = None
    records_per_unit: int = 1

    def loss(self, relation: str) -> Loss:
        """Returns what a formal release adds to an account that is kept in this relation."""
        return composition.loss_of(
            self.event, epsilon=self.epsilon, delta=self.delta, claimed=self.relation, relation=relation,
            records_per_unit=self.records_per_unit,
        )  # fmt: skip

    @staticmethod
    def of(content: Mapping[str, Any]) -> Cost:
        """Returns the cost of a release by the fields of its plan, or of its newest row."""
        delta: Decimal | None = content["delta"] if content["guarantee_kind"] == "formal" else None
        return Cost(
            content["neighbouring_relation"] or "", content["privacy_unit"] or "",
            content["epsilon"] or amounts.ZERO_EPSILON, delta or amounts.ZERO_DELTA,
            content["event"], content["max_records_per_unit"] or 1,
        )  # fmt: skip


@dataclass(frozen=True)
class Spending:
    """Holds what a release spends: from which accounts, of which records, and how much."""

    population: str
    cohorts: tuple[str, ...]
    kind: GuaranteeKind
    fingerprint: str
    cost: Cost

    @staticmethod
    def of(content: Mapping[str, Any]) -> Spending:
        """Returns the spending of a release by the fields that its plan settles."""
        return Spending(
            content["population"],
            content["cohorts"],
            content["guarantee_kind"],
            content["data_fingerprint"],
            Cost.of(content),
        )

    def surplus(self, epsilon: Decimal) -> Spending:
        """Returns the spending of an epsilon that a draw cost more than was planned."""
        return replace(self, cost=replace(self.cost, epsilon=epsilon, delta=amounts.ZERO_DELTA))

    @property
    def accounts(self) -> list[tuple[str, str]]:
        """Returns the accounts of the release's own name."""
        return accounts_of(self.population, self.cohorts, self.cost.privacy_unit)

    def other_accounts(self, overlap: Iterable[Row]) -> list[tuple[str, str]]:
        """Returns the accounts of earlier releases that it overlaps with, by their names, sorted."""
        others = {one for row in overlap for one in accounts_of(str(row.population), row.cohorts, row.privacy_unit)}
        return sorted(others - set(self.accounts))


def read_account(connection: Connection, population: str, cohort: str, kind: GuaranteeKind) -> Account:
    """Return the newest total of an account, as the row of the chain has it that the running total points to.

    The running totals only say where to look: where they do not agree with the chain, the chain is read.
    """
    newest = connection.execute(
        sa.select(spend)
        .where(_S.population == population, _S.cohort == cohort, _S.guarantee_kind == kind)
        .order_by(_S.sequence.desc())
        .limit(1)
    ).one_or_none()
    if newest is None:
        return Account(population, cohort, kind)
    row = chain.newest(connection, ledger_row.c.sequence == newest.sequence)
    account = None if row is None else _charged(row, population, cohort, kind)
    total = (Decimal(newest.epsilon), Decimal(newest.delta))
    if account is not None and total == (account.epsilon, account.delta):
        return account
    rows = chain.select_rows(connection, ledger_row.c.kind == "release", ledger_row.c.guarantee_kind == kind)
    charged = [account for row in rows if (account := _charged(row, population, cohort, kind)) is not None]
    return charged[-1] if charged else Account(population, cohort, kind)


def _charged(row: Row, population: str, cohort: str, kind: GuaranteeKind) -> Account | None:
    """Returns the account after a row's charge to it, None where it has none."""
    for charge in row.charges if row.guarantee_kind == kind else ():
        if (charge.population or row.population, charge.cohort) == (population, cohort):
            return charged_account(charge, row.population or "", kind, epsilon=row.epsilon, sequence=row.sequence)
    return None


def charged_account(
    charge: Charge, population: str, kind: GuaranteeKind, *, epsilon: Decimal | None = None, sequence: int = 0
) -> Account:
    """Returns an account after a charge of a release of a population, which claims this epsilon."""
    last = charge.loss or Loss(epsilon=max(charge.epsilon, epsilon or charge.epsilon), delta=charge.delta)
    return Account(
        charge.population or population, charge.cohort, kind, charge.epsilon_after, charge.delta_after,
        charge.neighbouring_relation, charge.privacy_unit, sequence, charge.composition, charge.spent, last,
    )  # fmt: skip


def other_unit(connection: Connection, population: str, kind: GuaranteeKind, privacy_unit: str | None) -> str | None:
    """Returns another unit that some account of a population protects, None where there is none."""
    unit = privacy_unit or ""
    for differs in (_S.privacy_unit < unit, _S.privacy_unit > unit):  # each a range of the index
        cohorts = sa.select(_S.cohort).where(_S.population == population, _S.guarantee_kind == kind, differs)
        for cohort in dict.fromkeys(connection.scalars(cohorts)):  # DISTINCT would have SQLite read all of it
            protected = read_account(connection, population, cohort, kind).privacy_unit  # as the chain has it
            if protected not in (None, privacy_unit):
                return protected
    return None


def require_one_unit(connection: Connection, population: str, kind: GuaranteeKind, privacy_unit: str | None) -> None:
    """Require that a population's releases all protect the same: a unit's loss by claims about others is not known."""
    other = other_unit(connection, population, kind, privacy_unit)
    if other is not None:
        raise BudgetRefused(
            f"{population} ({kind}): its accounts count each {other}, the claim protects a {privacy_unit}; these "
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


def charge_account(account: Account, *, policy: Policy, costs: Sequence[Cost], population: str | None = None) -> Charge:
    """Return the charge of costs, the first of them the claim's own, to an account whose cap and terms they fit.

    Args:
        costs: beside the claim's own those of earlier releases that share records with it and were not charged here.
        population: of the account where it is another release's, which shares records.
    """
    cap = policy.cap(account.population, account.cohort, account.guarantee_kind)
    if cap is None:
        raise BudgetRefused(f"{account.name}: policy {policy.name} has no cap for it, so nothing may be spent; add one")
    kept_in, privacy_unit = _relation_of(account, cap, costs), costs[0].privacy_unit
    epsilon, delta = amounts.ZERO_EPSILON, amounts.ZERO_DELTA
    for cost in costs:
        if account.privacy_unit not in (None, cost.privacy_unit) or cost.privacy_unit != privacy_unit:
            raise BudgetRefused(
                f"{account.name}: the account counts each {account.privacy_unit or privacy_unit}, the claim protects a "
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
    rule, loss, spent = compose(account, cap, [cost.loss(kept_in) for cost in costs] if cap.delta is not None else [])
    after = (amounts.add(account.epsilon, epsilon), amounts.add(account.delta, delta))
    if spent is not None and cap.delta is not None:
        basic = rule == "basic"
        total = composition.total(spent, rule=rule, delta=cap.delta)
        if total == composition.UNREACHABLE:
            raise BudgetRefused(
                f"{account.name}: by the rule `{rule}` no epsilon holds at delta {amounts.short(cap.delta)}, so many "
                "deltas of single releases have been added. Raise the cap's delta."
            )
        after = (total, spent.delta if basic else cap.delta)
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
        composition=rule,
        loss=loss,
        spent=spent,
    )
    # guard: the filter holds the cap
    if not fits(charge):
        raise BudgetRefused(f"{account.name} under policy {policy.name}: {arithmetic(charge)}")
    return charge


def compose(account: Account, cap: Cap, losses: Sequence[Loss]) -> tuple[Rule, Loss | None, Loss | None]:
    """Returns an account's rule after more losses, their sum, and the sum of all; None where claims alone add up."""
    if not losses or (account.rule == "basic" and account.spent is None):
        return "basic", None, None
    added = losses[0]
    for loss in losses[1:]:
        added = added.plus(loss)
    # guard: earlier losses count
    spent = added if account.spent is None else account.spent.plus(added)
    rule_in_force = "basic" if cap.composition == "basic" else account.rule
    rule = composition.next_rule(rule_in_force, spent, added, epsilon=cap.epsilon, delta=cap.delta)
    return (rule, None, None) if rule == "basic" and account.spent is None else (rule, added, spent)


def with_costs(account: Account, cap: Cap | None, costs: Sequence[Cost]) -> Account:
    """Returns an account as it would be after these costs, whether or not they fit."""
    for cost in costs:
        kept_in = account.neighbouring_relation or cost.relation
        comparable = cap is not None and cap.delta is not None and cost.relation in (kept_in, "add-remove")
        losses = [cost.loss(kept_in)] if comparable else []
        rule, _, spent = ("basic", None, None) if cap is None else compose(account, cap, losses)
        epsilon, delta = amounts.add(account.epsilon, cost.epsilon), amounts.add(account.delta, cost.delta)
        if spent is not None and cap is not None and cap.delta is not None:
            epsilon = composition.total(spent, rule=rule, delta=cap.delta)
            delta = spent.delta if rule == "basic" else cap.delta
        relation = account.neighbouring_relation or cost.relation
        account = replace(account, epsilon=epsilon, delta=delta, rule=rule, spent=spent, neighbouring_relation=relation)
    return account


HORIZONS = (4, 12, 40)
"""Numbers of further releases at which a forecast says what remains: a year, three and ten of quarterly ones."""


@dataclass(frozen=True)
class Forecast:
    """Holds how many more releases of one size an account takes, and what remains of its epsilon after some of them."""

    releases: int
    remains: tuple[tuple[int, Decimal], ...]
    """Numbers of releases, and the epsilon that remains then; only numbers that fit."""


def further(account: Account, cap: Cap) -> Forecast:
    """Returns the forecast for more releases of the last one's size."""
    spent = account.spent or Loss(epsilon=account.epsilon, delta=account.delta)
    basic = cap.composition == "basic" or account.spent is None
    rule = "basic" if basic or account.rule is None else account.rule
    return _forecast(spent, account.last or spent, rule, cap, after=0)


def forecast(account: Account, cap: Cap | None, epsilon: Decimal, delta: Decimal | None) -> Forecast:
    """Returns the forecast for releases of this claim, the first of them this one; by an exact rule as if their noise
    were Gaussian.
    """
    if cap is None:
        return Forecast(0, ())
    spent = account.spent or Loss(epsilon=account.epsilon, delta=account.delta)
    if cap.delta is not None and cap.composition == "exact" and account.rule != "basic":
        each = composition.gaussian_loss(epsilon, delta or amounts.ZERO_DELTA)
        rule = composition.next_rule(account.rule, spent.plus(each), each, epsilon=cap.epsilon, delta=cap.delta)
    else:
        each, rule = Loss(epsilon=epsilon, delta=delta or amounts.ZERO_DELTA), "basic"
    return _forecast(spent, each, rule, cap, after=1)


def _forecast(spent: Loss, each: Loss, rule: Rule, cap: Cap, *, after: int) -> Forecast:
    rule = "mixed" if rule == "gaussian" and each.mu_squared is None else rule
    delta = cap.delta if cap.delta is not None else Decimal("Infinity")
    releases = composition.more(spent, each, rule=rule, epsilon=cap.epsilon, delta=delta)
    remains = tuple(
        (number, cap.epsilon - composition.total(spent.plus(each, number + after), rule=rule, delta=delta))
        for number in ((0, *HORIZONS) if after else HORIZONS)
        if number + after <= releases
    )
    return Forecast(releases, remains)


def _relation_of(account: Account, cap: Cap, costs: Sequence[Cost]) -> str:
    required = cap.neighbouring_relation
    if account.neighbouring_relation is None:
        every = {cost.relation for cost in costs}  # an account that begins with earlier costs can take all of them so
        return required or ("replace-one" if "replace-one" in every else costs[0].relation)
    if required not in (None, account.neighbouring_relation):
        raise BudgetRefused(
            f"{account.name}: spent so far under {account.neighbouring_relation}, the policy now says {required};"
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
    if charge.composition != "basic" and charge.delta_cap is not None:
        show, over = amounts.short, charge.epsilon_after > charge.epsilon_cap
        return (
            f"epsilon spent {show(charge.epsilon_before)}, with this release {show(charge.epsilon_after)} at delta "
            f"{show(charge.delta_cap)} {'>' if over else '<='} {show(charge.epsilon_cap)}, "
            f"{'over' if over else 'within'} the cap"
        )
    parts = [_sum("epsilon", charge.epsilon_before, charge.epsilon, charge.epsilon_after, charge.epsilon_cap)]
    if charge.delta_cap is not None:
        parts.append(_sum("delta", charge.delta_before, charge.delta, charge.delta_after, charge.delta_cap))
    return "; ".join(parts)


def _sum(name: str, before: Decimal, charged: Decimal, after: Decimal, cap: Decimal) -> str:
    sign, verdict = (">", "over the cap") if after > cap else ("<=", "within the cap")
    show = amounts.short
    return f"{name} spent {show(before)} + asked {show(charged)} = {show(after)} {sign} {show(cap)}, {verdict}"


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
        """Returns what may still be spent."""
        return self.cap.epsilon - self.account.epsilon if self.cap else amounts.ZERO_EPSILON

    @property
    def further(self) -> int | None:
        """Returns how many more releases of the last one's size fit; None before the first, or without a cap."""
        return None if self.cap is None or self.account.last is None else further(self.account, self.cap).releases

    @property
    def delta_left(self) -> Decimal | None:
        """Returns what may still be spent, None where deltas aren't counted."""
        if self.cap is None or self.cap.delta is None or self.account.exact:
            return None
        return self.cap.delta - self.account.delta


def budget_lines(policy: Policy, accounts: Sequence[Account] = ()) -> list[BudgetLine]:
    """Return every account that was charged, and what the policy grants besides: `*` is any other cohort."""
    by_key = {(a.population, a.cohort, a.guarantee_kind): a for a in accounts}
    granted = [
        (population, cohort) for population, budget in policy.populations.items() for cohort in (*budget.cohorts, "*")
    ]
    if policy.default is not None:
        granted += [("*", cohort) for cohort in (*policy.default.cohorts, "*")]
    for population, cohort in granted:
        for kind in _COUNTED:
            if policy.cap(population, cohort, kind) is not None:
                by_key.setdefault((population, cohort, kind), Account(population, cohort, kind))
    return [BudgetLine(a, policy.cap(a.population, a.cohort, a.guarantee_kind)) for _, a in sorted(by_key.items())]


_COUNTED: tuple[GuaranteeKind, ...] = ("formal", "asymptotic-local")
