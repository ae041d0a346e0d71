"""The ledger itself: reserve, mark drawn, commit or burn; record what stays inside. Reading is in reading.py."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy.engine import Connection

from storage.errors import InputError, StorageError
from storage.ledger import amounts, chain
from storage.ledger.budget import BudgetRefused, Spending
from storage.ledger.content import (
    carry,
    evaluation_content,
    plan_content,
    policy_content,
    policy_terms,
    refusal_content,
    release_terms,
    replaced_details,
)
from storage.ledger.database import Database, database_exists, parse_url
from storage.ledger.decisions import Decision, Matter, approvers, signer
from storage.ledger.journal import Journal
from storage.ledger.models import Evaluation, Mark, ReleasePlan, Row
from storage.ledger.policy import DEFAULT_POLICY, Policy
from storage.ledger.reader import LedgerReader
from storage.ledger.records import RecordSet
from storage.ledger.registry import register
from storage.ledger.schema import ledger_row

_T = ledger_row.c
_IDENTITY = (
    "population",
    "cohorts",
    "data_fingerprint",
    "mechanism",
    "guarantee_kind",
    "parameters_digest",
    "artifact_digests",
)
"""Fields that make two plans of one key different releases; a rerun elsewhere may differ in the others."""
_SURPLUS = "epsilon at the draw exceeds the reservation"


class Ledger(LedgerReader):
    """A release ledger on SQLite or PostgreSQL. Safe to use from many processes at once."""

    @staticmethod
    def open(
        url: str, *, policy: Policy | None = None, lock_timeout: float = 60.0, journals: Sequence[Journal] = ()
    ) -> Ledger:
        """Open a ledger; create or migrate a SQLite file, require a migrated schema on PostgreSQL.

        Args:
            url: `sqlite:///FILE` or `postgresql+psycopg://USER@HOST/DATABASE`.
            policy: what reservations are checked against. The first one is recorded in the ledger by `put_in_force`, at
                the latest with the first reservation; another one later is refused until `change_policy` records it.
                Without one (or with the default one) the policy in force holds.
            lock_timeout: seconds to wait for other writers.
            journals: what was kept of the ledger outside its database; it must go through each, and goes on in each.

        Raises:
            ForeignLedger: it is not the one that a journal knows.
        """
        database = Database(url, lock_timeout=lock_timeout, journals=journals)
        database.prepare()
        database.check()
        return Ledger(database, policy=policy)

    @staticmethod
    def open_existing(url: str, *, policy: Policy | None = None, journals: Sequence[Journal] = ()) -> Ledger | None:
        """Open a ledger, or return None where the URL names a SQLite file that does not exist: creates none."""
        return Ledger.open(url, policy=policy, journals=journals) if database_exists(url) else None

    @staticmethod
    def require_existing(url: str) -> Ledger:
        """Open a ledger for reading: a mistyped folder must not get an empty one."""
        ledger = Ledger.open_existing(url)
        if ledger is None:
            place = parse_url(url).database
            raise InputError(f"no ledger at {place}. The first retrain creates it; check --home and --ledger-url.")
        return ledger

    # -- releases ------------------------------------------------------------------------------------------

    def reserve(
        self,
        plan: ReleasePlan,
        *,
        plan_digest: str | None = None,
        decisions: Sequence[Decision] = (),
        audit: dict[str, Any] | None = None,
        records: RecordSet | None = None,
    ) -> Row:
        """Charge a planned release to the accounts of its cohorts, and of its units, and return its row, `reserved`.

        A second call with the same idempotency key returns the release's current row and charges nothing.

        Args:
            plan_digest: SHA-256 of everything that is released, which the decisions are about.
            decisions: signed approvals, as many as the policy in force demands; they are kept with the row.
            audit: what was measured beside the claim, as plain JSON; kept with the row.
            records: what it is made from. With it, it counts in the accounts of earlier releases of the same records,
                and those count in its own, whatever population and cohorts they are called by.

        Raises:
            BudgetRefused: when the sum exceeds a cap, an approval is missing, or somebody refused this plan.
            InputError: when a number can't be kept, the key belongs to another plan, or an approval doesn't count.
        """
        return self.database.transact(
            lambda connection: self._reserve(connection, plan, plan_digest, decisions, audit, records)
        )

    def _reserve(
        self,
        connection: Connection,
        plan: ReleasePlan,
        plan_digest: str | None = None,
        decisions: Sequence[Decision] = (),
        audit: dict[str, Any] | None = None,
        records: RecordSet | None = None,
    ) -> Row:
        content = plan_content(plan)
        existing = chain.newest(connection, _T.kind == "release", _T.idempotency_key == plan.idempotency_key)
        if existing is not None:
            _require_same(existing, content)
            require_plan(existing, plan_digest)
            return existing
        if plan.ledger is not None:
            self._require_here(connection, plan)
        policy = self._policy_in_force(connection, requester=plan.requester)
        if policy.require_clean_code and plan.code_dirty:
            raise BudgetRefused(f"policy {policy.name} releases only from committed code; commit the changes first")
        refused = self._refusal(connection, plan)
        if refused is not None:
            raise BudgetRefused(
                f"row {refused.sequence}: {refused.reason}; plan it anew under another release.label to ask again"
            )
        matter = Matter("release", plan_digest or "", release_terms(plan, content), plan.requester)
        approved = approvers(decisions, policy.approvals, matter)
        _require_persons(policy, approved)
        if plan.supersedes is not None:
            self._current(connection, plan.supersedes)
        spending = Spending.of(content)
        overlap, comparison = self._overlap(connection, spending, records)
        charges = self._charges(connection, policy, spending, overlap)
        details = replaced_details(plan.claim)
        if plan_digest is not None:
            signed = [decision.model_dump(mode="json") for decision in decisions]
            details |= {"plan_digest": plan_digest, "decisions": signed}
        if plan.ledger is not None:
            details["ledger"] = plan.ledger.model_dump()
        if audit is not None:
            details["audit"] = audit
        stored = None if comparison is None else comparison.encode()
        if records is not None and stored is not None:
            shared = sorted(str(row.release_id) for row in overlap)
            stored_digest = hashlib.sha256(stored).hexdigest()
            details["records"] = {"overlap": shared, "set": records.digest, "stored": stored_digest}
        content |= {
            "state": "reserved",
            "release_id": uuid.uuid4().hex[:16],
            "records_rounded": policy.round_records(plan.records_rounded),
            "composition": ", ".join(dict.fromkeys(charge.composition for charge in charges)),
            "charges": charges,
            "policy_digest": policy.digest,
            "approvals": approved,
            "details": details,
        }
        row = chain.append(connection, content)
        approvers(decisions, policy.approvals, matter, at=_moment(row))  # one may have gone stale meanwhile
        if stored is not None:
            register(connection, row.sequence, stored)
        return row

    def refuse(self, plan: ReleasePlan, decision: Decision) -> Row:
        """Record that somebody refused a plan; it can't be reserved any more. Again returns the first refusal."""
        return self.database.transact(lambda connection: self._refuse(connection, plan, decision))

    def _refuse(self, connection: Connection, plan: ReleasePlan, decision: Decision) -> Row:
        existing = chain.newest(connection, _T.kind == "refusal", _T.idempotency_key == decision.digest)
        if existing is not None:
            return existing
        policy, content = self._policy_in_force(connection, requester=plan.requester), plan_content(plan)
        matter = Matter("release", decision.digest, release_terms(plan, content), plan.requester)
        name = signer(decision, policy.approvals, matter)
        if decision.decision != "refuse":
            raise InputError(f"decision by {name}: it approves; a refusal is signed with `autocoder refuse`")
        released = chain.newest(connection, _T.kind == "release", _T.idempotency_key == plan.idempotency_key)
        if released is not None:
            raise InputError(f"refusal: too late, the plan is release {released.release_id} ({released.state})")
        row = chain.append(connection, refusal_content(content, decision, name=name))
        signer(decision, policy.approvals, matter, at=_moment(row))
        return row

    def mark_drawn(
        self,
        release_id: str,
        *,
        draw_digest: str,
        plan_digest: str | None = None,
        sensitivity: float | Decimal | None = None,
        epsilon: float | Decimal | None = None,
    ) -> Row:
        """Record the one draw of a release, and what it costs as measured at the draw itself.

        The larger of planned and measured is what the row takes; a surplus is charged in the same transaction.
        A second call with the same digest returns the release's row.

        Args:
            plan_digest: of the plan that was drawn; it has to be the reserved one's.

        Raises:
            BudgetRefused: when the surplus exceeds a cap; the release is burned then.
            StorageError: when another draw is recorded already, the plan is another, or the release is burned.
            InputError: when a number can't be kept, or a larger sensitivity comes without its epsilon.
        """
        measured = {
            "epsilon": None if epsilon is None else amounts.epsilon(epsilon),
            "sensitivity": None if sensitivity is None else amounts.epsilon(sensitivity, name="sensitivity"),
        }
        row, refusal = self.database.transact(
            lambda connection: self._mark_drawn(connection, release_id, draw_digest, plan_digest, measured)
        )
        if refusal is not None:
            raise BudgetRefused(f"release {release_id} is burned: {refusal}")
        return row

    def _mark_drawn(
        self,
        connection: Connection,
        release_id: str,
        draw_digest: str,
        plan_digest: str | None,
        measured: dict[str, Decimal | None],
    ) -> tuple[Row, str | None]:
        row = self._current(connection, release_id)
        require_plan(row, plan_digest)
        if row.draw_digest is not None:
            if row.draw_digest != draw_digest:
                raise StorageError(f"release {release_id}: another draw is recorded already. A release has one draw")
            if row.state == "burned" and not row.reason.startswith(_SURPLUS):
                raise StorageError(f"release {release_id} is burned: {row.reason}")
            return row, row.reason if row.state == "burned" else None
        if row.state != "reserved":
            raise StorageError(f"release {release_id} is {row.state}: nothing may be drawn")
        content = carry(row, state="drawn", draw_digest=draw_digest)
        planned_epsilon, planned_sensitivity = row.epsilon or amounts.ZERO_EPSILON, row.sensitivity
        at_draw = measured["sensitivity"]
        if at_draw is not None and (planned_sensitivity is None or at_draw > planned_sensitivity):
            if measured["epsilon"] is None:
                raise InputError("epsilon: the draw's sensitivity is above the planned one; give its epsilon too")
            content["sensitivity"] = at_draw
            if row.event is not None and "sensitivity" in row.event:
                content["event"] = {**row.event, "sensitivity": float(at_draw)}
            if row.epsilon_add_remove is not None:
                content["epsilon_add_remove"] = max(row.epsilon_add_remove, at_draw * (row.max_records_per_unit or 1))
        if measured["epsilon"] is not None and measured["epsilon"] > planned_epsilon:
            if row.guarantee_kind == "formal":
                raise InputError("epsilon: a formal guarantee doesn't depend on the draw; this one grew with it")
            surplus = measured["epsilon"] - planned_epsilon
            policy = self._policy_in_force(connection, requester=row.requester or "")
            content |= {"epsilon": measured["epsilon"], "policy_digest": policy.digest}
            try:
                spending = Spending.of(content).surplus(surplus)
                others = self._counted(connection, release_id) - set(spending.accounts)
                content["charges"] = self._charged(connection, policy, spending, sorted(others))
            except BudgetRefused as refused:
                reason = f"{_SURPLUS}: {refused}"
                burned = carry(row, state="burned", draw_digest=draw_digest, reason=reason)
                return chain.append(connection, burned), reason
        return chain.append(connection, content), None

    def commit(self, release_id: str, *, bundle_digest: str, plan_digest: str | None = None) -> Row:
        """Record that the bundle stands; the release is done. Again with the same digest returns its row."""
        return self.database.transact(
            lambda connection: self._commit(connection, release_id, bundle_digest, plan_digest)
        )

    def _commit(self, connection: Connection, release_id: str, bundle_digest: str, plan_digest: str | None) -> Row:
        row = self._current(connection, release_id)
        require_plan(row, plan_digest)
        if row.state == "committed":
            if row.bundle_digest != bundle_digest:
                raise StorageError(f"release {release_id}: committed with another bundle already")
            return row
        if row.state != "drawn":
            raise StorageError(f"release {release_id} is {row.state}: only a drawn one can be committed")
        return chain.append(connection, carry(row, state="committed", bundle_digest=bundle_digest))

    def burn(self, release_id: str, *, reason: str) -> Row:
        """Close a release for ever without a bundle. What it spent stays spent."""
        if not reason.strip():
            raise InputError("reason: say why the release is burned")
        return self.database.transact(lambda connection: self._burn(connection, release_id, reason))

    def _burn(self, connection: Connection, release_id: str, reason: str) -> Row:
        row = self._current(connection, release_id)
        if row.state == "burned":
            return row
        if row.state == "committed":
            raise StorageError(f"release {release_id} is committed: what left can't be burned")
        return chain.append(connection, carry(row, state="burned", reason=reason))

    # -- which ledger this is -------------------------------------------------------------------------------

    def ensure_genesis_row(self, *, requester: str) -> Mark:
        """Return which ledger this is and how far it went; an empty one gets its first row."""
        mark = self.mark()
        if mark is None:
            first = Evaluation(label="first row", population="none", data_fingerprint="none", requester=requester)
            self.record(first.model_copy(update={"idempotency_key": "first row"}))
            mark = self.mark()
        assert mark is not None
        return mark

    # -- other rows ----------------------------------------------------------------------------------------

    def record(self, evaluation: Evaluation) -> Row:
        """Record an evaluation or an audit, with every epsilon and Delta it has; charges nothing."""
        if evaluation.idempotency_key is None:
            # Without a key a repetition would be a second row, so a lost connection is reported, not retried.
            with self.database.write() as connection:
                return self._record(connection, evaluation)
        return self.database.transact(lambda connection: self._record(connection, evaluation))

    def _record(self, connection: Connection, evaluation: Evaluation) -> Row:
        content = evaluation_content(evaluation)
        key = evaluation.idempotency_key
        if key is not None:
            existing = chain.newest(connection, _T.kind == evaluation.kind, _T.idempotency_key == key)
            if existing is not None:
                return existing
        if evaluation.release_id is not None:
            self._current(connection, evaluation.release_id)
        if evaluation.records_rounded is not None:
            content["records_rounded"] = self._in_force(connection).round_records(evaluation.records_rounded)
        return chain.append(connection, content)

    def change_policy(self, policy: Policy, *, requester: str, reason: str, decisions: Sequence[Decision] = ()) -> Row:
        """Put another policy in force where the one before is satisfied; record who wanted it, who approved and why."""
        if not reason.strip():
            raise InputError("reason: say why the budget changes")

        def work(connection: Connection) -> Row:
            row = self._policy_row(connection)
            before = None if row is None else Policy.parse(row.details["policy"])
            if row is not None and row.policy_digest == policy.digest:
                return row

            def approved(at: datetime | None = None) -> tuple[str, ...]:
                if row is None or before is None:
                    return ()
                terms = policy_terms(policy.name, self._mark_of(connection, row), requester=requester, reason=reason)
                matter = Matter("policy", policy.digest, terms, requester)
                return approvers(decisions, before.approvals, matter, at=at)

            names = approved()
            if before is not None:
                _require_persons(before, names)
            content = policy_content(
                policy, before, requester=requester, reason=reason, approvals=names, decisions=decisions
            )
            made = chain.append(connection, content)
            approved(_moment(made))
            return made

        return self.database.transact(work)

    def put_in_force(self, *, requester: str) -> Policy:
        """Hold everything from now on against the policy of this ledger or of its opening, which may not differ."""
        return self.database.transact(lambda connection: self._policy_in_force(connection, requester=requester))

    def _policy_in_force(self, connection: Connection, *, requester: str) -> Policy:
        row = self._policy_row(connection)
        if row is None:
            policy = self._policy or DEFAULT_POLICY
            content = policy_content(policy, None, requester=requester, reason="first policy of this ledger")
            chain.append(connection, content)
            return policy
        if self._policy is not None and self._policy != DEFAULT_POLICY and self._policy.digest != row.policy_digest:
            raise InputError(
                f"policy {self._policy.name} is not the one in force ({row.label}, since row {row.sequence});"
                " record the change first: `autocoder ledger change-policy`"
            )
        return Policy.parse(row.details["policy"])


def _require_same(existing: Row, content: dict[str, Any]) -> None:
    different = [name for name in _IDENTITY if getattr(existing, name) != content[name]]
    if different:
        raise InputError(
            f"idempotency key: it belongs to release {existing.release_id}, whose {', '.join(different)} differ;"
            " another release needs another key (another release.label), and spends again"
        )


def require_plan(row: Row, plan_digest: str | None) -> None:
    """Refuses a step of a release for another plan than the one that was reserved; its digest covers the artifacts."""
    reserved = row.details.get("plan_digest")
    if reserved != plan_digest:
        shown, given = (f"plan {one[:12]}…" if one else "no plan digest" for one in (reserved, plan_digest))
        raise StorageError(
            f"release {row.release_id} was reserved for {shown}, this is {given}. Release the reserved plan, or plan "
            "again under another release.label, which spends again"
        )


def _moment(row: Row) -> datetime:
    """Returns the time at which verification holds a row's signatures against their age limit.

    A clock runs on between the check and the row, or is set back: the row could then never be verified.
    """
    return datetime.fromisoformat(row.recorded_at)


def _require_persons(policy: Policy, approved: Sequence[str]) -> None:
    if len(approved) < policy.approvals.minimum:
        raise BudgetRefused(
            f"policy {policy.name} needs {policy.approvals.signatures_required} by others than the requester;"
            f" {len(approved)} given (`autocoder approve`)"
        )
