"""The rows' meaning, replayed from the first row on: states, budgets and policies must follow from each other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from operator import itemgetter
from typing import Any

from storage.ledger import amounts
from storage.ledger.budget import RECORD, accounts_of
from storage.ledger.content import recovery_terms, signed_terms
from storage.ledger.decisions import Subject, approvers, from_row, signer
from storage.ledger.models import SCHEMA_VERSION
from storage.ledger.policy import ALL_COHORTS, Policy

_CHANGING = ("draw_digest", "bundle_digest")
_FIXED = itemgetter(
    "idempotency_key", "label", "population", "cohorts", "data_fingerprint", "records_rounded", "privacy_unit",
    "max_records_per_unit", "neighbouring_relation", "mechanism", "guarantee_kind", "delta", "delta_text", "draws",
    "mc_failure_prob", "accountant", "assumptions", "unprotected_inputs", "composition", "trust_model",
    "randomness_source", "floating_point_caveat", "code_commit", "code_dirty", "lock_digest", "parameters_digest",
    "artifact_digests", "requester", "approvals", "prefect_run_id", "supersedes",
)  # fmt: skip
_MAY_FOLLOW = {"drawn": ("reserved",), "committed": ("drawn",), "burned": ("reserved", "drawn")}
_NO_DELTA = amounts.text(amounts.ZERO_DELTA)


def _signed(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row["details"].get(name) for name in ("plan_digest", "decisions", "ledger", "records"))


Total = tuple[str, str, str, int, str, str, str | None, str | None]
"""A row of the spend table: account, sequence, relation, unit, epsilon and delta as text."""


class Inconsistent(Exception):
    """A row doesn't follow from the rows before it."""


@dataclass
class _Release:
    """What a release costs, and the accounts (population, cohort) that it counts in."""

    population: str
    cohorts: list[str]
    kind: str
    relation: str
    unit: str
    epsilon: Decimal
    delta: Decimal
    accounts: set[tuple[str, str]]

    def own(self, *, units: bool) -> list[tuple[str, str]]:
        """The accounts of its own name: that of its population's units among them, since there are such."""
        return accounts_of(self.population, self.cohorts, self.unit if units else RECORD)


class Replay:
    """The ledger's state after the rows so far. `step` takes the next one."""

    def __init__(self) -> None:
        self._policy: Policy | None = None
        self._policy_digest: str | None = None
        self._caps: dict[tuple[str, str, str], tuple[Decimal, Decimal | None]] = {}
        self._accounts: dict[tuple[str, str, str], tuple[str, str, str, str]] = {}
        self._open: dict[str, dict[str, Any]] = {}
        self._closed: set[str] = set()
        self._keys: set[tuple[str, str]] = set()
        self._refused: set[str] = set()
        self._releases: dict[str, _Release] = {}
        self._units: dict[tuple[str, str], set[str]] = {}
        self._by_unit = False
        """Whether units had an account so far: from then on every release about units is charged to it."""

    def step(self, row: dict[str, Any]) -> list[Total]:
        """Check one row against those before and return the running totals that it leaves behind.

        Raises:
            Inconsistent: when it doesn't follow.
        """
        if row["schema_version"] != SCHEMA_VERSION:
            raise Inconsistent(f"schema version {row['schema_version']} is not known to this code")
        kind = row["kind"]
        if kind == "release":
            return self._release(row)
        if row["charges"] or row["state"] not in ("internal", "recorded"):
            raise Inconsistent(f"a row of kind {kind} spends or pretends to be a release")
        if row["idempotency_key"] is not None:
            self._new_key(row)
        if kind == "budget-change":
            policy = Policy.parse(row["details"]["policy"])
            if row["policy_digest"] != policy.digest:
                raise Inconsistent("the policy doesn't have its digest")
            if row["details"]["previous_policy_digest"] != self._policy_digest:
                raise Inconsistent("the policy before it was another one")
            if self._policy is not None:
                self._approved(row, "policy", policy.digest, {"name": policy.name})
            self._policy, self._policy_digest, self._caps = policy, row["policy_digest"], {}
        if kind == "refusal":
            self._refusal(row)
        if kind == "recovery":
            self._recovery(row)
        return []

    def _approved(self, row: dict[str, Any], subject: Subject, digest: str, terms: dict[str, str]) -> None:
        """The signatures that a row keeps are as many as the policy in force demanded, and good."""
        assert self._policy is not None
        rule = self._policy.approvals
        names = approvers(
            from_row(row["details"]),
            rule,
            subject=subject,
            digest=digest,
            terms=terms,
            requester=row["requester"],
            at=datetime.fromisoformat(row["recorded_at"]),
        )
        if list(names) != list(row["approvals"]) or len(names) < rule.minimum:
            raise Inconsistent("its approvals aren't those that were signed, or too few")

    def _refusal(self, row: dict[str, Any]) -> None:
        (decision,) = from_row(row["details"])
        if self._policy is None or decision.decision != "refuse":
            raise Inconsistent("a refusal that nobody signed")
        signer(
            decision,
            self._policy.approvals,
            subject="release",
            digest=row["idempotency_key"],
            terms=decision.terms,
            requester=row["requester"],
            at=datetime.fromisoformat(row["recorded_at"]),
        )
        self._refused.add(decision.terms.get("idempotency_key", ""))

    def _recovery(self, row: dict[str, Any]) -> None:
        content = row["details"]["recovery"]
        policy = Policy.parse(content["policy"])
        names = approvers(
            from_row(row["details"]),
            policy.approvals,
            subject="recovery",
            digest=row["idempotency_key"],
            terms=recovery_terms(content),
            requester=row["requester"],
            at=datetime.fromisoformat(row["recorded_at"]),
        )
        if list(names) != list(row["approvals"]) or len(names) < max(1, policy.approvals.minimum):
            raise Inconsistent("a recovery that too few have signed")

    def _new_key(self, row: dict[str, Any]) -> None:
        key = (row["kind"], row["idempotency_key"])
        if key in self._keys:
            raise Inconsistent("its idempotency key was used before")
        self._keys.add(key)

    def _release(self, row: dict[str, Any]) -> list[Total]:
        release_id, state = row["release_id"], row["state"]
        before = self._open.get(release_id)
        if state == "reserved":
            if before is not None or release_id in self._closed:
                raise Inconsistent(f"release {release_id} is reserved twice")
            self._new_key(row)
            plan_digest = row["details"].get("plan_digest", "")
            # Before plans named their ledger the same key might be planned again under another digest.
            if ("refusal", plan_digest) in self._keys or (
                "ledger" in row["details"] and row["idempotency_key"] in self._refused
            ):
                raise Inconsistent(f"release {release_id} was refused before")
            totals = self._charge(row, Decimal(row["epsilon"]), row["delta"])
            self._approved(row, "release", plan_digest, signed_terms(row))
            self._open[release_id] = row
            return totals
        if before is None:
            raise Inconsistent(f"release {release_id} is {state} without being open")
        if before["state"] not in _MAY_FOLLOW.get(state, ()):
            raise Inconsistent(f"release {release_id} went from {before['state']} to {state}")
        if _FIXED(row) != _FIXED(before) or _signed(row) != _signed(before):
            raise Inconsistent(f"release {release_id}: a field changed that may not")
        surplus = _growth(row, before, "epsilon")
        _growth(row, before, "sensitivity")
        for name in _CHANGING:
            if before[name] is not None and row[name] != before[name]:
                raise Inconsistent(f"release {release_id}: {name} changed")
        if (row["draw_digest"] is None and state != "burned") or (
            row["bundle_digest"] is None and state == "committed"
        ):
            raise Inconsistent(f"release {release_id} is {state} without a digest")
        if surplus and state != "drawn":
            raise Inconsistent(f"release {release_id}: its cost grew when it was {state}")
        if state in ("committed", "burned"):
            del self._open[release_id]
            self._closed.add(release_id)
        else:
            self._open[release_id] = row
        if surplus:
            return self._charge(row, surplus, None)
        if row["charges"]:
            raise Inconsistent(f"release {release_id}: charged though its cost didn't grow")
        return []

    def _charge(self, row: dict[str, Any], epsilon: Decimal, delta: str | None) -> list[Total]:
        if self._policy is None or row["policy_digest"] != self._policy_digest:
            raise Inconsistent("the policy that it was checked against wasn't in force")
        population, kind, sequence = row["population"], row["guarantee_kind"], row["sequence"]
        charges = row["charges"]
        asked = Decimal(delta) if kind == "formal" and delta is not None else amounts.ZERO_DELTA
        self._by_unit = by_unit = self._by_unit or any(charge["cohort"] == ALL_COHORTS for charge in charges)
        this, shared, before_it = self._sharing(row, epsilon, asked)
        own = this.own(units=by_unit)
        others = sorted(this.accounts - set(own))
        if [(charge.get("population"), charge["cohort"]) for charge in charges] != [
            *((None, cohort) for _, cohort in own),
            *others,
        ]:
            raise Inconsistent("the accounts charged aren't those of its cohorts, and of releases that share records")
        totals: list[Total] = []
        for charge in charges:
            relation, unit = charge["neighbouring_relation"], charge["privacy_unit"]
            named = (charge.get("population") or population, charge["cohort"])
            key = (*named, kind)
            if unit != this.unit:
                raise Inconsistent("charged as if its claim protected another unit")
            self._one_unit(named[0], kind, unit, by_unit=by_unit)
            cost = _in_terms_of(relation, this.relation, epsilon, asked)
            taken = [before for before in shared if named in own and named not in before.accounts]
            if named[1] == ALL_COHORTS and key not in self._accounts:
                taken += self._counted_in(named[0], kind, known=taken, but=this)
                if before_it is not None:
                    taken.append(before_it)
            for before in taken:
                more = _in_terms_of(relation, before.relation, before.epsilon, before.delta)
                cost = (cost[0] + more[0], cost[1] + more[1])
                if before.unit != unit:
                    raise Inconsistent("charged beside a release that protects another unit")
                before.accounts.add(named)
            account = self._accounts.get(key)
            spent = account or (amounts.text(amounts.ZERO_EPSILON), _NO_DELTA, relation, unit)
            if (charge["epsilon_before"], charge["delta_before"], relation, unit) != spent:
                raise Inconsistent(f"account {named[0]}/{named[1]} ({kind}): the sum before is wrong")
            after = (Decimal(charge["epsilon_after"]), Decimal(charge["delta_after"]))
            if (Decimal(charge["epsilon"]), Decimal(charge["delta"])) != cost or (
                Decimal(charge["epsilon_before"]) + cost[0],
                Decimal(charge["delta_before"]) + cost[1],
            ) != after:
                raise Inconsistent(f"account {named[0]}/{named[1]} ({kind}): the sum doesn't add up")
            cap_epsilon, cap_delta = self._cap(key)
            if after[0] > cap_epsilon or (cap_delta is not None and after[1] > cap_delta):
                raise Inconsistent(f"account {named[0]}/{named[1]} ({kind}): the cap is exceeded")
            self._accounts[key] = (charge["epsilon_after"], charge["delta_after"], relation, unit)
            totals.append(
                (*key, sequence, relation, unit, charge["epsilon_after"], charge["delta_after"])
            )  # fmt: skip
        this.accounts |= set(own)
        return totals

    def _one_unit(self, population: str, kind: str, unit: str, *, by_unit: bool) -> None:
        """Since units have an account, a population's releases all protect the same."""
        units = self._units.setdefault((population, kind), set())
        if by_unit and units - {unit}:
            raise Inconsistent(f"{population} ({kind}): charged beside releases that protect another unit")
        units.add(unit)

    def _counted_in(self, population: str, kind: str, *, known: list[_Release], but: _Release) -> list[_Release]:
        """Further releases that count in any account of a population."""
        return [
            one
            for one in self._releases.values()
            if one.kind == kind
            and one is not but
            and not any(one is other for other in known)
            and any(account[0] == population for account in one.accounts)
        ]

    def _sharing(
        self, row: dict[str, Any], epsilon: Decimal, delta: Decimal
    ) -> tuple[_Release, list[_Release], _Release | None]:
        """A release with all accounts that it counts in, and, as it is reserved, those that it shares records with.

        Then, as more of it is charged, what it cost so far.
        """
        release_id = row["release_id"]
        known = self._releases.get(release_id)
        if known is not None:
            so_far = replace(known)
            known.epsilon += epsilon
            return known, [], so_far
        relation, unit, kind = row["neighbouring_relation"], row["privacy_unit"], row["guarantee_kind"]
        shared: list[_Release] = []
        for name in row["details"].get("records", {}).get("overlap", ()):
            before = self._releases.get(name)
            if before is None or before.kind != kind:
                raise Inconsistent("it names a release that it shares records with, and there is none")
            shared.append(before)
        population, cohorts = row["population"], row["cohorts"]
        this = self._releases[release_id] = _Release(population, cohorts, kind, relation, unit, epsilon, delta, set())
        for one in (this, *shared):
            this.accounts |= set(one.own(units=self._by_unit))
        return this, shared, None

    def _cap(self, key: tuple[str, str, str]) -> tuple[Decimal, Decimal | None]:
        if key not in self._caps:
            kind = key[2]
            cap = None
            if self._policy is not None and (kind == "formal" or kind == "asymptotic-local"):
                cap = self._policy.cap(key[0], key[1], kind)
            if cap is None:
                raise Inconsistent(f"account {key[0]}/{key[1]} ({kind}): the policy has no cap for it")
            self._caps[key] = (cap.epsilon, cap.delta)
        return self._caps[key]


def _in_terms_of(relation: str, claimed: str, epsilon: Decimal, delta: Decimal) -> tuple[Decimal, Decimal]:
    if relation == claimed:
        return epsilon, delta
    if relation != "replace-one":
        raise Inconsistent("charged under a relation that the claim says nothing about")
    doubled = amounts.as_replace_one(epsilon, delta)
    return doubled[0], doubled[1] or amounts.ZERO_DELTA


def _growth(row: dict[str, Any], before: dict[str, Any], name: str) -> Decimal:
    if row[name] == before[name]:
        return amounts.ZERO_EPSILON
    if row[name] is None or (before[name] is not None and Decimal(row[name]) < Decimal(before[name])):
        raise Inconsistent(f"{name} fell")
    return Decimal(row[name]) - Decimal(before[name] or 0)
