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
    SpendPoint,
    all_accounts,
    budget_lines,
    charge_account,
    read_account,
    spend_history,
)
from storage.ledger.content import plan_content
from storage.ledger.database import Database
from storage.ledger.models import Charge, ReleasePlan, Row
from storage.ledger.policy import DEFAULT_POLICY, Policy
from storage.ledger.schema import POLICY_ROW, ledger_row

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

    def quote(self, plan: ReleasePlan) -> tuple[Charge, ...]:
        """Return what a plan would be charged now, with the sums before and after; charges nothing.

        Raises:
            BudgetRefused: when it would be refused for its cost.
        """
        content = plan_content(plan)
        with self.database.read() as connection:
            policy = self._in_force(connection) or self._policy or DEFAULT_POLICY
            return self._charges(connection, policy, content, content["epsilon"], content["delta"])

    def refusal(self, plan_digest: str) -> Row | None:
        """Return the row that refuses this plan, None where nobody did."""
        with self.database.read() as connection:
            return chain.newest(connection, _T.kind == "refusal", _T.idempotency_key == plan_digest)

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

    def _charges(
        self,
        connection: Connection,
        policy: Policy,
        content: dict[str, Any],
        epsilon: Decimal,
        delta: Decimal | None,
    ) -> tuple[Charge, ...]:
        formal = content["guarantee_kind"] == "formal"
        return tuple(
            charge_account(
                read_account(connection, content["population"], cohort, content["guarantee_kind"]),
                policy=policy,
                relation=content["neighbouring_relation"],
                privacy_unit=content["privacy_unit"],
                epsilon=epsilon,
                delta=delta if formal and delta is not None else amounts.ZERO_DELTA,
            )
            for cohort in content["cohorts"]
        )
