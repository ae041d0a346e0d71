"""What a ledger tells; nothing here writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from mechanisms.privacy.events import GuaranteeKind
from storage.errors import InputError
from storage.ledger import amounts, chain
from storage.ledger.budget import (
    RECORD,
    Account,
    BudgetLine,
    BudgetRefused,
    Cost,
    SpendPoint,
    accounts_of,
    all_accounts,
    budget_lines,
    charge_account,
    other_unit,
    read_account,
    require_one_unit,
    spend_history,
)
from storage.ledger.content import plan_content
from storage.ledger.database import Database
from storage.ledger.models import Charge, Mark, ReleasePlan, Row
from storage.ledger.policy import ALL_COHORTS, DEFAULT_POLICY, Policy
from storage.ledger.records import RecordSet
from storage.ledger.schema import POLICY_ROW, ledger_row, record_set

if TYPE_CHECKING:
    from storage.ledger.heads import Head
    from storage.ledger.verify import Report

_T = ledger_row.c


Counted = Sequence[tuple[Row, set[tuple[str, str]]]]
"""Releases, each with the accounts (population, cohort) that it counts in."""


@dataclass(frozen=True)
class Standing:
    """Accounts as they would be just before a release is charged to them, in the terms of the claims."""

    own: tuple[Account, ...]
    others: tuple[Account, ...]
    """Of earlier releases that share records or units."""
    other_unit: str | None
    """What else the population protects; where it is something, the release would be refused."""


def _accounts(
    population: str, cohorts: Iterable[str], privacy_unit: str | None, overlap: Counted
) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """A release's own accounts, and those of earlier releases that it overlaps with."""
    own = accounts_of(population, cohorts, privacy_unit)
    others = {one for row, _ in overlap for one in accounts_of(str(row.population), row.cohorts, row.privacy_unit)}
    return own, sorted(others - set(own))


class Reading:
    """A ledger's rows, sums and policy, read from one state of the database."""

    def __init__(self, database: Database, *, policy: Policy | None = None) -> None:
        self.database = database
        self._policy = policy

    def release(self, release_id: str) -> Row:
        """Return the current row of a release.

        Raises:
            InputError: when the ledger has no such release.
        """
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
        newest = (
            sa.select(sa.func.max(_T.sequence)).where(_T.kind == "release").group_by(_T.release_id)
        ).scalar_subquery()
        with self.database.read() as connection:
            return chain.select_rows(connection, (_T.kind != "release") | _T.sequence.in_(newest))

    def open_releases(self) -> Sequence[Row]:
        """Return the releases that are reserved or drawn and not closed."""
        closed = sa.select(_T.release_id).where(_T.state.in_(("committed", "burned"))).scalar_subquery()
        newest = (
            sa.select(sa.func.max(_T.sequence))
            .where(_T.kind == "release", _T.release_id.not_in(closed))
            .group_by(_T.release_id)
        ).scalar_subquery()
        with self.database.read() as connection:
            return chain.select_rows(connection, _T.sequence.in_(newest))

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
            return self._in_force(connection) or self._policy or DEFAULT_POLICY

    def budget(self) -> Sequence[BudgetLine]:
        """Return every account beside its cap: those with spending, and those that the policy names."""
        with self.database.read() as connection:
            policy = self._in_force(connection) or self._policy or DEFAULT_POLICY
            accounts = all_accounts(connection)
        return budget_lines(policy, accounts)

    def require_here(self, plan: ReleasePlan) -> None:
        """Require that a plan was made under this ledger, and under what stands in it.

        Raises:
            BudgetRefused: it was not, or names no ledger; plan again.
        """
        with self.database.read() as connection:
            self._require_here(connection, plan)

    def quote(self, plan: ReleasePlan, *, records: RecordSet | None = None) -> tuple[Charge, ...]:
        """Return what a plan would be charged now, with the sums before and after; charges nothing.

        Args:
            records: what it is made from; earlier releases of them count, too.

        Raises:
            BudgetRefused: when it would be refused for its cost.
        """
        content = plan_content(plan)
        with self.database.read() as connection:
            policy = self._in_force(connection) or self._policy or DEFAULT_POLICY
            overlap = self._overlap(connection, content, records)
            return self._charges(connection, policy, content, content["epsilon"], content["delta"], overlap)

    def standing(
        self,
        kind: GuaranteeKind,
        population: str,
        cohorts: Sequence[str],
        privacy_unit: str,
        *,
        fingerprint: str = "",
        records: RecordSet | None = None,
    ) -> Standing:
        """What a release would be charged to, and what these accounts would have before it.

        Args:
            records: what it would be made from, with the fingerprint; without it names alone tell.
        """
        content = {"guarantee_kind": kind, "data_fingerprint": fingerprint, "population": population}
        with self.database.read() as connection:
            counted = self._with_accounts(connection, self._overlap(connection, content, records))
            own, others = _accounts(population, cohorts, privacy_unit, counted)
            accounts = []
            for name in [*own, *others]:
                account = read_account(connection, *name, kind)
                for row in self._taken_over(connection, account, own, counted):
                    cost = Cost.of(row)
                    account = replace(
                        account,
                        epsilon=amounts.add(account.epsilon, cost.epsilon),
                        delta=amounts.add(account.delta, cost.delta),
                    )
                accounts.append(account)
            other = other_unit(connection, population, kind, privacy_unit)
            return Standing(tuple(accounts[: len(own)]), tuple(accounts[len(own) :]), other)

    def refusal(self, plan: ReleasePlan) -> Row | None:
        """Return the row that refuses this plan, None where nobody did."""
        with self.database.read() as connection:
            return self._refusal(connection, plan)

    def release_of(self, plan: ReleasePlan) -> Row | None:
        """Return the current row of the release that a plan has already, None where it has none."""
        return self.find(plan.idempotency_key)

    def spend_history(self, population: str, kind: GuaranteeKind) -> Sequence[SpendPoint]:
        """Return every charge to a population's accounts of one guarantee kind, oldest first."""
        with self.database.read() as connection:
            return spend_history(connection, population, kind)

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

    def _in_force(self, connection: Connection) -> Policy | None:
        row = self._policy_row(connection)
        return None if row is None else Policy.parse(row.details["policy"])

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
            raise BudgetRefused("the plan names no ledger: it was made by an older version, or by hand; plan again")
        first = chain.hash_of(connection, 1)
        if first != mark.ledger:
            here = "an empty one" if first is None else f"{first[:12]}…"
            raise BudgetRefused(
                f"the plan was made under {mark}, this ledger is {here}: it is released there, or planned again here"
            )
        if chain.hash_of(connection, mark.sequence) != mark.hash:
            raise BudgetRefused(f"the plan was made under {mark}, and the ledger has no such row any more; plan again")
        recovery = chain.newest(connection, _T.kind == "recovery")
        if recovery is not None and recovery.sequence > mark.sequence:
            raise BudgetRefused(
                f"the plan was made before the ledger was recovered (row {recovery.sequence}), and so were its "
                "approvals; plan again"
            )

    def _charges(
        self,
        connection: Connection,
        policy: Policy,
        content: dict[str, Any],
        epsilon: Decimal,
        delta: Decimal | None,
        overlap: Sequence[Row] = (),
    ) -> tuple[Charge, ...]:
        """What a release costs each account: its own, and those of earlier releases of the same records.

        Its own accounts take what those releases cost, too, where they were not charged for it. So the first account
        that any record or unit was charged to has all that was ever spent on it.
        """
        counted = self._with_accounts(connection, overlap)
        own, others = _accounts(content["population"], content["cohorts"], content["privacy_unit"], counted)
        formal = content["guarantee_kind"] == "formal" and delta is not None
        cost = epsilon, delta if formal and delta is not None else amounts.ZERO_DELTA
        return self._charged(connection, policy, content, cost, own, others, counted)

    def _charged(
        self,
        connection: Connection,
        policy: Policy,
        content: dict[str, Any],
        amount: tuple[Decimal, Decimal],
        own: Sequence[tuple[str, str]],
        others: Sequence[tuple[str, str]],
        counted: Counted = (),
    ) -> tuple[Charge, ...]:
        """Charge an epsilon and a delta to accounts, and to those of its own what they take over."""
        kind = content["guarantee_kind"]
        cost = Cost(content["neighbouring_relation"], content["privacy_unit"], *amount)
        for population in dict.fromkeys(population for population, _ in [*own, *others]):
            require_one_unit(connection, population, kind, content["privacy_unit"])
        charges = []
        for account in [*own, *sorted(others)]:
            held = read_account(connection, *account, kind)
            before = [Cost.of(row) for row in self._taken_over(connection, held, own, counted)]
            whose = None if account in own else account[0]
            charges.append(charge_account(held, policy=policy, costs=[cost, *before], population=whose))
        return tuple(charges)

    def _taken_over(
        self, connection: Connection, account: Account, own: Sequence[tuple[str, str]], counted: Counted
    ) -> list[Row]:
        """Earlier releases whose cost an account takes over as it is charged now, each by its newest row.

        They share records or units with the release that it is an own account of; and the account of a population's
        units begins with all that any account of that population was charged before there was one for units.
        """
        name = (account.population, account.cohort)
        before = {row.release_id: row for row, accounts in counted if name in own and name not in accounts}
        if account.cohort == ALL_COHORTS and not account.sequence:
            rows = self._counted_in(connection, account.population, account.guarantee_kind)
            before |= {row.release_id: row for row in rows}
        return list(before.values())

    def _counted_in(self, connection: Connection, population: str, kind: GuaranteeKind) -> list[Row]:
        """Releases of a kind that count in any account of a population, each by its newest row."""
        found: dict[str, None] = {}
        reserved = (_T.kind == "release") & (_T.state == "reserved") & (_T.guarantee_kind == kind)
        for row in chain.select_rows(connection, reserved):
            if row.population == population:
                found |= dict.fromkeys([str(row.release_id), *row.details.get("records", {}).get("overlap", ())])
            elif any(charge.population == population for charge in row.charges):
                found[str(row.release_id)] = None
        return [self._current(connection, release_id) for release_id in found]

    def _with_accounts(self, connection: Connection, releases: Sequence[Row]) -> Counted:
        return [(row, self._counted(connection, str(row.release_id))) for row in releases]

    def _counted(self, connection: Connection, release_id: str) -> set[tuple[str, str]]:
        """The accounts, population and cohort, that a release counts in."""
        reserved = chain.newest(connection, _T.release_id == release_id, _T.kind == "release", _T.state == "reserved")
        if reserved is None:
            return set()
        accounts = {(charge.population or str(reserved.population), charge.cohort) for charge in reserved.charges}
        named = _T.body.contains(f'"{release_id}"', autoescape=True)
        since = (_T.kind == "release") & (_T.state == "reserved") & (_T.sequence > reserved.sequence)
        for row in chain.select_rows(connection, since, named):
            if release_id in row.details.get("records", {}).get("overlap", ()):
                accounts |= {(str(row.population), charge.cohort) for charge in row.charges if not charge.population}
        units = {(population, ALL_COHORTS) for population, _ in accounts if reserved.privacy_unit != RECORD}
        # which took over what counted in its population as it was opened
        return accounts | {one for one in units if read_account(connection, *one, reserved.guarantee_kind).sequence}

    def _overlap(self, connection: Connection, content: dict[str, Any], records: RecordSet | None) -> list[Row]:
        """Earlier releases of the same guarantee kind that share records with these, each by its newest row.

        So do those of another population that share units; within one, the account of its units has all of them. One
        whose marks are gone from the registry is taken to share them. Of one from before there was a registry only the
        fingerprint of the whole data set is known.
        """
        if records is None:
            return []
        reserved = (_T.kind == "release") & (_T.state == "reserved") & (_T.guarantee_kind == content["guarantee_kind"])
        marked = sa.select(record_set.c.sequence)
        unknown = _T.body.contains('"records":{"overlap":') | _T.body.contains(
            f'"data_fingerprint":"{content["data_fingerprint"]}"', autoescape=True
        )
        found = list(chain.select_rows(connection, reserved, _T.sequence.not_in(marked), unknown))
        sets = sa.select(_T.body, _T.hash, record_set.c.marks).join_from(
            record_set, ledger_row, record_set.c.sequence == _T.sequence
        )
        with connection.execute(sets.where(reserved).execution_options(yield_per=1)) as rows:
            for body, row_hash, marks in rows:
                other = RecordSet.decode(marks)
                if other.key_id != records.key_id:
                    raise InputError(
                        "registry key: the ledger's records are marked with another key than this workspace's; give "
                        "that of the workspace that released first (private/registry.key) by AUTOCODER_REGISTRY_KEY"
                    )
                if records.overlaps(other):
                    found.append(chain.parse(body, row_hash))
                elif records.shares_units(other):
                    row = chain.parse(body, row_hash)
                    found += [row] if row.population != content["population"] else []
        return [self._current(connection, str(row.release_id)) for row in sorted(found, key=lambda row: row.sequence)]
