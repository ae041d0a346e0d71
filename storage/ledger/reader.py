"""Reads a ledger; writes nothing. What it says is the fold of the rows (`storage.ledger.fold`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine import Connection

from mechanisms.privacy.events import GuaranteeKind
from storage.errors import InputError
from storage.ledger import chain
from storage.ledger.budget import Account, BudgetLine, BudgetRefused, Charge, accounts_of, budget_lines, charge_account
from storage.ledger.content import plan_content
from storage.ledger.database import Database
from storage.ledger.fold import Release, State, fold
from storage.ledger.models import GENESIS, Mark, ReleasePlan, Row
from storage.ledger.policy import DEFAULT_POLICY, Policy
from storage.ledger.records import RecordSet
from storage.ledger.registry import compare

if TYPE_CHECKING:
    from storage.ledger.heads import Head
    from storage.ledger.verify import Report


class LedgerReader:
    """A ledger's rows, sums and policy, read from one state of the database."""

    def __init__(self, database: Database, *, policy: Policy | None = None) -> None:
        self.database = database
        self._policy = policy
        self._folded: State | None = None
        self._lock = threading.RLock()

    @contextmanager
    def _reading(self) -> Iterator[tuple[Connection, State]]:
        with self._lock, self.database.read() as connection:
            yield connection, self._fold(connection)

    def _fold(self, connection: Connection) -> State:
        """Returns the state after the rows of this transaction; rows that were folded before are not read again."""
        state = self._folded
        if state is None or state.broken or (chain.hash_of(connection, state.sequence) or GENESIS) != state.hash:
            state = State()
        self._folded = None  # an interrupted fold is no state
        fold(chain.entries(connection, state.sequence), state)
        state.require_sound()
        self._folded = state
        return state

    def state(self) -> State:
        with self._reading() as (_, state):
            return state

    def release(self, release_id: str) -> Row:
        """Returns the current row of a release, or refuses one that the ledger doesn't have."""
        return self.state().release(release_id).row

    def revocation(self, release_id: str) -> Row | None:
        release = self.state().releases.get(release_id)
        return None if release is None else release.revoked

    def revoked(self) -> frozenset[str]:
        return frozenset(name for name, release in self.state().releases.items() if release.revoked is not None)

    def find(self, idempotency_key: str) -> Row | None:
        release = self.state().release_of_key(idempotency_key)
        return None if release is None else release.row

    def history(self, release_id: str) -> Sequence[Row]:
        """Returns all rows about a release, its audits included, oldest first."""
        state = self.state()
        state.release(release_id)
        return [row for row in state.rows if row.release_id == release_id]

    def rows(self) -> Sequence[Row]:
        """Returns every row of the chain that has an effect, oldest first."""
        return list(self.state().rows)

    def evaluations(self) -> Sequence[Row]:
        """Returns the rows of internal evaluations, oldest first."""
        return [row for row in self.state().rows if row.kind == "evaluation"]

    def current(self) -> Sequence[Row]:
        """Returns each release in its current state and every other row, in order of their newest row."""
        state = self.state()
        newest = {release.row.sequence for release in state.releases.values()}
        return [row for row in state.rows if row.kind != "release" or row.sequence in newest]

    def open_releases(self) -> Sequence[Row]:
        """Returns the releases that are reserved or drawn and not closed."""
        return [release.row for release in self.state().releases.values() if release.row.state in ("reserved", "drawn")]

    def mark(self) -> Mark | None:
        return self.state().mark

    def head(self) -> tuple[int, str]:
        """Returns sequence and hash of the newest row; (0, 64 zeros) of an empty ledger."""
        with self.database.read() as connection:
            return chain.last(connection)

    def policy(self) -> Policy:
        """Returns the policy in force; before the first reservation, the one that this ledger was opened with."""
        return self._in_force(self.state())

    def _in_force(self, state: State) -> Policy:
        return state.policy or self._policy or DEFAULT_POLICY

    def policy_mark(self) -> Mark:
        """Returns the row of the policy in force, which a signature on the next one names."""
        return self.state().policy_mark

    def policy_before(self, row: Row) -> Policy:
        """Returns the policy that was in force when a row was written."""
        rows = [
            change for change in self.state().rows if change.kind == "budget-change" and change.sequence < row.sequence
        ]
        return Policy.parse(rows[-1].details["policy"]) if rows else DEFAULT_POLICY

    def budget(self) -> Sequence[BudgetLine]:
        """Returns every account beside its cap: those with spending, and those that the policy names."""
        state = self.state()
        return budget_lines(self._in_force(state), state.accounts.values())

    def require_here(self, plan: ReleasePlan) -> None:
        """Requires that a plan was made under this ledger, and under what is in it."""
        with self._reading() as (connection, state):
            self._require_here(connection, state, plan)

    def quote(self, plan: ReleasePlan, *, records: RecordSet | None = None) -> tuple[Charge, ...]:
        """Returns what a plan would be charged now, with the sums before and after; charges nothing.

        Refuses what would be refused for its cost. Earlier releases of the records count, too.
        """
        with self._reading() as (connection, state):
            return self._charges(connection, state, plan_content(plan), records)[0]

    def projected_balance(
        self, kind: GuaranteeKind, population: str, cohorts: Sequence[str], privacy_unit: str, *,
        fingerprint: str = "", records: RecordSet | None = None,
    ) -> tuple[list[Account], str | None]:  # fmt: skip
        """Returns the accounts that a release would be charged to, as they would be just before, its own first.

        With them what else the population protects, where that is something: the release would be refused.

        Args:
            records: what it would be made from, with the fingerprint; without it names alone tell.
        """
        with self._reading() as (connection, state):
            policy = self._in_force(state)
            sought = _row({"guarantee_kind": kind, "population": population, "data_fingerprint": fingerprint})
            shared = self._overlap(connection, state, sought, records)
            own = accounts_of(population, tuple(cohorts), privacy_unit)
            others = sorted({name for release in shared for name in release.own_accounts} - set(own))
            accounts = []
            for name in [*own, *others]:
                account, cap = state.account(name, kind), policy.cap(*name, kind)
                taken = [release.cost for release in shared if name in own and name not in release.accounts]
                if taken:
                    charge, _ = charge_account(account, cap, taken, policy=policy.name)
                    account = replace(charge.after, last=account.last or charge.loss)
                accounts.append(replace(account, delta_cap=account.delta_cap if cap is None else cap.delta))
            return accounts, state.other_unit(population, kind, privacy_unit)

    def refusal(self, plan: ReleasePlan) -> Row | None:
        return self.state().refusals.get(plan.idempotency_key)

    def charges(self, release_id: str) -> tuple[Charge, ...]:
        """Returns what a release was charged, its surplus at the draw included, oldest first."""
        return tuple(self.state().release(release_id).charges)

    def verify(
        self,
        *,
        heads: Iterable[Head] = (),
        earlier: Iterable[Mark] = (),
        progress: Callable[[int], None] | None = None,
    ) -> Report:
        """Checks the whole ledger; see `storage.ledger.verify.verify`."""
        from storage.ledger.verify import verify

        return verify(self.database, heads=heads, earlier=earlier, progress=progress)

    # -- within a transaction ------------------------------------------------------------------------------

    def _require_here(self, connection: Connection, state: State, plan: ReleasePlan) -> None:
        mark = plan.ledger
        if mark is None:
            raise BudgetRefused("the plan names no ledger: it was made manually. Plan again.")
        # guard: test_a_plan_under_another_ledger
        if state.ledger != mark.ledger:
            present = "an empty one" if state.ledger is None else f"{state.ledger[:12]}…"
            raise BudgetRefused(
                f"the plan was made under {mark}, this ledger is {present}: it is released there, or planned again here"
            )
        if chain.hash_of(connection, mark.sequence) != mark.hash:
            raise BudgetRefused(f"the plan was made under {mark}, and the ledger has no such row any more; plan again")

    def _charges(
        self, connection: Connection, state: State, content: dict[str, Any], records: RecordSet | None
    ) -> tuple[tuple[Charge, ...], list[Release]]:
        if state.policy is None and self._policy is not None:
            state = State(policy=self._policy)
        release = Release(_row(content))
        shared = self._overlap(connection, state, release.row, records)
        charges, problem = state.price(release, shared)
        if problem:
            raise BudgetRefused(problem)
        return charges, shared

    def _overlap(self, connection: Connection, state: State, row: Row, records: RecordSet | None) -> list[Release]:
        if records is None:
            return []
        shared = compare(connection, records)
        if None in shared.values():
            raise InputError(
                "registry key: the ledger's records are marked with another key than this workspace's. Give that of "
                "the workspace that released first (private/registry.key) by AUTOCODER_REGISTRY_KEY."
            )
        return state.sharing(row, shared)


def _row(content: dict[str, Any]) -> Row:
    return Row.model_construct(**content, sequence=0, previous_hash=GENESIS, recorded_at="", state="reserved")
