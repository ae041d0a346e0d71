"""Accounts and caps: what a cohort has spent, and whether one more charge fits.

Each population, cohort and guarantee kind has one account, in one neighbouring relation and one
privacy unit. A record is in one cohort, so that cohorts compose in parallel (Theorem 3 of McSherry,
Privacy Integrated Queries, 2009). A unit may have records in each, so that a claim about units is
also charged to the account `all cohorts` of its population.

In one population, claims about records and about units are not added: what a record-level epsilon e
costs a unit with k records is k e (group privacy), and nothing bounds k where no unit is named. So
whichever came first stays the only one. How releases add up is in `storage.ledger.composition`;
which releases an account counts, in `storage.ledger.fold`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import reduce
from typing import cast

from mechanisms.privacy.events import GuaranteeKind, NeighbouringRelation
from storage.errors import StorageError
from storage.ledger import amounts, composition
from storage.ledger.composition import EventJson, Loss, Rule
from storage.ledger.models import Exact, ReleasePlan
from storage.ledger.policy import ALL_COHORTS, Cap, Policy
from storage.ledger.wording import describe_excess

RECORD = "record"
"""The privacy unit of a single record."""


class BudgetRefused(StorageError):
    """The budget, or a rule beside it, forbids the release; the text shows the arithmetic."""


def accounts_of(
    population: str, cohorts: Iterable[str], privacy_unit: str | None
) -> list[tuple[str, str]]:
    """Returns the accounts, population and cohort, that a release is charged to by its own name."""
    accounts = [(population, cohort) for cohort in cohorts]
    # guard: test_two_years_at_the_cap_each
    return accounts if privacy_unit == RECORD else [*accounts, (population, ALL_COHORTS)]


@dataclass(frozen=True)
class Cost:
    """What one release costs, as its claim and event state it."""

    relation: NeighbouringRelation
    privacy_unit: str
    epsilon: Decimal
    delta: Decimal
    event: EventJson | None = None
    records_per_unit: int = 1
    formal: bool = False
    _losses: dict[str, Loss] = field(init=False, default_factory=dict, compare=False, repr=False)
    """By the relation, since each cohort's account takes the same."""

    def loss(self, relation: str) -> Loss:
        if relation not in self._losses:
            self._losses[relation] = self._loss(relation)
        return self._losses[relation]

    def _loss(self, relation: str) -> Loss:
        if not self.formal:
            doubled = 1 if relation == self.relation else 2
            return Loss(self.epsilon * doubled, self.delta, None, None)
        return composition.loss_of(
            self.event,
            epsilon=self.epsilon,
            delta=self.delta,
            claimed=self.relation,
            relation=relation,
            records_per_unit=self.records_per_unit,
        )

    @staticmethod
    def of(plan: ReleasePlan, exact: Exact | None = None) -> Cost:
        """Returns the cost of a planned release.

        Args:
            exact: the amounts of its claim, where they are known already.
        """
        claim = plan.claim
        exact = exact or Exact.of(claim)
        formal = claim.guarantee_kind == "formal"
        return Cost(
            claim.neighbouring_relation,
            claim.privacy_unit,
            exact.epsilon or amounts.ZERO_EPSILON,
            (exact.delta if formal else None) or amounts.ZERO_DELTA,
            cast("EventJson", plan.event.model_dump(mode="json")),
            claim.max_records_per_unit,
            formal,
        )


@dataclass(frozen=True)
class Account:
    """What one cohort of a population has spent of one type of guarantee."""

    population: str
    cohort: str
    guarantee_kind: GuaranteeKind
    neighbouring_relation: NeighbouringRelation | None = None
    privacy_unit: str | None = None
    rule: Rule | None = None
    """Of its last charge; None before the first."""
    spent: Loss = field(default_factory=Loss)
    delta_cap: Decimal | None = None
    """At which its epsilon is shown, by another rule than `basic`."""
    last: Loss | None = None
    """What the last release was charged, for a forecast."""

    @property
    def exact(self) -> bool:
        """Tells whether its epsilon holds at the delta of the cap, and is not a sum of claims."""
        if self.rule is None or self.rule == "basic" or self.delta_cap is None:
            return False
        return self.spent.amount(self.rule) is not None

    @property
    def epsilon(self) -> Decimal:
        """For display; see `composition.total`."""
        return composition.total(self.spent, rule=self.rule or "basic", delta=self.delta_cap)

    @property
    def delta(self) -> Decimal:
        return self.delta_cap if self.exact and self.delta_cap is not None else self.spent.delta

    @property
    def name(self) -> str:
        return f"{self.population}/{self.cohort} ({self.guarantee_kind})"


@dataclass(frozen=True)
class Balance:
    """What an account has left under its cap; `cap` is None where the policy in force has none."""

    account: Account
    cap: Cap | None
    size: Loss | None = None
    """Of the next releases; None where it is not known."""

    @staticmethod
    def of_claim(
        account: Account, cap: Cap | None, epsilon: Decimal, delta: Decimal | None
    ) -> Balance:
        """Returns the balance for releases of this claim, as if their noise were Gaussian."""
        if cap is None or cap.composition == "basic" or cap.delta is None:
            return Balance(account, cap, Loss(epsilon, delta or amounts.ZERO_DELTA, None, None))
        size = composition.gaussian_loss(epsilon, delta or amounts.ZERO_DELTA)
        return Balance(account, cap, size)

    @property
    def used(self) -> bool:
        return self.account.rule is not None

    @property
    def relation(self) -> str | None:
        """The neighbouring relation that the account is or will be kept in; None until the first
        release.
        """
        return self.account.neighbouring_relation or (
            self.cap.neighbouring_relation if self.cap else None
        )

    @property
    def left(self) -> Decimal:
        return self.cap.epsilon - self.account.epsilon if self.cap else amounts.ZERO_EPSILON

    @property
    def delta_left(self) -> Decimal | None:
        if self.cap is None or self.cap.delta is None or self.account.exact:
            return None
        return self.cap.delta - self.account.delta

    @property
    def more(self) -> int | None:
        """How many more releases of this size fit; None where no size is known, or no cap."""
        cap, size = self.cap, self.size
        if cap is None or size is None:
            return None
        rule, spent = self._rule(cap, size), self.account.spent
        return composition.more(spent, size, rule=rule, epsilon=cap.epsilon, delta=cap.delta)

    @staticmethod
    def _first_rule(cap: Cap, size: Loss) -> Rule:
        return composition.first_rule(size, epsilon=cap.epsilon, delta=cap.delta)

    def _rule(self, cap: Cap, size: Loss) -> Rule:
        if cap.composition == "basic":
            return "basic"
        return self.account.rule or self._first_rule(cap, size)

    @property
    def fits(self) -> bool:
        """Tells whether one more fits; where no size is known, whether anything is left."""
        return self.left > 0 if self.more is None else self.more > 0


@dataclass(frozen=True)
class Charge:
    """What a release adds to one account, which is shown before and after, both under the cap then
    in force.
    """

    before: Account
    after: Account
    loss: Loss
    """Of the release and of earlier ones that share records with it and were not charged here."""
    own_loss: Loss
    """Of the release alone."""
    cap: Cap | None
    own: bool
    """The account has the release's own population and cohorts."""

    @property
    def epsilon_cap(self) -> Decimal:
        return amounts.ZERO_EPSILON if self.cap is None else self.cap.epsilon

    @property
    def fits(self) -> bool:
        spent, rule = self.after.spent, self.after.rule or "basic"
        return composition.within(
            spent, rule=rule, epsilon=self.epsilon_cap, delta=self.after.delta_cap
        )

    @property
    def balance(self) -> Balance:
        """Of the account after it, for releases of the same size."""
        return Balance(self.after, self.cap, self.after.last)

    @property
    def alone(self) -> Decimal:
        """What the release alone would cost, by the account's rule."""
        rule = self.after.rule or "basic"
        return composition.total(self.own_loss, rule=rule, delta=self.after.delta_cap)

    @property
    def earlier(self) -> Decimal:
        """What was spent before on the records of this release, under whatever name."""
        spent, rule = self.after.spent.plus(self.own_loss, -1), self.after.rule or "basic"
        return composition.total(spent, rule=rule, delta=self.after.delta_cap)

    @property
    def account(self) -> str:
        """Cohort of the account, with its population where it is another release's."""
        return self.after.cohort if self.own else f"{self.after.population}/{self.after.cohort}"


def charge_account(
    account: Account, cap: Cap | None, costs: Sequence[Cost], *, policy: str, own: bool = True
) -> tuple[Charge, BudgetRefused | None]:
    """Returns the charge of costs, the first of them the claim's own, and why the account may not
    take it, if so.

    Args:
        costs: beside the claim's own those of earlier releases that share records with it and were
            not charged here.
        policy: the name of the policy in force.
        own: the account has the release's own population.
    """
    problems: list[BudgetRefused] = []
    if cap is None:
        problems.append(
            BudgetRefused(
                f"{account.name}: policy {policy} has no cap for it, so nothing may be spent. Add "
                "one",
                kind="no-cap",
            )
        )
    required = None if cap is None else cap.neighbouring_relation
    every = {
        cost.relation for cost in costs
    }  # an account that begins with earlier costs can take all of them so
    first = required or ("replace-one" if "replace-one" in every else costs[0].relation)
    kept_in, unit = (
        account.neighbouring_relation or first,
        account.privacy_unit or costs[0].privacy_unit,
    )
    if required not in (None, kept_in):
        problems.append(
            BudgetRefused(
                f"{account.name}: spent so far under {kept_in}, but the policy now requires "
                f"{required}. The sum would mean nothing",
                kind="relation-of-policy",
            )
        )
    losses: list[Loss] = []
    for cost in costs:
        if cost.privacy_unit != unit:
            problems.append(
                BudgetRefused(
                    f"{account.name}: the account counts each {unit}, but the claim protects a "
                    f"{cost.privacy_unit}. These cannot be added",
                    kind="unit-of-account",
                )
            )
        if cost.relation not in (kept_in, "add-remove"):
            problems.append(
                BudgetRefused(
                    f"{account.name}: the account is kept under {kept_in}, but the claim holds "
                    f"under {cost.relation}, which says nothing about {kept_in}. Keep the account "
                    "under replace-one (policy, neighbouring_relation) before its first release",
                    kind="relation-of-account",
                )
            )
        # guard: test_units_and_shared_records_follow_the_same_rule
        losses.append(
            cost.loss(kept_in if cost.relation in (kept_in, "add-remove") else cost.relation)
        )
    loss = reduce(Loss.plus, losses, Loss())
    delta, rule = None if cap is None else cap.delta, account.rule
    if cap is None or cap.composition == "basic":
        rule = "basic"
    # guard: test_kinds_that_come_one_after_another
    elif rule is None:
        rule = composition.first_rule(loss, epsilon=cap.epsilon, delta=delta)
    after = replace(
        account,
        neighbouring_relation=kept_in,
        privacy_unit=unit,
        rule=rule,
        spent=account.spent.plus(loss),
        delta_cap=delta,
        last=loss,
    )
    before = replace(after, spent=account.spent)
    charge = Charge(before, after, loss, losses[0], cap, own)
    # guard: test_a_race_of_sixteen_for_ten_reservations_has_ten_winners
    if not charge.fits:
        problems.append(over_cap([charge], policy))
    return charge, problems[0] if problems else None


def over_cap(
    charges: Sequence[Charge], policy: str, *, adds: str = "this release", then: str = ""
) -> BudgetRefused:
    """Returns why charges that exceed their caps are refused.

    Args:
        charges: at least one.
        policy: the name of the policy in force.
        adds: what is charged.
        then: what follows from it.
    """
    return BudgetRefused(f"{describe_excess(charges, policy, adds=adds)}{then}", kind="over-cap")


def balances(policy: Policy, accounts: Iterable[Account] = ()) -> list[Balance]:
    """Returns every account that was charged, and what the policy grants besides: `*` is any other
    cohort.
    """
    by_key = {(a.population, a.cohort, a.guarantee_kind): a for a in accounts}
    granted = [
        (population, cohort)
        for population, budget in policy.populations.items()
        for cohort in (*budget.cohorts, "*")
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
        lines.append(Balance(replace(account, delta_cap=delta_cap), cap, account.last))
    return lines


_COUNTED = cast("tuple[GuaranteeKind, ...]", ("formal", "asymptotic-local"))
