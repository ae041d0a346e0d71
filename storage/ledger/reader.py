"""Reads a ledger; writes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from mechanisms.privacy.events import GuaranteeKind
from storage.errors import InputError
from storage.ledger import amounts, chain
from storage.ledger.budget import (
    Account,
    BudgetLine,
    BudgetRefused,
    Cost,
    Spending,
    all_accounts,
    budget_lines,
    charge_account,
    other_unit,
    read_account,
    require_one_unit,
    with_costs,
)
from storage.ledger.content import plan_content
from storage.ledger.database import Database
from storage.ledger.models import Charge, Mark, ReleasePlan, Row
from storage.ledger.policy import DEFAULT_POLICY, Policy
from storage.ledger.records import RecordSet
from storage.ledger.registry import Comparison, compare
from storage.ledger.schema import POLICY_ROW, ledger_row, record_set, spend

if TYPE_CHECKING:
    from storage.ledger.heads import Head
    from storage.ledger.verify import Report

_T = ledger_row.c
_NEWEST = sa.select(sa.func.max(_T.sequence)).where(_T.kind == "release").group_by(_T.release_id).scalar_subquery()
"""Sequences of each release's current row."""

Counted = Sequence[tuple[Row, set[tuple[str, str]]]]
"""Releases, each with the accounts (population, cohort) that it counts in."""


@dataclass(frozen=True)
class ProjectedBalance:
    """Accounts as they would be just before a release is charged to them, in the terms of the claims."""

    accounts: tuple[Account, ...]
    overlapping: tuple[Account, ...]
    """Of earlier releases that share records or units."""
    conflicting_unit: str | None
    """What else the population protects; where it is something, the release would be refused."""


class LedgerReader:
    """A ledger's rows, sums and policy, read from one state of the database."""

    def __init__(self, database: Database, *, policy: Policy | None = None) -> None:
        self.database = database
        self._policy = policy

    def release(self, release_id: str) -> Row:
        """Return the current row of a release, or refuse one that the ledger doesn't have."""
        with self.database.read() as connection:
            return self._current(connection, release_id)

    def find(self, idempotency_key: str) -> Row | None:
        """Return the current row of the release of a key, None where it has none."""
        with self.database.read() as connection:
            return chain.newest(connection, _T.kind == "release", _T.idempotency_key == idempotency_key)

    def history(self, release_id: str) -> Sequence[Row]:
        """Return all rows about a release, its audits included, oldest first."""
        with self.database.read() as connection:
            self._current(connection, release_id)
            return chain.select_rows(connection, _T.release_id == release_id)

    def rows(self) -> Sequence[Row]:
        """Return every row of the chain, oldest first."""
        with self.database.read() as connection:
            return chain.select_rows(connection)

    def evaluations(self) -> Sequence[Row]:
        """Return the rows of internal evaluations, oldest first."""
        with self.database.read() as connection:
            return chain.select_rows(connection, _T.kind == "evaluation")

    def current(self) -> Sequence[Row]:
        """Return each release in its current state and every other row, in order of their newest row."""
        with self.database.read() as connection:
            return chain.select_rows(connection, (_T.kind != "release") | _T.sequence.in_(_NEWEST))

    def open_releases(self) -> Sequence[Row]:
        """Return the releases that are reserved or drawn and not closed."""
        with self.database.read() as connection:
            return chain.select_rows(connection, _T.sequence.in_(_NEWEST), _T.state.in_(("reserved", "drawn")))

    def mark(self) -> Mark | None:
        """Return which ledger this is and how far it went; None of an empty one."""
        with self.database.read() as connection:
            first = chain.hash_of(connection, 1)
            if first is None:
                return None
            sequence, row_hash = chain.last(connection)
            return Mark(ledger=first, sequence=sequence, hash=row_hash)

    def head(self) -> tuple[int, str]:
        """Return sequence and hash of the newest row; (0, 64 zeros) of an empty ledger."""
        with self.database.read() as connection:
            return chain.last(connection)

    def policy(self) -> Policy:
        """Return the policy in force; before the first reservation, the one that this ledger was opened with."""
        with self.database.read() as connection:
            return self._in_force(connection)

    def policy_before(self, row: Row) -> Policy:
        """Return the policy that was in force when a row was written."""
        with self.database.read() as connection:
            before = chain.newest(connection, POLICY_ROW, _T.sequence < row.sequence)
        return DEFAULT_POLICY if before is None else Policy.parse(before.details["policy"])

    def reserved_until(self, row: Row) -> Sequence[Row]:
        """Return the reservations of a row's population up to this row, oldest first."""
        reserved = (_T.kind == "release") & (_T.state == "reserved") & (_T.population == row.population)
        with self.database.read() as connection:
            return chain.select_rows(connection, reserved, _T.sequence <= row.sequence)

    def budget(self) -> Sequence[BudgetLine]:
        """Return every account beside its cap: those with spending, and those that the policy names."""
        with self.database.read() as connection:
            return budget_lines(self._in_force(connection), all_accounts(connection))

    def require_here(self, plan: ReleasePlan) -> None:
        """Require that a plan was made under this ledger, and under what stands in it."""
        with self.database.read() as connection:
            self._require_here(connection, plan)

    def quote(self, plan: ReleasePlan, *, records: RecordSet | None = None) -> tuple[Charge, ...]:
        """Return what a plan would be charged now, with the sums before and after; charges nothing.

        Refuses what would be refused for its cost. Earlier releases of the records count, too.
        """
        spending = Spending.of(plan_content(plan))
        with self.database.read() as connection:
            overlap, _ = self._overlap(connection, spending, records)
            return self._charges(connection, self._in_force(connection), spending, overlap)

    def projected_balance(
        self,
        kind: GuaranteeKind,
        population: str,
        cohorts: Sequence[str],
        privacy_unit: str,
        *,
        fingerprint: str = "",
        records: RecordSet | None = None,
    ) -> ProjectedBalance:
        """Returns the accounts that a release would be charged to, and what these accounts would have before it.

        Args:
            records: what it would be made from, with the fingerprint; without it names alone tell.
        """
        unknown = Cost("", privacy_unit, amounts.ZERO_EPSILON, amounts.ZERO_DELTA)
        spending = Spending(population, tuple(cohorts), kind, fingerprint, unknown)
        with self.database.read() as connection:
            policy = self._in_force(connection)
            overlap, _ = self._overlap(connection, spending, records)
            counted = self._with_accounts(connection, overlap)
            own_accounts, others = spending.accounts, spending.other_accounts(overlap)
            accounts = []
            for name in [*own_accounts, *others]:
                account = read_account(connection, *name, kind)
                taken = [Cost.of(vars(row)) for row in self._taken_over(account, own_accounts, counted)]
                account = with_costs(account, policy.cap(*name, kind), taken)
                accounts.append(account)
            other = other_unit(connection, population, kind, privacy_unit)
            return ProjectedBalance(tuple(accounts[: len(own_accounts)]), tuple(accounts[len(own_accounts) :]), other)

    def refusal(self, plan: ReleasePlan) -> Row | None:
        """Return the row that refuses this plan, None where nobody did."""
        with self.database.read() as connection:
            return self._refusal(connection, plan)

    def release_of(self, plan: ReleasePlan) -> Row | None:
        """Return the current row of the release that a plan has already, None where it has none."""
        return self.find(plan.idempotency_key)

    def spend_history(self, population: str, kind: GuaranteeKind) -> Sequence[tuple[str, Charge]]:
        """Return every charge to a population's accounts of one guarantee kind with its time, oldest first."""
        charged = sa.select(spend.c.sequence).where(spend.c.population == population, spend.c.guarantee_kind == kind)
        with self.database.read() as connection:
            rows = chain.select_rows(connection, _T.sequence.in_(charged.scalar_subquery()))
        whose = ((row, charge) for row in rows for charge in row.charges)
        return [(row.recorded_at, one) for row, one in whose if (one.population or row.population) == population]

    def verify(
        self,
        *,
        heads: Iterable[Head] = (),
        earlier: Iterable[Row] = (),
        progress: Callable[[int], None] | None = None,
    ) -> Report:
        """Check the whole ledger; see `storage.ledger.verify.verify`."""
        from storage.ledger.verify import verify

        return verify(self.database, heads=heads, earlier=earlier, progress=progress)

    # -- within a transaction ------------------------------------------------------------------------------

    def _current(self, connection: Connection, release_id: str) -> Row:
        row = chain.newest(connection, _T.release_id == release_id, _T.kind == "release")
        if row is None:
            raise InputError(f"release {release_id}: not in this ledger")
        return row

    def _policy_row(self, connection: Connection) -> Row | None:
        return chain.newest(connection, POLICY_ROW)

    def policy_mark(self) -> Mark:
        """Return the row of the policy in force, which a signature on the next one names."""
        with self.database.read() as connection:
            row = self._policy_row(connection)
            if row is None:
                raise InputError("ledger: it has no policy yet. The first one needs no signature")
            return self._mark_of(connection, row)

    def _mark_of(self, connection: Connection, row: Row) -> Mark:
        return Mark(ledger=str(chain.hash_of(connection, 1)), sequence=row.sequence, hash=row.hash)

    def _in_force(self, connection: Connection) -> Policy:
        row = self._policy_row(connection)
        return Policy.parse(row.details["policy"]) if row is not None else self._policy or DEFAULT_POLICY

    def _refusal(self, connection: Connection, plan: ReleasePlan) -> Row | None:
        # By the plan's key: the digest changes with the ledger's head when the same is planned again.
        for row in chain.select_rows(connection, _T.kind == "refusal"):
            for decision in row.details.get("decisions", ()):
                if decision["terms"].get("idempotency_key") == plan.idempotency_key:
                    return row
        return None

    def _require_here(self, connection: Connection, plan: ReleasePlan) -> None:
        mark = plan.ledger
        if mark is None:
            raise BudgetRefused("the plan names no ledger: it was made by hand. Plan again.")
        first = chain.hash_of(connection, 1)
        # guard: a plan is released under its own ledger
        if first != mark.ledger:
            present = "an empty one" if first is None else f"{first[:12]}…"
            raise BudgetRefused(
                f"the plan was made under {mark}, this ledger is {present}: it is released there, or planned again here"
            )
        if chain.hash_of(connection, mark.sequence) != mark.hash:
            raise BudgetRefused(f"the plan was made under {mark}, and the ledger has no such row any more; plan again")
        recovery = chain.newest(connection, _T.kind == "recovery")
        # guard: approvals of before a recovery count no more
        if recovery is not None and recovery.sequence > mark.sequence:
            raise BudgetRefused(
                f"the plan was made before the ledger was recovered (row {recovery.sequence}), and so were its "
                "approvals; plan again"
            )

    def _charges(
        self, connection: Connection, policy: Policy, spending: Spending, overlap: Sequence[Row] = ()
    ) -> tuple[Charge, ...]:
        """Returns what a release costs each account: its own, and those of earlier releases of the same records.

        Its own accounts take what those releases cost, too, where they were not charged for it. So the first account
        that any record or unit was charged to has all that was ever spent on it.
        """
        counted = self._with_accounts(connection, overlap)
        return self._charged(connection, policy, spending, spending.other_accounts(overlap), counted)

    def _charged(
        self,
        connection: Connection,
        policy: Policy,
        spending: Spending,
        others: Sequence[tuple[str, str]],
        counted: Counted = (),
    ) -> tuple[Charge, ...]:
        """Charges a release's cost to its own accounts, with what they take over, and to others."""
        own_accounts, unit = spending.accounts, spending.cost.privacy_unit
        for population in dict.fromkeys(population for population, _ in [*own_accounts, *others]):
            # guard: claims about records and units are not added
            require_one_unit(connection, population, spending.kind, unit)
        charges = []
        # guard: the accounts of earlier releases are charged
        for account in [*own_accounts, *sorted(others)]:
            held = read_account(connection, *account, spending.kind)
            before = [Cost.of(vars(row)) for row in self._taken_over(held, own_accounts, counted)]
            whose = None if account in own_accounts else account[0]
            charges.append(charge_account(held, policy=policy, costs=[spending.cost, *before], population=whose))
        return tuple(charges)

    def _taken_over(self, account: Account, own_accounts: Sequence[tuple[str, str]], counted: Counted) -> list[Row]:
        """Return earlier releases whose cost an account takes over as it is charged now, each by its newest row.

        They share records or units with the release that it is an own account of.
        """
        name = (account.population, account.cohort)
        return [row for row, accounts in counted if name in own_accounts and name not in accounts]

    def _with_accounts(self, connection: Connection, releases: Sequence[Row]) -> Counted:
        return [(row, self._counted(connection, str(row.release_id))) for row in releases]

    def _counted(self, connection: Connection, release_id: str) -> set[tuple[str, str]]:
        """Returns the accounts, population and cohort, that a release counts in."""
        reserved = chain.newest(connection, _T.release_id == release_id, _T.kind == "release", _T.state == "reserved")
        if reserved is None:
            return set()
        accounts = {(charge.population or str(reserved.population), charge.cohort) for charge in reserved.charges}
        named = _T.body.contains(f'"{release_id}"', autoescape=True)
        since = (_T.kind == "release") & (_T.state == "reserved") & (_T.sequence > reserved.sequence)
        for row in chain.select_rows(connection, since, named):
            if release_id in row.details.get("records", {}).get("overlap", ()):
                accounts |= {(str(row.population), charge.cohort) for charge in row.charges if not charge.population}
        return accounts

    def _overlap(
        self, connection: Connection, spending: Spending, records: RecordSet | None
    ) -> tuple[list[Row], Comparison | None]:
        """Returns earlier releases of the same guarantee kind that share records with these, each by its newest row.

        So do those of another population that share units; within one, the account of its units has all of them. One
        whose marks are gone from the registry is taken to share them. Of one that was reserved without marks only the
        fingerprint of the whole data set is known. The comparison with all of them encodes the records.
        """
        if records is None:
            return [], None
        comparison, shared = compare(connection, records)
        if None in shared.values():
            raise InputError(
                "registry key: the ledger's records are marked with another key than this workspace's. Give that of "
                "the workspace that released first (private/registry.key) by AUTOCODER_REGISTRY_KEY."
            )
        reserved = (_T.kind == "release") & (_T.state == "reserved") & (_T.guarantee_kind == spending.kind)
        same_file = _T.body.contains(f'"data_fingerprint":"{spending.fingerprint}"', autoescape=True)
        unknown = _T.sequence.not_in(sa.select(record_set.c.sequence)) & (
            _T.body.contains('"records":{"overlap":') | same_file
        )
        # guard: a unit is known in another population
        common = {sequence: one for sequence, one in shared.items() if one is not None and (one.records or one.units)}
        overlapping = [
            self._current(connection, str(row.release_id))
            for row in chain.select_rows(connection, reserved, _T.sequence.in_(common) | unknown)
            if row.sequence not in common or common[row.sequence].records or row.population != spending.population
        ]
        return overlapping, comparison
