"""The ledger's state: the fold of its rows, one pure function that every reader and writer uses.

A row takes effect only if it is signed and follows from earlier rows; being stored is not enough.
The rows of a release, handovers and revocations are signed with a releasing worker's key, including
their position in the chain. Approvals, refusals and changes of the policy are signed by the persons
whose keys the policy in force lists. The charge of an account follows from the events of the
releases that it counts, and is not stored in any row. A row that does not follow from earlier ones
is listed in `State.bad` and has no effect, with one exception: a correctly signed release is always
charged, but may not be drawn. Damage to the chain itself stops everything.

Processes do not share a stored fold. A reader would have to verify it, and only a releasing
worker's key could vouch for it, which other readers do not have. Training also has every key that
those readers have, so it could forge other sums next to intact rows, with which journal, witness
and partners' heads would still agree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from typing import Literal, NamedTuple, cast

from pydantic import ValidationError

from mechanisms.privacy.events import GuaranteeKind
from storage.errors import DamagedData, InputError, Missing, Unknown
from storage.ledger import amounts, chain
from storage.ledger.budget import (
    Account,
    BudgetRefused,
    Charge,
    Cost,
    accounts_of,
    charge_account,
    over_cap,
)
from storage.ledger.chain import Damage, StoredRow
from storage.ledger.composition import Loss
from storage.ledger.content import policy_terms, terms_of
from storage.ledger.decisions import Matter, approvers, signer
from storage.ledger.entries import (
    UNSIGNED,
    Burned,
    ChainRow,
    Committed,
    Drawn,
    LedgerRow,
    PolicySet,
    Refused,
    ReleaseEntry,
    ReleaseRow,
    Reserved,
    Revoked,
    Row,
)
from storage.ledger.keys import encoded_key_id, verify_encoded
from storage.ledger.models import GENESIS, SCHEMA_VERSION, LedgerPosition, ReleasePlan
from storage.ledger.policy import ALL_COHORTS, DEFAULT_POLICY, Policy
from storage.ledger.records import Shared

_MAY_FOLLOW = {"drawn": ("reserved",), "committed": ("drawn",), "burned": ("reserved", "drawn")}

AccountKey = tuple[str, str, GuaranteeKind]


class Inconsistent(Exception):
    """A row does not follow from the earlier rows."""


class Damaged(Inconsistent):
    """Stored data differs from what was written."""


Priced = tuple[tuple[Charge, ...], BudgetRefused | None]
"""Charges, and the reason why the budget refuses them, if it does."""


class BadRow(NamedTuple):
    """A row that has no effect, or a release that may not be drawn, with the reason."""

    sequence: int
    problem: str
    void: bool = True
    """True if the row has no effect. False if it is a release that is charged but may not be
    drawn.
    """


@dataclass
class Release:
    """One release: its rows, its cost, and the accounts (population, cohort) that count it."""

    rows: list[ReleaseRow]
    """The release after each of its rows."""
    accounts: set[tuple[str, str]] = field(default_factory=set)
    problem: str = ""
    """Reason why it may not be drawn."""
    revoked: Row[Revoked] | None = None
    charges: list[Charge] = field(default_factory=list)
    cost: Cost = field(init=False)

    def __post_init__(self) -> None:
        self.cost = Cost.of(self.plan, self.rows[0].exact)

    @property
    def row(self) -> ReleaseRow:
        """The newest row, with everything known."""
        return self.rows[-1]

    @property
    def drawn(self) -> ReleaseRow | None:
        """The release as it was drawn; None if it was not."""
        return next((row for row in self.rows if row.state == "drawn"), None)

    @property
    def sequence(self) -> int:
        """Sequence of its reservation."""
        return self.rows[0].sequence

    @property
    def plan(self) -> ReleasePlan:
        return self.rows[0].plan

    @property
    def reserved(self) -> Reserved:
        return self.rows[0].reserved

    @property
    def kind(self) -> GuaranteeKind:
        return self.plan.claim.guarantee_kind

    @property
    def own_accounts(self) -> list[tuple[str, str]]:
        return own_accounts(self.plan)


def own_accounts(plan: ReleasePlan) -> list[tuple[str, str]]:
    return accounts_of(plan.population, plan.cohorts, plan.claim.privacy_unit)


class Sought(NamedTuple):
    """The subject of a comparison with other releases: a plan, or what is known before there is
    one.
    """

    population: str
    cohorts: tuple[str, ...]
    data_fingerprint: str
    kind: GuaranteeKind
    idempotency_key: str = ""

    @staticmethod
    def of(plan: ReleasePlan) -> Sought:
        kind, key = plan.claim.guarantee_kind, plan.idempotency_key
        return Sought(plan.population, plan.cohorts, plan.data_fingerprint, kind, key)


class Overlap(NamedTuple):
    """An earlier release that is related to a planned one: it shares records, or units that both
    protect, or only the population and a cohort.
    """

    release: Release
    shares: Literal["records", "units", "cohorts"]

    @property
    def row(self) -> ReleaseRow:
        """The newest row of the release."""
        return self.release.row

    @property
    def depends_on_same_data(self) -> bool:
        return self.shares != "cohorts"


@dataclass
class State:
    """The state of a ledger after some of its rows."""

    sequence: int = 0
    hash: str = GENESIS
    ledger: str | None = None
    """Hash of the first row."""
    policy: Policy | None = None
    policy_row: Row[PolicySet] | None = None
    policy_digest: str | None = None
    release_keys: frozenset[str] = frozenset()
    """Key ids of releasing workers, from the newest policy that lists any; otherwise the key that
    signed first.
    """
    rows: list[LedgerRow] = field(default_factory=list)
    """Rows that have an effect. Each release row includes everything known at that point."""
    releases: dict[str, Release] = field(default_factory=dict)
    accounts: dict[AccountKey, Account] = field(default_factory=dict)
    refusals: dict[str, Row[Refused]] = field(default_factory=dict)
    """By the idempotency key of the plan."""
    plans: dict[str, Release] = field(default_factory=dict)
    """Releases by the idempotency key of their plan."""
    keys: dict[tuple[str, ...], ChainRow] = field(default_factory=dict)
    """The first row of each event that can happen only once."""
    bad: list[BadRow] = field(default_factory=list)
    broken: str = ""
    """The first damage to the chain. The meaning of later rows is unknown."""
    stopped: str = ""
    """The first row without effect that a releasing worker should have signed. Because its spending
    is unknown, nothing is reserved or drawn.
    """

    # -- Applying rows -----------------------------------------------------------------------------

    def apply(self, stored: StoredRow | Damage) -> LedgerRow | None:
        """Applies the next stored row; returns it, with everything known, if it has an effect.

        After damage to the chain, this continues with the readable rows, so that `verify` lists
        every bad row.
        """
        sequence, expected, previous = stored.sequence, self.sequence + 1, self.hash
        self.sequence, self.hash = sequence, ""
        if sequence != expected:
            missing = expected if sequence == expected + 1 else f"{expected} to {sequence - 1}"
            self._damage(
                expected, f"row {missing} missing: row {sequence} follows row {expected - 1}"
            )
            previous = ""
        if isinstance(stored, Damage):
            self._damage(sequence, f"row {sequence} {stored.problem}")
            return None
        self.hash, self.ledger = stored.hash, self.ledger or stored.hash
        row, problem, kind = None, "", None
        try:
            content = _read(stored)
            kind = content["entry"]["kind"]
            # a row after a missing or damaged one has nothing to be linked to
            if previous and content["previous_hash"] != previous:
                culprit = f"row {max(sequence - 1, 1)} was rewritten"
                self._damage(
                    sequence, f"{culprit}: row {sequence} was linked to another row {sequence - 1}"
                )
            row, problem = self._step(_parsed(content, stored), content, stored.body)
            self.rows.append(row)
        except Damaged as error:
            self._damage(sequence, f"row {sequence} {error}")
        except (Inconsistent, InputError) as error:
            problem = str(error)
        except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError):
            problem = "a field is missing or of another type"
        if problem:
            self.bad.append(BadRow(sequence, f"row {sequence}: {problem}", void=row is None))
            # guard: test_a_void_row_of_a_signed_kind_stops_what_follows
            if row is None and kind not in UNSIGNED:
                self.stopped = self.stopped or self.bad[-1].problem
        return row

    def _damage(self, sequence: int, problem: str) -> None:
        self.broken = self.broken or problem
        self.bad.append(BadRow(sequence, problem))

    def _step(self, row: ChainRow, content: chain.PlainRow, body: str) -> tuple[LedgerRow, str]:
        if row.schema_version != SCHEMA_VERSION:
            raise Inconsistent(f"schema version {row.schema_version} is not known to this code")
        entry = row.entry
        if isinstance(entry, ReleaseEntry):
            self._require_signed(row, chain.signed_bytes_of(content, body))
        match entry:
            case Reserved():
                return self._reserved(cast("Row[Reserved]", row))
            case Drawn() | Committed() | Burned():
                return self._later(cast("Row[ReleaseEntry]", row), entry)
            case PolicySet():
                self._policy_change(cast("Row[PolicySet]", row))
                return row, ""
        if entry.key in self.keys:
            raise Inconsistent("the same happened before")
        match entry:
            case Refused():
                self._refusal(cast("Row[Refused]", row))
            case Revoked():
                self.release(entry.release_id).revoked = cast("Row[Revoked]", row)
        self.keys[entry.key] = row
        return row, ""

    def _require_signed(self, row: ChainRow, signed: bytes) -> None:
        # guard: test_a_reservation_without_the_workers_key
        if row.signer is None or not verify_encoded(signed, row.signature or "", row.signer):
            raise Inconsistent(
                f"a row of kind {row.entry.kind} without the signature of a releasing worker"
            )
        signer = encoded_key_id(row.signer)
        # If no policy has listed a key yet, the first key that signs is the ledger's.
        self.release_keys = self.release_keys or frozenset({signer})
        # guard: test_a_stranger_after_the_first_key
        if signer not in self.release_keys:
            raise Inconsistent(
                "signed by a key that the policy does not list among its `release_keys`, and that "
                "is not the first that signed here"
            )

    def _approved(self, row: Row[Reserved] | Row[PolicySet], matter: Matter) -> None:
        rule, entry = self.in_force.approvals, row.entry
        moment = datetime.fromisoformat(row.recorded_at)
        names = approvers(entry.decisions, rule, matter, moment=moment)
        # guard: test_a_row_that_no_officer_signed_is_named_charged_and_never_drawn
        if names != entry.approvals or len(names) < rule.minimum:
            raise Inconsistent("its approvals aren't those that were signed, or too few")

    def _policy_change(self, row: Row[PolicySet]) -> None:
        entry, policy = row.entry, row.entry.policy
        if self.policy is not None:
            terms = policy_terms(
                policy.name, self.policy_mark, requester=entry.requester, reason=entry.reason
            )
            self._approved(row, Matter("policy", policy.digest, terms, entry.requester))
        self.policy, self.policy_row, self.policy_digest = policy, row, policy.digest
        self.release_keys = policy.release_key_ids() or self.release_keys

    def _refusal(self, row: Row[Refused]) -> None:
        entry, decision = row.entry, row.entry.decision
        if decision.decision != "refuse":
            raise Inconsistent("a refusal without a signature")
        matter = Matter("release", decision.digest, decision.terms, entry.requester)
        moment = datetime.fromisoformat(row.recorded_at)
        by = signer(decision, self.in_force.approvals, matter, moment=moment)
        if by != entry.by:
            raise Inconsistent("a refusal by another person than signed it")
        self.refusals.setdefault(decision.terms.get("idempotency_key", ""), row)

    # -- Releases ----------------------------------------------------------------------------------

    def _reserved(self, row: Row[Reserved]) -> tuple[ReleaseRow, str]:
        entry, plan = row.entry, row.entry.plan
        release_id, key, claim = entry.release_id, plan.idempotency_key, plan.claim
        if release_id in self.releases or key in self.plans:
            raise Inconsistent(f"release {release_id} is reserved twice")
        first = ReleaseRow.of(row)
        if (
            claim.guarantee_kind not in ("formal", "asymptotic-local")
            or first.epsilon is None
            or first.epsilon <= 0
        ):
            raise Inconsistent("a release without a cost")
        shared = [self.release(name) for name in (entry.records.releases if entry.records else ())]
        if any(earlier_release.kind != claim.guarantee_kind for earlier_release in shared):
            raise Inconsistent(
                "it names a release of another type of guarantee with the same records"
            )
        problems = [f"release {release_id} was refused before" if key in self.refusals else ""]
        # guard: test_rows_past_the_program
        if ALL_COHORTS in plan.cohorts or len(set(plan.cohorts)) < len(plan.cohorts):
            problems.append(
                "its cohorts cannot have accounts (an empty, repeated or reserved name)"
            )
        try:
            terms = terms_of(plan, first.exact)
            matter = Matter("release", entry.plan_digest or "", terms, plan.requester)
            self._approved(row, matter)
        except (Inconsistent, InputError) as error:
            problems.append(str(error))
        if entry.policy_digest != self.policy_digest:
            problems.append("the policy that it was checked against was not the current one")
        release = Release([first])
        charges, problem = self.price(plan, shared, cost=release.cost)
        release.accounts |= {(charge.after.population, charge.after.cohort) for charge in charges}
        for earlier in shared:
            earlier.accounts |= set(release.own_accounts)
        self._charge(release, charges)
        self.releases[release_id] = self.plans[key] = release
        release.problem = next((text for text in (*problems, str(problem or "")) if text), "")
        return first, release.problem

    def _later(
        self, row: Row[ReleaseEntry], entry: Drawn | Committed | Burned
    ) -> tuple[ReleaseRow, str]:
        """Applies a later row to its release. If the draw measured a larger cost, the larger one is
        used.
        """
        release, problem = self.release(entry.release_id), None
        before = release.row
        if before.state not in _MAY_FOLLOW[entry.kind]:
            raise Inconsistent(
                f"release {entry.release_id} went from {before.state} to {entry.kind}"
            )
        after = before.after(row, entry)
        epsilon = after.epsilon or amounts.ZERO_EPSILON
        planned = before.epsilon or amounts.ZERO_EPSILON
        if epsilon > planned and before.guarantee_kind == "formal":
            raise Inconsistent(f"release {entry.release_id}: its cost grew with the sample")
        if epsilon > planned:
            charges, problem = self.surplus(release, epsilon - planned)
            self._charge(release, charges, last=Loss(epsilon, amounts.ZERO_DELTA, None, None))
            release.cost = replace(release.cost, epsilon=epsilon)
        release.rows.append(after)
        release.problem = release.problem or str(problem or "")
        return after, str(problem or "")

    def _charge(
        self, release: Release, charges: tuple[Charge, ...], last: Loss | None = None
    ) -> None:
        for charge in charges:
            account = charge.after if last is None else replace(charge.after, last=last)
            self.accounts[account.population, account.cohort, account.guarantee_kind] = account
        release.charges += charges

    def account(self, name: tuple[str, str], kind: GuaranteeKind) -> Account:
        return self.accounts.get((*name, kind)) or Account(*name, kind)

    def price(
        self, plan: ReleasePlan, shared: Sequence[Release], *, cost: Cost | None = None
    ) -> Priced:
        """Charges a planned release to its own accounts and to those of earlier releases of the
        same records.

        Its own accounts are also charged with the cost of those releases, unless they were charged
        before. The first account to which any record or unit was charged therefore contains
        everything ever spent on it.

        Args:
            shared: earlier releases that share records or units with it.
            cost: its own cost, if already known.

        Returns:
            The charges, and the reason why the budget refuses them, if it does.
        """
        own_names, kind = own_accounts(plan), plan.claim.guarantee_kind
        cost = cost or Cost.of(plan)
        # guard: test_the_same_records_under_another_name
        others = sorted(
            {name for earlier in shared for name in earlier.own_accounts} - set(own_names)
        )
        costs = {name: [cost] for name in [*own_names, *others]}
        for name in own_names:
            costs[name] += [earlier.cost for earlier in shared if name not in earlier.accounts]
        charges, problem = self._charges(costs, kind, own_names)
        return charges, self._unit_conflict(costs, kind, cost.privacy_unit) or problem

    def surplus(self, release: Release, epsilon: Decimal) -> Priced:
        """Charges the cost of a draw in excess of the plan to each account that counts the
        release.
        """
        own_names, cost = (
            release.own_accounts,
            replace(release.cost, epsilon=epsilon, delta=amounts.ZERO_DELTA),
        )
        names = [*own_names, *sorted(release.accounts - set(own_names))]
        costs = {name: [cost] for name in names}
        return self._charges(costs, release.kind, own_names, adds="the surplus of its sample")

    def _charges(
        self,
        costs: Mapping[tuple[str, str], Sequence[Cost]],
        kind: GuaranteeKind,
        own: Sequence[tuple[str, str]],
        *,
        adds: str = "this release",
    ) -> Priced:
        policy = self.in_force
        priced = [
            charge_account(
                self.account(name, kind),
                policy.cap(*name, kind),
                account_costs,
                policy=policy.name,
                own=name in own,
            )
            for name, account_costs in costs.items()
        ]
        charges = tuple(charge for charge, _ in priced)
        first = next((problem for _, problem in priced if problem), None)
        if first is None or first.kind != "over-cap":
            return charges, first
        over = [charge for charge, problem in priced if problem and problem.kind == "over-cap"]
        return charges, over_cap(over, policy.name, adds=adds)

    def _unit_conflict(
        self, names: Iterable[tuple[str, str]], kind: GuaranteeKind, unit: str
    ) -> BudgetRefused | None:
        for population in dict.fromkeys(population for population, _ in names):
            # guard: test_claims_about_another_unit
            other = self.other_unit(population, kind, unit)
            if other is not None:
                return BudgetRefused(
                    f"{population} ({kind}): its accounts count each {other}, but the claim "
                    f"protects a {unit}. These cannot be added, because how many records of the "
                    "one belong to the other is not bounded",
                    kind="unit-of-population",
                )
        return None

    def overlaps(
        self, sought: Sought, shared: Mapping[int, Shared | None] | None
    ) -> Iterator[Overlap]:
        """Yields all other releases that are related to one, oldest first, for every kind of
        guarantee.

        Both the charges (`sharing`) and the officer's list (`LedgerReader.overlaps`) are derived
        from this.

        Args:
            shared: overlap of its record set with each stored set, by the sequence of the row; None
                if their keys differ. Without a record set, fingerprints and names are compared.
        """
        for release in self.releases.values():
            plan = release.plan
            if plan.idempotency_key == sought.idempotency_key:
                continue
            if self._same_records(release, sought, shared):
                yield Overlap(release, "records")
            # guard: test_another_populations_name
            elif self._same_units(release, sought, shared):
                yield Overlap(release, "units")
            elif plan.population == sought.population and set(plan.cohorts) & set(sought.cohorts):
                yield Overlap(release, "cohorts")

    @staticmethod
    def _same_records(
        release: Release, sought: Sought, shared: Mapping[int, Shared | None] | None
    ) -> bool:
        same_file = release.plan.data_fingerprint == sought.data_fingerprint
        if shared is None or release.reserved.records is None:
            return same_file
        # A release whose marks are missing or altered is treated as sharing everything.
        # guard: test_a_lost_set_counts_as_sharing_everything_and_verify_goes_on
        if release.sequence not in shared:
            return True
        common = shared[release.sequence]
        return same_file if common is None else common.records

    @staticmethod
    def _same_units(
        release: Release, sought: Sought, shared: Mapping[int, Shared | None] | None
    ) -> bool:
        """Within one population, the account for all cohorts already covers shared units."""
        common = None if shared is None else shared.get(release.sequence)
        other_population = release.plan.population != sought.population
        return common is not None and common.units > 0 and other_population

    def sharing(self, sought: Sought, shared: Mapping[int, Shared | None]) -> list[Release]:
        """The releases with which a release is charged: those with the same kind of guarantee that
        share its records or units.
        """
        return [
            overlap.release
            for overlap in self.overlaps(sought, shared)
            if overlap.depends_on_same_data and overlap.release.kind == sought.kind
        ]

    def named_sets(self) -> dict[int, str]:
        """The digest of the record set in each reservation, by sequence."""
        return {
            release.sequence: release.reserved.records.set
            for release in self.releases.values()
            if release.reserved.records is not None
        }

    # -- Queries -----------------------------------------------------------------------------------

    @property
    def in_force(self) -> Policy:
        return self.policy or DEFAULT_POLICY

    @property
    def policy_mark(self) -> LedgerPosition:
        """The position of the policy in force, which a signature on the next policy includes."""
        if self.policy_row is None or self.ledger is None:
            raise Missing(
                "ledger: it has no policy yet. The first one needs no signature", kind="no-policy"
            )
        return LedgerPosition(
            ledger=self.ledger, sequence=self.policy_row.sequence, hash=self.policy_row.hash
        )

    @property
    def mark(self) -> LedgerPosition | None:
        """The identity and the newest row of this ledger; None if it is empty."""
        return (
            None
            if self.ledger is None
            else LedgerPosition(ledger=self.ledger, sequence=self.sequence, hash=self.hash)
        )

    def other_unit(self, population: str, kind: GuaranteeKind, unit: str) -> str | None:
        """Another unit that some account of the population protects; None if there is none."""
        for (name, _, of), account in self.accounts.items():
            if (name, of) == (population, kind) and account.privacy_unit not in (None, unit):
                return account.privacy_unit
        return None

    def release(self, release_id: str) -> Release:
        if release_id not in self.releases:
            raise Unknown(f"release {release_id}: not in this ledger", kind="unknown-release")
        return self.releases[release_id]

    def release_of_key(self, key: str) -> Release | None:
        return self.plans.get(key)

    def require_sound(self) -> None:
        """Refuses a ledger with a damaged chain."""
        if self.broken:
            raise DamagedData(
                f"ledger: {self.broken}. Nothing is released or recorded. Run `autocoder ledger "
                "verify`",
                kind="broken-ledger",
            )

    def require_counted(self) -> None:
        """Refuses a ledger in which a releasing worker's row has no effect, because it may have
        spent something.
        """
        if self.stopped:
            raise DamagedData(
                f"ledger: {self.stopped}. Nothing is reserved or sampled until this "
                "is repaired, because what that row spent is unknown. Run "
                "`autocoder ledger verify`, and restore the ledger from a copy",
                kind="stopped-ledger",
            )


def fold(rows: Iterable[StoredRow | Damage], state: State | None = None) -> State:
    """The state after more rows, or after only these rows if no state is passed."""
    state = state or State()
    for row in rows:
        state.apply(row)
    return state


def _read(stored: StoredRow) -> chain.PlainRow:
    """A stored row as plain data. Raises `Damaged` for a row that was not written like this, and
    `Inconsistent` for one without a meaning.
    """
    try:
        content: chain.PlainRow = _JSON.decode(stored.body)
        written, _ = content["sequence"], content["previous_hash"]
        same = written != stored.sequence or chain.canonical(content) == stored.body
    except InputError:
        raise Inconsistent("its body is not a row of this version") from None
    except (
        ValueError,
        RecursionError,
        # such as numbers that are too long, or nesting that is too deep
    ):
        raise Inconsistent("its body cannot be read") from None
    except (KeyError, TypeError):
        raise Damaged("has a body that is no row") from None
    if written != stored.sequence:
        raise Damaged(f"was moved: it was written as row {written}")
    if not same:
        raise Inconsistent("its body is not canonical JSON")
    return content


def _parsed(content: chain.PlainRow, stored: StoredRow) -> ChainRow:
    try:
        return ChainRow.model_validate({**content, "hash": stored.hash})
    except (ValidationError, InputError):
        raise Inconsistent("its body is not a row of this version") from None


def _no_constant(text: str) -> None:
    raise ValueError("not JSON")


_JSON = json.JSONDecoder(parse_constant=_no_constant)
