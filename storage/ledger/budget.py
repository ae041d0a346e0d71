"""Accounts and caps: what a cohort has spent, and whether one more charge fits.

Each population, cohort and guarantee kind has one account, in one neighbouring relation and one privacy unit. A record
is in one cohort, so that cohorts compose in parallel (Theorem 3 of McSherry, Privacy Integrated Queries, 2009). A unit
may have records in each, so that a claim about units is also charged to the account `all cohorts` of its population.

In one population, claims about records and about units are not added: what a record-level epsilon e costs a unit with k
records is k e (group privacy), and nothing bounds k where no unit is named. So whichever came first stays the only one.
How releases add up is in `storage.ledger.composition`; which releases an account counts, in `storage.ledger.fold`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from mechanisms.privacy.events import GuaranteeKind
from storage.errors import StorageError
from storage.ledger import amounts, composition
from storage.ledger.composition import Loss, Rule
from storage.ledger.models import Charge
from storage.ledger.policy import ALL_COHORTS, Cap, Policy

RECORD = "record"
"""The privacy unit of a single record."""


class BudgetRefused(StorageError):
    """The budget, or a rule beside it, forbids the release; the text shows the arithmetic."""


def accounts_of(population: str, cohorts: Iterable[str], privacy_unit: str | None) -> list[tuple[str, str]]:
    """Returns the accounts, population and cohort, that a release is charged to by its own name."""
    accounts = [(population, cohort) for cohort in cohorts]
    # guard: a release about units is charged to all cohorts
    return accounts if privacy_unit == RECORD else [*accounts, (population, ALL_COHORTS)]


@dataclass(frozen=True)
class Cost:
    """What one release costs, as its claim and event state it."""

    relation: str
    privacy_unit: str
    epsilon: Decimal
    delta: Decimal
    event: Mapping[str, Any] | None = None
    records_per_unit: int = 1
    formal: bool = False

    def loss(self, relation: str) -> Loss:
        """Returns what it adds to an account that is kept in this relation."""
        if not self.formal:
            doubled = 1 if relation == self.relation else 2
            return Loss(epsilon=self.epsilon * doubled, delta=self.delta, mu_squared=None)
        return composition.loss_of(
            self.event, epsilon=self.epsilon, delta=self.delta, claimed=self.relation, relation=relation,
            records_per_unit=self.records_per_unit,
        )  # fmt: skip

    @staticmethod
    def of(content: Mapping[str, Any]) -> Cost:
        """Returns the cost of a release by the fields of its plan or of its row."""
        formal = content["guarantee_kind"] == "formal"
        return Cost(
            content["neighbouring_relation"] or "", content["privacy_unit"] or "",
            content["epsilon"] or amounts.ZERO_EPSILON, (content["delta"] if formal else None) or amounts.ZERO_DELTA,
            content["event"], content["max_records_per_unit"] or 1, formal,
        )  # fmt: skip


@dataclass(frozen=True)
class Account:
    """What one cohort of a population has spent of one guarantee kind, after the row `sequence`."""

    population: str
    cohort: str
    guarantee_kind: GuaranteeKind
    neighbouring_relation: str | None = None
    privacy_unit: str | None = None
    rule: Rule | None = None
    """Of its last charge; None before the first."""
    spent: Loss = field(default_factory=Loss)
    delta_cap: Decimal | None = None
    """At which its epsilon is shown, by another rule than `basic`."""
    last: Loss | None = None
    """What the last release was charged, for a forecast."""
    sequence: int = 0

    @property
    def exact(self) -> bool:
        """Tells whether its epsilon holds at the delta of the cap, and is not a sum of claims."""
        return self.rule not in (None, "basic") and self.spent.mu_squared is not None

    @property
    def epsilon(self) -> Decimal:
        """For display; see `composition.total`."""
        return composition.total(self.spent, rule=self.rule or "basic", delta=self.delta_cap)

    @property
    def delta(self) -> Decimal:
        """The delta that `epsilon` holds at."""
        return self.delta_cap if self.exact and self.delta_cap is not None else self.spent.delta

    @property
    def name(self) -> str:
        return f"{self.population}/{self.cohort} ({self.guarantee_kind})"

    def after(self, charge: Charge, *, sequence: int, last: Loss) -> Account:
        return replace(
            self, neighbouring_relation=charge.neighbouring_relation, privacy_unit=charge.privacy_unit,
            rule=charge.composition, spent=charge.spent, delta_cap=charge.delta_cap, last=last, sequence=sequence,
        )  # fmt: skip


def charge_account(
    account: Account, cap: Cap | None, costs: Sequence[Cost], *, policy: str, own: bool = True
) -> tuple[Charge, str | None]:
    """Returns the charge of costs, the first of them the claim's own, and why the account may not take it, if so.

    Args:
        costs: beside the claim's own those of earlier releases that share records with it and were not charged here.
        policy: the name of the policy in force.
        own: the account has the release's own population.
    """
    problems = []
    if cap is None:
        problems.append(f"{account.name}: policy {policy} has no cap for it, so nothing may be spent; add one")
    required = None if cap is None else cap.neighbouring_relation
    every = {cost.relation for cost in costs}  # an account that begins with earlier costs can take all of them so
    first = required or ("replace-one" if "replace-one" in every else costs[0].relation)
    kept_in, unit = account.neighbouring_relation or first, costs[0].privacy_unit
    if required not in (None, kept_in):
        problems.append(
            f"{account.name}: spent so far under {kept_in}, the policy now says {required}; the sum would mean nothing"
        )
    for cost in costs:
        if account.privacy_unit not in (None, cost.privacy_unit) or cost.privacy_unit != unit:
            problems.append(
                f"{account.name}: the account counts each {account.privacy_unit or unit}, the claim protects a "
                f"{cost.privacy_unit}; these can't be added"
            )
        if cost.relation not in (kept_in, "add-remove"):
            problems.append(
                f"{account.name}: the account is kept under {kept_in}, the claim holds under {cost.relation}, which"
                f" says nothing about {kept_in}; keep the account under replace-one (policy,"
                " neighbouring_relation) before its first release"
            )
    loss = Loss()
    for cost in costs:
        # guard: earlier losses count
        loss = loss.plus(cost.loss(kept_in if cost.relation in (kept_in, "add-remove") else cost.relation))
    delta = None if cap is None else cap.delta
    rule = account.rule
    if cap is None or cap.composition == "basic":
        rule = "basic"
    # guard: the rule is fixed by the first charge
    elif rule is None:
        rule = composition.first_rule(loss, epsilon=cap.epsilon, delta=delta)
    charge = Charge(
        population=None if own else account.population,
        cohort=account.cohort,
        neighbouring_relation="replace-one" if kept_in == "replace-one" else "add-remove",
        privacy_unit=account.privacy_unit or unit,
        composition=rule,
        before=account.spent,
        loss=loss,
        epsilon_cap=amounts.ZERO_EPSILON if cap is None else cap.epsilon,
        delta_cap=delta,
    )
    # guard: the filter holds the cap
    if not charge.fits:
        problems.append(f"{account.name} under policy {policy}: {arithmetic(charge)}")
    return charge, problems[0] if problems else None


def arithmetic(charge: Charge) -> str:
    """Returns the sum in words and figures."""
    verdict = ("<=", "within the cap") if charge.fits else (">", "over the cap")
    show = amounts.short
    if charge.composition != "basic" and charge.delta_cap is not None and charge.spent.mu_squared is not None:
        return (
            f"epsilon spent {show(charge.epsilon_before)}, with this release {show(charge.epsilon_after)} at delta "
            f"{show(charge.delta_cap)} {verdict[0]} {show(charge.epsilon_cap)}, {verdict[1]}"
        )
    parts = [_sum("epsilon", charge.before.epsilon, charge.loss.epsilon, charge.epsilon_cap)]
    if charge.delta_cap is not None:
        share = charge.delta_cap if charge.composition == "basic" else charge.delta_cap / 100
        parts.append(_sum("delta", charge.before.delta, charge.loss.delta, share))
    return "; ".join(parts)


def _sum(name: str, before: Decimal, charged: Decimal, cap: Decimal) -> str:
    after = amounts.add(before, charged)
    sign, verdict = (">", "over the cap") if after > cap else ("<=", "within the cap")
    show = amounts.short
    return f"{name} spent {show(before)} + asked {show(charged)} = {show(after)} {sign} {show(cap)}, {verdict}"


HORIZONS = (4, 12, 40)
"""Numbers of further releases at which a forecast says what remains: a year, three and ten of quarterly ones."""


@dataclass(frozen=True)
class Forecast:
    """How many more releases of one size an account takes, and what remains of its epsilon after some of them."""

    releases: int
    remains: tuple[tuple[int, Decimal], ...]


def further(account: Account, cap: Cap) -> Forecast:
    """Returns a forecast for releases like the account's last one."""
    if account.last is None:
        return Forecast(0, ())
    return _forecast(account.spent, account.last, account.rule or "basic", cap, after=0)


def forecast(account: Account, cap: Cap | None, epsilon: Decimal, delta: Decimal | None) -> Forecast:
    """Returns a forecast for releases of this claim, the first of them this one, as if their noise were Gaussian."""
    if cap is None:
        return Forecast(0, ())
    stated = delta or amounts.ZERO_DELTA
    if cap.delta is None or cap.composition == "basic" or account.rule == "basic":
        return _forecast(account.spent, Loss(epsilon=epsilon, delta=stated), "basic", cap, after=1)
    each = composition.gaussian_loss(epsilon, stated)
    rule = account.rule or composition.first_rule(each, epsilon=cap.epsilon, delta=cap.delta)
    return _forecast(account.spent, each, rule, cap, after=1)


def _forecast(spent: Loss, each: Loss, rule: Rule, cap: Cap, *, after: int) -> Forecast:
    releases = composition.more(spent, each, rule=rule, epsilon=cap.epsilon, delta=cap.delta)
    remains = tuple(
        (number, cap.epsilon - composition.total(spent.plus(each, number + after), rule=rule, delta=cap.delta))
        for number in ((0, *HORIZONS) if after else HORIZONS)
        if number + after <= releases
    )
    return Forecast(releases, remains)


@dataclass(frozen=True)
class BudgetLine:
    """One account beside its cap; `cap` is None where the policy in force has none."""

    account: Account
    cap: Cap | None

    @property
    def relation(self) -> str | None:
        """The neighbouring relation that the account is or will be kept in; None until the first release."""
        return self.account.neighbouring_relation or (self.cap.neighbouring_relation if self.cap else None)

    @property
    def epsilon_left(self) -> Decimal:
        return self.cap.epsilon - self.account.epsilon if self.cap else amounts.ZERO_EPSILON

    @property
    def further(self) -> int | None:
        """How many more releases of the last one's size fit; None before the first, or without a cap."""
        return None if self.cap is None or self.account.last is None else further(self.account, self.cap).releases

    @property
    def delta_left(self) -> Decimal | None:
        """None where deltas aren't counted."""
        if self.cap is None or self.cap.delta is None or self.account.exact:
            return None
        return self.cap.delta - self.account.delta


def budget_lines(policy: Policy, accounts: Sequence[Account] = ()) -> list[BudgetLine]:
    """Returns every account that was charged, and what the policy grants besides: `*` is any other cohort."""
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
    lines = []
    for _, account in sorted(by_key.items()):
        cap = policy.cap(account.population, account.cohort, account.guarantee_kind)
        delta_cap = account.delta_cap if cap is None else cap.delta
        lines.append(BudgetLine(replace(account, delta_cap=delta_cap), cap))
    return lines


_COUNTED: tuple[GuaranteeKind, ...] = ("formal", "asymptotic-local")
