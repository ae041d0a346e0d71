"""Reads a ledger without writing. Its answers come from the fold of the rows
(`storage.ledger.fold`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from mechanisms.privacy.events import GuaranteeKind
from storage.errors import Contradiction
from storage.ledger import chain, measurements
from storage.ledger.budget import (
    Account,
    Balance,
    BudgetRefused,
    Charge,
    accounts_of,
    balances,
    charge_account,
    over_cap,
)
from storage.ledger.content import settled
from storage.ledger.database import Database
from storage.ledger.entries import Evaluated, LedgerRow, Refused, ReleaseRow, Revoked, Row
from storage.ledger.fold import BadRow, Overlap, Release, Sought, State, fold
from storage.ledger.models import GENESIS, LedgerPosition, ReleasePlan
from storage.ledger.policy import DEFAULT_POLICY, Policy
from storage.ledger.records import RecordSet, Shared
from storage.ledger.registry import (
    compare,
    sharing_sets,
    stored_bytes,
    stored_sequences,
    stored_sets,
)
from storage.ledger.wording import describe_need

if TYPE_CHECKING:
    from storage.ledger.checkpoints import Checkpoint

_BATCH = 1000


@dataclass(frozen=True)
class Report:
    """The result of `verify`."""

    rows: int
    sequence: int
    hash: str
    """Hash of the last row up to which the chain is intact."""
    bad: tuple[BadRow, ...] = ()
    """Every row that has no effect or contradicts earlier rows, oldest first."""
    notes: tuple[str, ...] = ()
    """Weaknesses of the protection that are not changes, such as a role with too many
    permissions.
    """

    @property
    def ok(self) -> bool:
        return not self.bad

    @property
    def problem(self) -> str:
        """The first fault as text; empty if there is none."""
        return self.bad[0].problem if self.bad else ""


class LedgerReader:
    """The rows, accounts and policy of a ledger, read from one state of the database."""

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
        state = self._folded
        if (
            state is None
            or state.broken
            or (chain.hash_of(connection, state.sequence) or GENESIS) != state.hash
        ):
            state = State()
        self._folded = None  # an interrupted fold must not be reused
        fold(chain.stored_rows(connection, state.sequence), state)
        state.require_sound()
        self._folded = state
        return state

    def state(self) -> State:
        with self._reading() as (_, state):
            return state

    def release(self, release_id: str) -> ReleaseRow:
        """The current state of a release; refuses ids that the ledger does not contain."""
        return self.state().release(release_id).row

    def revocation(self, release_id: str) -> Row[Revoked] | None:
        release = self.state().releases.get(release_id)
        return None if release is None else release.revoked

    def revoked(self) -> frozenset[str]:
        return frozenset(
            name for name, release in self.state().releases.items() if release.revoked is not None
        )

    def find(self, idempotency_key: str) -> ReleaseRow | None:
        release = self.state().release_of_key(idempotency_key)
        return None if release is None else release.row

    def history(self, release_id: str) -> Sequence[LedgerRow | Evaluated]:
        """All rows about a release, oldest first, followed by its audits."""
        state = self.state()
        state.release(release_id)
        rows: list[LedgerRow | Evaluated] = [
            row for row in state.rows if row.release_id == release_id
        ]
        return rows + [
            row for row in self.measurements() if row.evaluation.release_id == release_id
        ]

    def measurements(self) -> Sequence[Evaluated]:
        """The evaluations and audits that were recorded outside the chain, oldest first.

        Each has its own number. They are not signed.
        """
        with self.database.read() as connection:
            return measurements.every(connection)

    def rows(self) -> Sequence[LedgerRow]:
        """Every row of the chain that has an effect, oldest first."""
        return list(self.state().rows)

    def releases(self) -> Sequence[ReleaseRow]:
        """The current state of each release, in the order of their newest rows."""
        rows = [release.row for release in self.state().releases.values()]
        return sorted(rows, key=lambda row: row.sequence)

    def open_releases(self) -> Sequence[ReleaseRow]:
        """The releases that are reserved or drawn but not closed."""
        return [
            release.row
            for release in self.state().releases.values()
            if release.row.state in ("reserved", "drawn")
        ]

    def head(self) -> tuple[int, str]:
        """Sequence and hash of the newest row; (0, 64 zeros) for an empty ledger."""
        with self.database.read() as connection:
            return chain.last(connection)

    def policy(self) -> Policy:
        """The policy in force or, before the first reservation, the one with which this ledger was
        opened.
        """
        return self._in_force(self.state())

    def _in_force(self, state: State) -> Policy:
        return state.policy or self._policy or DEFAULT_POLICY

    def budget(self) -> Sequence[Balance]:
        """Every account with its cap: accounts with spending, and accounts that the policy
        lists.
        """
        state = self.state()
        return balances(self._in_force(state), state.accounts.values())

    def require_here(self, plan: ReleasePlan) -> None:
        """Requires that a plan was made under this ledger and its current content."""
        with self._reading() as (connection, state):
            self._require_here(connection, state, plan)

    def quote(self, plan: ReleasePlan, *, records: RecordSet | None = None) -> tuple[Charge, ...]:
        """The charges of a plan at present, with the sums before and after. Charges nothing.

        Refuses plans whose cost would be refused. Earlier releases of the records are included.
        """
        with self._reading() as (connection, state):
            return self._charges(connection, state, settled(plan), records)[0]

    def projected_balance(
        self,
        kind: GuaranteeKind,
        population: str,
        cohorts: Sequence[str],
        privacy_unit: str,
        *,
        fingerprint: str = "",
        records: RecordSet | None = None,
    ) -> tuple[list[Account], str | None]:
        """The accounts to which a release would be charged, in their state just before it, its own
        first. Also returns another unit that the population protects, if any; in that case the
        release would be refused.

        Args:
            records: the records of the release. Without them, only fingerprint and names are
                compared.
        """
        with self._reading() as (connection, state):
            policy = self._in_force(state)
            subject = Sought(population, tuple(cohorts), fingerprint, kind)
            shared = self._sharing(connection, state, subject, records)
            own_names = accounts_of(population, tuple(cohorts), privacy_unit)
            other_names = sorted(
                {name for release in shared for name in release.own_accounts} - set(own_names)
            )
            accounts = []
            for name in [*own_names, *other_names]:
                account, cap = state.account(name, kind), policy.cap(*name, kind)
                taken = [
                    release.cost
                    for release in shared
                    if name in own_names and name not in release.accounts
                ]
                if taken:
                    charge, _ = charge_account(account, cap, taken, policy=policy.name)
                    account = replace(charge.after, last=account.last or charge.loss)
                accounts.append(
                    replace(account, delta_cap=account.delta_cap if cap is None else cap.delta)
                )
            return accounts, state.other_unit(population, kind, privacy_unit)

    def overlaps(self, sought: Sought, *, records: RecordSet | None = None) -> tuple[Overlap, ...]:
        """The other releases that share records, units or cohorts with the sought one, oldest
        first.

        Args:
            records: its records. Without them, only fingerprints and names are compared.
        """
        with self._reading() as (connection, state):
            shared = None
            if records is not None:
                shared = compare(connection, records, state.named_sets())
            return tuple(state.overlaps(sought, shared))

    def refusal(self, plan: ReleasePlan) -> Row[Refused] | None:
        return self.state().refusals.get(plan.idempotency_key)

    def charges(self, release_id: str) -> tuple[Charge, ...]:
        """All charges of a release, including the surplus of its draw, oldest first."""
        return tuple(self.state().release(release_id).charges)

    def verify(
        self,
        *,
        checkpoints: Iterable[Checkpoint] = (),
        earlier: Iterable[LedgerPosition] = (),
        progress: Callable[[int], None] | None = None,
    ) -> Report:
        """Folds the whole chain again and lists every row that was altered or does not follow.

        In addition to the fold, this verifies the stored record sets, and the checkpoints and
        copies that others kept. Without these, a chain that was truncated or rewritten from some
        row on looks intact.

        Args:
            checkpoints: statements exported earlier, through which the chain must still pass.
            earlier: rows exported earlier, which must all still exist. They identify the first
                rewritten row exactly.
            progress: called occasionally with the number of verified rows.
        """
        state, intact = State(), 0
        hashes: dict[int, str] = {0: GENESIS}
        with self.database.read() as connection:
            for stored in chain.stored_rows(connection):
                state.apply(stored)
                hashes[stored.sequence] = state.hash
                intact = intact if state.broken else stored.sequence
                if progress is not None and len(hashes) % _BATCH == 0:
                    progress(len(hashes))
            notes = _protections(connection)
            findings = list(_registry_findings(connection, state))
        beside = [
            BadRow(sequence, f"row {sequence}: {problem}", void=False)
            for sequence, problem in findings
        ]
        bad_rows = sorted(
            [*state.bad, *beside, *_compare(hashes, checkpoints, earlier)],
            key=lambda bad: bad.sequence,
        )
        return Report(len(hashes) - 1, intact, hashes[intact], tuple(bad_rows), notes)

    # -- Within a transaction ----------------------------------------------------------------------

    def _require_here(self, connection: Connection, state: State, plan: ReleasePlan) -> None:
        mark = plan.ledger
        if mark is None:
            raise BudgetRefused(
                "the plan names no ledger: it was made manually. Plan again.",
                kind="plan-without-ledger",
            )
        # guard: test_a_plan_under_another_ledger
        if state.ledger != mark.ledger:
            present = "an empty one" if state.ledger is None else f"{state.ledger[:12]}…"
            raise BudgetRefused(
                f"the plan was made under {mark}, and this ledger is {present}. "
                "Release it there, or plan again here",
                kind="plan-of-another-ledger",
            )
        if chain.hash_of(connection, mark.sequence) != mark.hash:
            raise BudgetRefused(
                f"the plan was made under {mark}, and the ledger has no such row "
                "any more. Plan again",
                kind="plan-after-rollback",
            )

    def _charges(
        self, connection: Connection, state: State, plan: ReleasePlan, records: RecordSet | None
    ) -> tuple[tuple[Charge, ...], list[Release]]:
        if state.policy is None and self._policy is not None:
            state = State(policy=self._policy)
        shared = self._sharing(connection, state, Sought.of(plan), records)
        charges, problem = state.price(plan, shared)
        if problem is not None and problem.kind == "over-cap":
            over = [charge for charge in charges if not charge.fits]
            need = f". Nothing was released or charged. {describe_need(over)}"
            raise over_cap(over, state.in_force.name, then=need)
        if problem:
            raise problem
        return charges, shared

    def _sharing(
        self, connection: Connection, state: State, sought: Sought, records: RecordSet | None
    ) -> list[Release]:
        if records is None:
            return []
        shared = compare(connection, records, state.named_sets())
        if None in shared.values():
            raise Contradiction(
                "registry key: the ledger's records are marked with another key "
                "than this workspace's. Set AUTOCODER_REGISTRY_KEY to the key of "
                "the workspace that released first (private/registry.key).",
                kind="another-registry-key",
            )
        return state.sharing(sought, shared)


def _registry_findings(connection: Connection, state: State) -> Iterator[tuple[int, str]]:
    """Compares the stored record sets with the overlaps that the reservations state."""
    set_digests = state.named_sets()
    lost = set(set_digests)

    def whole() -> Iterator[tuple[int, RecordSet]]:
        for sequence, records in stored_sets(connection, set_digests):
            if records is not None and sequence in set_digests:
                lost.discard(sequence)
                yield sequence, records

    shares = sharing_sets(whole(), size=stored_bytes(connection))
    for sequence in set(stored_sequences(connection)) - set_digests.keys():
        yield sequence, "a set of records is stored with it that it does not name"
    missing: set[str] = set()
    earlier: dict[int, Shared | None] = {}
    for release in list(state.releases.values()):
        sequence, overlap = release.sequence, release.reserved.records
        if overlap is None:
            continue
        if sequence in lost:
            missing.add(release.row.release_id)
            yield sequence, "the set of records beside it is gone, or another"
            continue
        shared = earlier | {
            other: common for other, common in shares.get(sequence, {}).items() if other in earlier
        }
        earlier[sequence] = Shared(0, 0)
        names = {
            other.row.release_id
            for other in state.sharing(Sought.of(release.plan), shared)
            if other.sequence < sequence
        }
        # guard: test_verify_names_a_row_that_hides_what_it_shares
        if names - missing != set(overlap.releases) - missing:
            yield sequence, "it shares records with other releases than it says"


def _compare(
    hashes: Mapping[int, str], checkpoints: Iterable[Checkpoint], earlier: Iterable[LedgerPosition]
) -> list[BadRow]:
    bad, agreed, end = [], 0, max(hashes)
    for sequence, row_hash in sorted(
        {(mark.sequence, mark.hash) for mark in (*checkpoints, *earlier)}
    ):
        if sequence == 0 and row_hash != GENESIS:
            raise Contradiction(
                "head: it is of an empty ledger, but has a hash", kind="empty-head-with-hash"
            )
        if sequence > end:
            gap = f"the ledger ends at row {end}, row {sequence} was kept outside"
            return [*bad, BadRow(end + 1, f"row {end + 1} missing: {gap}")]
        if hashes.get(sequence) == row_hash:
            agreed = sequence
        elif sequence in hashes:
            since = (
                f"row {sequence}"
                if sequence == agreed + 1
                else f"a row between {agreed + 1} and {sequence}"
            )
            problem = (
                f"row {sequence} isn't the one kept outside: the chain was rewritten from "
                f"{since} on"
            )
            bad.append(BadRow(sequence, problem, void=False))
    return bad


def _protections(connection: Connection) -> tuple[str, ...]:
    if connection.dialect.name == "sqlite":
        return ()
    excessive = connection.execute(
        sa.text(
            "SELECT bool_or(has_table_privilege(name, privilege))"
            " FROM unnest(ARRAY['ledger_row', 'record_set']) AS name,"
            " unnest(ARRAY['UPDATE', 'DELETE', 'TRUNCATE']) AS privilege"
        )
    ).scalar()
    if not excessive:
        return ()
    return (
        "this role may change rows: connect the pipeline as the role given to `autocoder ledger "
        "migrate --release-role`, or --app-role",
    )
