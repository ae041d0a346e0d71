"""Accounts and caps: the spending of each cohort, and whether one more charge fits.

Each population, cohort and guarantee kind has one account, with one neighbouring relation and one
privacy unit. A record is in one cohort, so cohorts compose in parallel (Theorem 3 of McSherry,
Privacy Integrated Queries, 2009). A unit may have records in every cohort, so claims about units
are also charged to the account `all cohorts` of their population.

Within a population, claims about records and claims about units are not added. A record-level
epsilon e costs a unit with k records k e (group privacy), and k is unbounded if no unit is
declared. Only the kind that came first is accepted. `storage.ledger.composition` defines how
releases add up, and `storage.ledger.fold` defines which releases an account counts.
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
    """The budget, or a related rule, forbids the release. The text shows the arithmetic."""


def accounts_of(
    population: str, cohorts: Iterable[str], privacy_unit: str | None
) -> list[tuple[str, str]]:
    """The accounts (population, cohort) to which a release is charged under its own name."""
    accounts = [(population, cohort) for cohort in cohorts]
    # guard: test_two_years_at_the_cap_each
    return accounts if privacy_unit == RECORD else [*accounts, (population, ALL_COHORTS)]


@dataclass(frozen=True)
class Cost:
    """The cost of one release, as stated in its claim and event."""

    relation: NeighbouringRelation
    privacy_unit: str
    epsilon: Decimal
    delta: Decimal
    event: EventJson | None = None
    records_per_unit: int = 1
    formal: bool = False
    _losses: dict[str, Loss] = field(init=False, default_factory=dict, compare=False, repr=False)
    """Cached by relation, because all cohort accounts need the same loss."""

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
        """The cost of a planned release.

        Args:
            exact: the exact amounts of its claim, if already known.
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
    """The spending of one cohort of a population for one kind of guarantee."""

    population: str
    cohort: str
    guarantee_kind: GuaranteeKind
    neighbouring_relation: NeighbouringRelation | None = None
    privacy_unit: str | None = None
    rule: Rule | None = None
    """Composition rule of the account; None before the first charge."""
    spent: Loss = field(default_factory=Loss)
    delta_cap: Decimal | None = None
    """The delta at which its epsilon is shown, for rules other than `basic`."""
    last: Loss | None = None
    """The charge of the last release, for a forecast."""

    @property
    def exact(self) -> bool:
        """Whether its epsilon holds at the delta of the cap, as opposed to being a sum of
        claims.
        """
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
    """The amount that an account has left under its cap. `cap` is None if the policy in force has
    none.
    """

    account: Account
    cap: Cap | None
    size: Loss | None = None
    """Loss of each further release; None if unknown."""

    @staticmethod
    def of_claim(
        account: Account, cap: Cap | None, epsilon: Decimal, delta: Decimal | None
    ) -> Balance:
        """The balance for releases with this claim, as if their noise were Gaussian."""
        if cap is None or cap.composition == "basic" or cap.delta is None:
            return Balance(account, cap, Loss(epsilon, delta or amounts.ZERO_DELTA, None, None))
        size = composition.gaussian_loss(epsilon, delta or amounts.ZERO_DELTA)
        return Balance(account, cap, size)

    @property
    def used(self) -> bool:
        return self.account.rule is not None

    @property
    def relation(self) -> str | None:
        """The neighbouring relation of the account, or the one it will have; None if the first
        release decides.
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
        """How many more releases of this size fit; None if the size is unknown or there is no
        cap.
        """
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
        """Whether one more release fits or, if its size is unknown, whether anything is left."""
        return self.left > 0 if self.more is None else self.more > 0


@dataclass(frozen=True)
class Charge:
    """The effect of a release on one account, before and after, both under the cap in force."""

    before: Account
    after: Account
    loss: Loss
    """Loss of the release and of earlier releases that share records with it and were not charged
    here.
    """
    own_loss: Loss
    """Loss of the release alone."""
    cap: Cap | None
    own: bool
    """Whether the account belongs to the release's own population and cohorts."""

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
        """Balance of the account afterwards, for releases of the same size."""
        return Balance(self.after, self.cap, self.after.last)

    @property
    def alone(self) -> Decimal:
        """The cost of the release alone, by the account's rule."""
        rule = self.after.rule or "basic"
        return composition.total(self.own_loss, rule=rule, delta=self.after.delta_cap)

    @property
    def earlier(self) -> Decimal:
        """The earlier spending on the records of this release, under any name."""
        spent, rule = self.after.spent.plus(self.own_loss, -1), self.after.rule or "basic"
        return composition.total(spent, rule=rule, delta=self.after.delta_cap)

    @property
    def account(self) -> str:
        """Cohort of the account, prefixed by its population if it belongs to another release."""
        return self.after.cohort if self.own else f"{self.after.population}/{self.after.cohort}"


def charge_account(
    account: Account, cap: Cap | None, costs: Sequence[Cost], *, policy: str, own: bool = True
) -> tuple[Charge, BudgetRefused | None]:
    """Charges costs to an account; also returns the reason for refusal, if there is one.

    Args:
        costs: the cost of the claim, followed by costs of earlier releases that share records with
            it and were not charged here.
        policy: name of the policy in force.
        own: whether the account belongs to the release's own population.
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
    relations = {
        cost.relation for cost in costs
    }  # an account that begins with earlier costs must be able to accept all of them
    first = required or ("replace-one" if "replace-one" in relations else costs[0].relation)
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
    """The error for charges that exceed their caps.

    Args:
        charges: at least one.
        policy: name of the policy in force.
        adds: what is charged.
        then: the consequence.
    """
    return BudgetRefused(f"{describe_excess(charges, policy, adds=adds)}{then}", kind="over-cap")


def balances(policy: Policy, accounts: Iterable[Account] = ()) -> list[Balance]:
    """All accounts that were charged, and those that the policy grants: `*` stands for any other
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
