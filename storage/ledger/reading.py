"""What a ledger tells; nothing here writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from mechanisms.privacy.events import GuaranteeKind
from storage.errors import InputError
from storage.ledger import amounts, chain
from storage.ledger.budget import (
    BudgetLine,
    BudgetRefused,
    Cost,
    SpendPoint,
    all_accounts,
    budget_lines,
    charge_account,
    read_account,
    spend_history,
)
from storage.ledger.content import plan_content
from storage.ledger.database import Database
from storage.ledger.models import Charge, Mark, ReleasePlan, Row
from storage.ledger.policy import DEFAULT_POLICY, Policy
from storage.ledger.records import RecordSet
from storage.ledger.schema import POLICY_ROW, ledger_row, record_set

if TYPE_CHECKING:
    from collections.abc import Iterable

    from storage.ledger.heads import Head
    from storage.ledger.verify import Report

_T = ledger_row.c


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

    def shared(
        self, kind: GuaranteeKind, *, fingerprint: str, records: RecordSet
    ) -> tuple[tuple[Row, frozenset[tuple[str, str]]], ...]:
        """Earlier releases of this kind of the same records, each with the accounts that it counts in.

        An account is a population and a cohort.
        """
        with self.database.read() as connection:
            found = self._overlap(connection, {"guarantee_kind": kind, "data_fingerprint": fingerprint}, records)
            return tuple((row, frozenset(self._counted(connection, str(row.release_id)))) for row in found)

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
        that any record was charged to has all that was ever spent on it.
        """
        formal, population, kind = (
            content["guarantee_kind"] == "formal",
            content["population"],
            content["guarantee_kind"],
        )
        own = [(population, cohort) for cohort in content["cohorts"]]
        others = {(str(row.population), cohort) for row in overlap for cohort in row.cohorts} - set(own)
        counted = [(Cost.of(row), self._counted(connection, str(row.release_id))) for row in overlap]
        cost = Cost(
            content["neighbouring_relation"],
            content["privacy_unit"],
            epsilon,
            delta if formal and delta is not None else amounts.ZERO_DELTA,
        )
        return tuple(
            charge_account(
                read_account(connection, account[0], account[1], kind),
                policy=policy,
                costs=[cost, *(before for before, accounts in counted if account in own and account not in accounts)],
                population=None if account in own else account[0],
            )
            for account in [*own, *sorted(others)]
        )

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
                accounts |= {(str(row.population), cohort) for cohort in row.cohorts}
        return accounts

    def _overlap(self, connection: Connection, content: dict[str, Any], records: RecordSet | None) -> list[Row]:
        """Earlier releases of the same guarantee kind that share records with these, each by its newest row.

        One whose marks are gone from the registry is taken to share them. Of one from before there was a registry only
        the fingerprint of the whole data set is known.
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
        return [self._current(connection, str(row.release_id)) for row in sorted(found, key=lambda row: row.sequence)]
