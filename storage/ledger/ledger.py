"""The writing side of the ledger: reserve, mark drawn, commit or burn, and record internal results.
`reader.py` is the reading side.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy.engine import Connection

from storage.errors import Contradiction, DamagedData, InputError, Missing, StorageError, WrongState
from storage.ledger import amounts, chain, measurements
from storage.ledger.budget import BudgetRefused
from storage.ledger.content import policy_terms, release_terms, settled
from storage.ledger.database import Database, database_exists, parse_url
from storage.ledger.decisions import Decision, Matter, approvers, signer
from storage.ledger.entries import (
    Begun,
    Burned,
    ChainRow,
    Committed,
    Drawn,
    Entry,
    Evaluated,
    LedgerRow,
    Noted,
    Overlap,
    PolicySet,
    Refused,
    ReleaseEntry,
    ReleaseRow,
    Reserved,
    Row,
    StatedAudit,
)
from storage.ledger.fold import Release, State
from storage.ledger.journal import Journal
from storage.ledger.keys import key_id
from storage.ledger.models import Evaluation, LedgerPosition, ReleasePlan
from storage.ledger.policy import DEFAULT_POLICY, Policy
from storage.ledger.reader import LedgerReader
from storage.ledger.records import RecordSet
from storage.ledger.registry import register

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

_Result = TypeVar("_Result")


class Ledger(LedgerReader):
    """A release ledger on SQLite or PostgreSQL, safe for concurrent use by many processes."""

    def __init__(
        self,
        database: Database,
        *,
        policy: Policy | None = None,
        key: EllipticCurvePrivateKey | None = None,
    ) -> None:
        super().__init__(database, policy=policy)
        self._key = key

    @staticmethod
    def open(
        url: str,
        *,
        policy: Policy | None = None,
        lock_timeout: float = 60.0,
        journals: Sequence[Journal] = (),
        key: EllipticCurvePrivateKey | None = None,
    ) -> Ledger:
        """Opens a ledger. Creates or migrates a SQLite file; requires a migrated schema on
        PostgreSQL.

        Args:
            url: `sqlite:///FILE` or `postgresql+psycopg://USER@HOST/DATABASE`.
            policy: policy for reservations. The first one is recorded in the ledger by
                `put_in_force`, at the latest with the first reservation. A different one is later
                refused until `change_policy` records it. Without a policy (or with the default
                one), the policy in force applies.
            lock_timeout: seconds to wait for other writers.
            journals: copies of the ledger's rows outside its database. The ledger must contain the
                rows of each, and new rows are appended to each.
            key: key of the releasing worker, which signs the rows of releases. Without it nothing
                can be released.

        Raises:
            ForeignLedger: a journal belongs to another ledger, or has rows that this ledger lacks.
        """
        database = Database(url, lock_timeout=lock_timeout, journals=journals)
        database.prepare()
        database.check()
        return Ledger(database, policy=policy, key=key)

    def with_key(self, key: EllipticCurvePrivateKey) -> Ledger:
        """This ledger, without opening or folding it again, with the key of the releasing
        worker.
        """
        ledger = Ledger(self.database, policy=self._policy, key=key)
        ledger._folded = self._folded
        return ledger

    @staticmethod
    def open_existing(url: str, *, policy: Policy | None = None) -> Ledger | None:
        """Opens a ledger; returns None if the URL is a SQLite file that does not exist, without
        creating it.
        """
        return Ledger.open(url, policy=policy) if database_exists(url) else None

    @staticmethod
    def require_existing(url: str) -> Ledger:
        """Opens a ledger for reading. A mistyped folder must not create an empty ledger."""
        ledger = Ledger.open_existing(url)
        if ledger is None:
            place = parse_url(url).database
            raise Missing(
                f"no ledger at {place}. The first training run creates it. Check "
                "--home and AUTOCODER_LEDGER_URL.",
                kind="no-ledger",
            )
        return ledger

    # -- Writing -----------------------------------------------------------------------------------

    def _transact(
        self, work: Callable[[Connection, State], _Result], *, repeatable: bool = True
    ) -> _Result:
        """Runs work in a write transaction on the current state. Appended rows take effect only
        once they are committed.
        """

        def folded(connection: Connection) -> _Result:
            return work(connection, self._fold(connection))

        with self._lock:
            try:
                if repeatable:
                    return self.database.transact(folded)
                with self.database.write() as connection:
                    return folded(connection)
            except BaseException:
                self._folded = None
                raise

    def _append(self, connection: Connection, state: State, entry: Entry) -> LedgerRow:
        signed = isinstance(entry, ReleaseEntry)
        if signed and self._key is None:
            raise InputError(
                f"ledger {self.database.name}: a row of kind {entry.kind} is signed with the "
                "releasing worker's key, and there is none here. Set AUTOCODER_SIGNING_KEY",
                kind="not-signed-here",
            )
        stored = chain.append(connection, entry.as_json(), key=self._key if signed else None)
        row = state.apply(stored)
        if row is None or (state.bad and state.bad[-1].sequence == stored.sequence):
            raise BudgetRefused(state.bad[-1].problem, kind="unsound-row")
        return row

    def _append_to(self, connection: Connection, state: State, entry: ReleaseEntry) -> ReleaseRow:
        self._append(connection, state, entry)
        return state.release(entry.release_id).row

    # -- Releases ----------------------------------------------------------------------------------

    def reserve(
        self,
        plan: ReleasePlan,
        *,
        plan_digest: str | None = None,
        policy_digest: str | None = None,
        decisions: Sequence[Decision] = (),
        audit: StatedAudit | None = None,
        records: RecordSet | None = None,
    ) -> ReleaseRow:
        """Charges a planned release to the accounts of its cohorts, and of its units; returns its
        row, `reserved`.

        A second call with the same idempotency key returns the release's current row and charges
        nothing.

        Args:
            plan_digest: SHA-256 of everything that is released, which is the subject of the
                decisions.
            policy_digest: digest of the policy under which the plan was checked. Refused if another
                policy is now in force.
            decisions: signed approvals, as many as the policy in force requires; stored in the row.
            audit: audit results for the claim; stored in the row.
            records: the records of the release. With them, the release counts in the accounts of
                earlier releases of the same records, and those count in its own, under any
                population and cohorts.

        Raises:
            BudgetRefused: the sum exceeds a cap, an approval is missing, or a person refused this
                plan.
            InputError: an amount is invalid, the key belongs to another plan, or an approval is
                invalid.
        """

        asked = settled(plan)

        def work(connection: Connection, state: State) -> ReleaseRow:
            existing = state.release_of_key(asked.idempotency_key)
            if existing is not None:
                _require_same(existing, asked)
                require_plan(existing.row, plan_digest)
                return existing.row
            state.require_counted()
            if asked.ledger is not None:
                self._require_here(connection, state, asked)
            policy = self._put_in_force(connection, state, requester=asked.requester)
            # guard: test_a_policy_that_changes_after_the_gate
            if policy_digest not in (None, policy.digest):
                raise BudgetRefused(
                    f"the policy changed to {policy.name} while the plan was checked. "
                    "Release again",
                    kind="policy-changed",
                )
            approved = self._approvers(state, policy, asked, plan_digest, decisions)
            if asked.supersedes is not None:
                state.release(asked.supersedes)
            _, shared = self._charges(connection, state, asked, records)
            names = tuple(sorted(release.row.release_id for release in shared))
            rounded = policy.round_records(asked.records_rounded)
            entry = Reserved(
                release_id=uuid.uuid4().hex[:16],
                plan=asked.model_copy(update={"records_rounded": rounded}),
                policy_digest=policy.digest,
                plan_digest=plan_digest,
                decisions=tuple(decisions),
                approvals=approved,
                audit=audit,
                records=None if records is None else Overlap(set=records.digest, releases=names),
            )
            row = self._append_to(connection, state, entry)
            if records is not None:
                register(connection, row.sequence, records)
            return row

        return self._transact(work)

    @staticmethod
    def _approvers(
        state: State,
        policy: Policy,
        plan: ReleasePlan,
        plan_digest: str | None,
        decisions: Sequence[Decision],
    ) -> tuple[str, ...]:
        """The names of those who approved a plan. Refuses plans that a rule other than the budget
        forbids.
        """
        if policy.require_clean_code and plan.code_dirty:
            raise BudgetRefused(
                f"policy {policy.name} releases only from committed code. Commit the changes first",
                kind="uncommitted-code",
            )
        refused = state.refusals.get(plan.idempotency_key)
        if refused is not None:
            raise BudgetRefused(
                f"row {refused.sequence}: {refused.entry.reason}. To ask again, "
                "make a new plan with another release.label",
                kind="refused-earlier",
                row=refused.sequence,
            )
        matter = Matter("release", plan_digest or "", release_terms(plan), plan.requester)
        approved = approvers(decisions, policy.approvals, matter)
        _require_persons(policy, approved)
        return approved

    def require_signer(self) -> None:
        """Refuses a worker with an unlisted key, because its reservations would have no effect."""
        listed = self.state().release_keys or self.policy().release_key_ids()
        if listed and self._key is not None and key_id(self._key.public_key()) not in listed:
            raise BudgetRefused(
                "this machine's signing key is not among the policy's `release_keys`. Release "
                "where that key is, or "
                "list this one (`autocoder ledger change-policy`)",
                kind="not-a-release-key",
            )

    def require_drawable(self, release_id: str, state: State | None = None) -> None:
        """Refuses to draw a release with an invalid reservation.

        The fold has verified its approvals, policy, key and charges.
        """
        state = state or self.state()
        state.require_counted()
        release = state.release(release_id)
        # guard: test_a_release_above_the_cap_is_charged_named_and_never_drawn
        if release.problem:
            raise DamagedData(
                f"release {release.row.release_id}: its reservation (row {release.sequence}) is "
                f"invalid: {release.problem}. Nothing is released. Run `autocoder ledger verify`",
                kind="unfounded-release",
            )

    def refuse(self, plan: ReleasePlan, decision: Decision) -> ChainRow:
        """Records that a person refused a plan, which can then no longer be reserved. Repeating
        this returns the first refusal.
        """

        def work(connection: Connection, state: State) -> ChainRow:
            existing = state.keys.get(("refused", decision.digest))
            if existing is not None:
                return existing
            policy = self._put_in_force(connection, state, requester=plan.requester)
            matter = Matter("release", decision.digest, release_terms(plan), plan.requester)
            name = signer(decision, policy.approvals, matter)
            if decision.decision != "refuse":
                raise Contradiction(
                    f"decision by {name}: it approves. To refuse, sign with "
                    "`autocoder approve --refuse`",
                    kind="approval-as-refusal",
                )
            released = state.release_of_key(plan.idempotency_key)
            if released is not None:
                row = released.row
                raise InputError(
                    f"refusal: too late, the plan is release {row.release_id} ({row.state})",
                    kind="refused-too-late",
                )
            entry = Refused(decision=decision, by=name, requester=plan.requester)
            self._append(connection, state, entry)
            return state.keys[entry.key]

        return self._transact(work)

    def mark_drawn(
        self,
        release_id: str,
        *,
        draw_digest: str,
        plan_digest: str | None = None,
        sensitivity: float | Decimal | None = None,
        epsilon: float | Decimal | None = None,
    ) -> ReleaseRow:
        """Records the single draw of a release, and its cost as measured at the draw.

        The row stores the larger of the planned and the measured cost. A surplus is charged in the
        same transaction. A second call with the same digest returns the release's row.

        Args:
            plan_digest: digest of the plan that was drawn, which must be the reserved one.

        Raises:
            BudgetRefused: the surplus exceeds a cap, and the release was burned.
            StorageError: another draw is already recorded, the plan is another one, or the release
                is burned.
            InputError: an amount is invalid, or a larger sensitivity comes without its epsilon.
        """
        cost = None if epsilon is None else amounts.epsilon(epsilon)
        largest = None if sensitivity is None else amounts.epsilon(sensitivity, name="sensitivity")

        def work(connection: Connection, state: State) -> ReleaseRow:
            release = state.release(release_id)
            row = release.row
            require_plan(row, plan_digest)
            if row.draw_digest is not None:
                if row.draw_digest != draw_digest:
                    raise WrongState(
                        f"release {release_id}: another sample is recorded already. A release "
                        "has only one",
                        kind="drawn-twice",
                    )
                if row.state == "burned" and row.cause != "surplus-refused":
                    raise WrongState(f"release {release_id} is burned: {row.reason}", kind="burned")
                return row
            if row.state != "reserved":
                raise WrongState(
                    f"release {release_id} is {row.state}: no sample may be recorded",
                    kind="not-reserved",
                )
            self.require_drawable(release_id, state)
            if cost is None and largest is not None and largest > (row.sensitivity or 0):
                raise Missing(
                    "epsilon: missing. The sample's sensitivity is above the "
                    "planned one, so its epsilon must be passed too",
                    kind="epsilon-of-sample",
                )
            planned = row.epsilon or amounts.ZERO_EPSILON
            if cost is not None and cost > planned:
                if row.guarantee_kind == "formal":
                    raise Contradiction(
                        "epsilon: a formal guarantee doesn't depend on the sample, "
                        "but this epsilon grew with it",
                        kind="epsilon-of-formal-sample",
                    )
                _, problem = state.surplus(release, cost - planned)
                if problem:
                    reason = f"epsilon at the sample exceeds the reservation: {problem}"
                    burned = Burned(
                        release_id=release_id,
                        reason=reason,
                        cause="surplus-refused",
                        draw_digest=draw_digest,
                    )
                    return self._append_to(connection, state, burned)
            drawn = Drawn(
                release_id=release_id,
                draw_digest=draw_digest,
                epsilon=cost,
                sensitivity=largest,
            )
            return self._append_to(connection, state, drawn)

        row = self._transact(work)
        if row.state == "burned":
            raise BudgetRefused(
                f"release {release_id} is burned: {row.reason}", kind="burned-meanwhile"
            )
        return row

    def commit(
        self, release_id: str, *, bundle_digest: str, plan_digest: str | None = None
    ) -> ReleaseRow:
        """Records that the bundle is complete, which ends the release. Repeating this with the same
        digest returns the row.
        """

        def work(connection: Connection, state: State) -> ReleaseRow:
            row = state.release(release_id).row
            require_plan(row, plan_digest)
            if row.state == "committed":
                if row.bundle_digest != bundle_digest:
                    raise WrongState(
                        f"release {release_id}: committed with another bundle already",
                        kind="committed-differently",
                    )
                return row
            if row.state != "drawn":
                raise WrongState(
                    f"release {release_id} is {row.state}. Only one in the state "
                    "`drawn` (sampled) can be committed",
                    kind="not-drawn",
                )
            self.require_drawable(release_id, state)
            committed = Committed(release_id=release_id, bundle_digest=bundle_digest)
            return self._append_to(connection, state, committed)

        return self._transact(work)

    def burn(self, release_id: str, *, reason: str) -> ReleaseRow:
        """Permanently closes a release without a bundle. Its spending is not returned."""
        if not reason.strip():
            raise Missing(
                "reason: missing. Explain why the release is burned", kind="no-burn-reason"
            )

        def work(connection: Connection, state: State) -> ReleaseRow:
            row = state.release(release_id).row
            if row.state == "burned":
                return row
            if row.state == "committed":
                raise WrongState(
                    f"release {release_id} is committed: a released bundle can't be burned",
                    kind="committed",
                )
            burned = Burned(release_id=release_id, reason=reason)
            return self._append_to(connection, state, burned)

        return self._transact(work)

    # -- Identity of the ledger --------------------------------------------------------------------

    def ensure_genesis_row(self, *, requester: str) -> LedgerPosition:
        """The identity and the newest row of this ledger. An empty ledger gets its first row."""
        mark = self.state().mark
        if mark is None:
            self.note(Begun(requester=requester))
            mark = self.state().mark
        assert mark is not None
        return mark

    # -- Other rows --------------------------------------------------------------------------------

    def record(self, evaluation: Evaluation) -> Evaluated:
        """Records an evaluation or an audit in the measurements, with all its amounts. Charges
        nothing.
        """
        state = self.state()
        if evaluation.release_id is not None:
            state.release(evaluation.release_id)
        if evaluation.records_rounded is not None:
            rounded = self._in_force(state).round_records(evaluation.records_rounded)
            evaluation = evaluation.model_copy(update={"records_rounded": rounded})
        with self.database.add() as connection:
            return measurements.add(connection, evaluation)

    def note(self, entry: Noted) -> ChainRow:
        """Records the basis of a release, the reason why it was stopped, or its later fate, as a
        row of the chain. Charges nothing. Repeating this returns the first row.
        """

        def work(connection: Connection, state: State) -> ChainRow:
            if isinstance(entry, ReleaseEntry):
                state.release(entry.release_id)
            if entry.key not in state.keys:
                self._append(connection, state, entry)
            return state.keys[entry.key]

        return self._transact(work)

    def change_policy(
        self, policy: Policy, *, requester: str, reason: str, decisions: Sequence[Decision] = ()
    ) -> Row[PolicySet]:
        """Puts another policy in force if the current policy's rules for changes are satisfied.
        Records the requester, the approvers and the reason.
        """
        if not reason.strip():
            raise Missing(
                "reason: missing. Explain why the budget changes", kind="no-policy-reason"
            )

        def work(connection: Connection, state: State) -> Row[PolicySet]:
            before, names = state.policy, ()
            if before is not None and state.policy_row is not None:
                if before.digest == policy.digest:
                    return state.policy_row
                terms = policy_terms(
                    policy.name, state.policy_mark, requester=requester, reason=reason
                )
                names = approvers(
                    decisions, before.approvals, Matter("policy", policy.digest, terms, requester)
                )
                _require_persons(before, names)
            entry = PolicySet(
                policy=policy,
                requester=requester,
                reason=reason,
                decisions=tuple(decisions),
                approvals=names,
            )
            self._append(connection, state, entry)
            assert state.policy_row is not None
            return state.policy_row

        return self._transact(work)

    def put_in_force(self, *, requester: str) -> Policy:
        """Requires that this ledger's policy in force is the one that it was opened with, and
        records that one if there is none yet.
        """
        state = self.state()
        if state.policy is not None:
            return self._require_in_force(state)
        return self._transact(
            lambda connection, state: self._put_in_force(connection, state, requester=requester)
        )

    def _put_in_force(self, connection: Connection, state: State, *, requester: str) -> Policy:
        if state.policy is not None:
            return self._require_in_force(state)
        policy = self._policy or DEFAULT_POLICY
        reason = "first policy of this ledger"
        entry = PolicySet(policy=policy, requester=requester, reason=reason)
        self._append(connection, state, entry)
        return policy

    def _require_in_force(self, state: State) -> Policy:
        row = state.policy_row
        assert row is not None
        if (
            self._policy is not None
            and self._policy != DEFAULT_POLICY
            and self._policy.digest != row.entry.policy.digest
        ):
            raise InputError(
                f"policy {self._policy.name} is not the current one ({row.title}, "
                f"since row {row.sequence}). Record the change first: `autocoder "
                "ledger change-policy`",
                kind="policy-not-current",
                row=row.sequence,
            )
        return state.in_force


def _require_same(existing: Release, plan: ReleasePlan) -> None:
    before, now = _identity(existing.plan), _identity(plan)
    different = [name for name, value in now.items() if before[name] != value]
    if different:
        raise Contradiction(
            f"idempotency key: it belongs to release {existing.row.release_id}, "
            f"whose {', '.join(different)} differ. Another release needs another "
            "key (another release.label), and spends again",
            kind="key-of-another-release",
        )


def _identity(plan: ReleasePlan) -> dict[str, object]:
    """The fields that identify the release of an idempotency key. A rerun elsewhere may differ in
    other fields.
    """
    return {
        "population": plan.population,
        "cohorts": plan.cohorts,
        "data_fingerprint": plan.data_fingerprint,
        "mechanism": plan.event.of_training.mechanism,
        "guarantee_kind": plan.claim.guarantee_kind,
        "parameters_digest": plan.parameters_digest,
        "artifact_digests": plan.artifact_digests,
    }


def require_plan(row: ReleaseRow, plan_digest: str | None) -> None:
    """Refuses a step of a release for a plan other than the reserved one. The plan's digest covers
    the artifacts.
    """
    if row.plan_digest != plan_digest:
        shown, passed = (
            f"plan {digest[:12]}…" if digest else "no plan digest"
            for digest in (row.plan_digest, plan_digest)
        )
        raise StorageError(
            f"release {row.release_id} was reserved for {shown}, this is {passed}. "
            "Release the reserved plan, or plan again with another release.label, "
            "which spends again",
            kind="another-plan",
        )


def _require_persons(policy: Policy, approved: Sequence[str]) -> None:
    if len(approved) < policy.approvals.minimum:
        raise BudgetRefused(
            f"policy {policy.name} needs {policy.approvals.signatures_required} by "
            f"others than the requester, but {len(approved)} are valid (`autocoder "
            "approve`)",
            kind="approvals-missing",
        )
