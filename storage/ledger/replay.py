"""The rows' meaning, replayed from the first row on: states, budgets and policies must follow from each other."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from operator import itemgetter
from typing import Any

from storage.ledger import amounts, chain, composition
from storage.ledger.budget import accounts_of
from storage.ledger.composition import Loss
from storage.ledger.content import policy_terms, recovery_terms, signed_terms
from storage.ledger.decisions import Matter, Subject, approvers, from_row, signer
from storage.ledger.models import SCHEMA_VERSION, Mark
from storage.ledger.policy import Cap, Policy

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
    """Holds what a release costs, and the accounts (population, cohort) that it counts in."""

    population: str
    cohorts: list[str]
    kind: str
    relation: str
    unit: str
    epsilon: Decimal
    delta: Decimal
    accounts: set[tuple[str, str]]
    event: dict[str, Any] | None
    records_per_unit: int

    def loss(self, relation: str) -> Loss:
        """Returns what its event costs an account that is kept in this relation."""
        return composition.loss_of(
            self.event, epsilon=self.epsilon, delta=self.delta, claimed=self.relation, relation=relation,
            records_per_unit=self.records_per_unit,
        )  # fmt: skip

    def own_accounts(self) -> list[tuple[str, str]]:
        """Return the accounts of its own name, that of its population's units among them."""
        return accounts_of(self.population, self.cohorts, self.unit)


class Replay:
    """The ledger's state after the rows so far. `step` takes the next one."""

    def __init__(self) -> None:
        self._policy: Policy | None = None
        self._policy_digest: str | None = None
        self._policy_mark: Mark | None = None
        self._ledger: str | None = None
        self._caps: dict[tuple[str, str, str], Cap] = {}
        self._accounts: dict[tuple[str, str, str], tuple[str, str, str, str]] = {}
        self._sums: dict[tuple[str, str, str], tuple[composition.Rule, Loss | None]] = {}
        self._open: dict[str, dict[str, Any]] = {}
        self._closed: set[str] = set()
        self._keys: set[tuple[str, str]] = set()
        self._refused: set[str] = set()
        self._releases: dict[str, _Release] = {}
        self._units: dict[tuple[str, str], str] = {}

    def step(self, row: dict[str, Any]) -> list[Total]:
        """Check one row against those before and return the running totals that it leaves behind."""
        if row["schema_version"] != SCHEMA_VERSION:
            raise Inconsistent(f"schema version {row['schema_version']} is not known to this code")
        kind = row["kind"]
        if self._ledger is None:
            self._ledger = chain.digest(chain.canonical(row))
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
                assert self._policy_mark is not None
                terms = policy_terms(policy.name, self._policy_mark, requester=row["requester"], reason=row["reason"])
                self._approved(row, "policy", policy.digest, terms)
            self._policy, self._policy_digest, self._caps = policy, row["policy_digest"], {}
            mark = {"ledger": self._ledger, "sequence": row["sequence"], "hash": chain.digest(chain.canonical(row))}
            self._policy_mark = Mark.model_validate(mark)
        if kind == "refusal":
            self._refusal(row)
        if kind == "recovery":
            self._recovery(row)
        return []

    def _approved(self, row: dict[str, Any], subject: Subject, digest: str, terms: dict[str, str]) -> None:
        """The signatures that a row keeps are as many as the policy in force demanded, and good."""
        assert self._policy is not None
        rule = self._policy.approvals
        matter = Matter(subject, digest, terms, row["requester"])
        names = approvers(from_row(row["details"]), rule, matter, at=datetime.fromisoformat(row["recorded_at"]))
        if list(names) != list(row["approvals"]) or len(names) < rule.minimum:
            raise Inconsistent("its approvals aren't those that were signed, or too few")

    def _refusal(self, row: dict[str, Any]) -> None:
        (decision,) = from_row(row["details"])
        if self._policy is None or decision.decision != "refuse":
            raise Inconsistent("a refusal without a signature")
        matter = Matter("release", row["idempotency_key"], decision.terms, row["requester"])
        signer(decision, self._policy.approvals, matter, at=datetime.fromisoformat(row["recorded_at"]))
        self._refused.add(decision.terms.get("idempotency_key", ""))

    def _recovery(self, row: dict[str, Any]) -> None:
        content = row["details"]["recovery"]
        policy = Policy.parse(content["policy"])
        matter = Matter("recovery", row["idempotency_key"], recovery_terms(content), row["requester"])
        at = datetime.fromisoformat(row["recorded_at"])
        names = approvers(from_row(row["details"]), policy.approvals, matter, at=at)
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
            if row["idempotency_key"] in self._refused:
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
        delta_cost = Decimal(delta) if kind == "formal" and delta is not None else amounts.ZERO_DELTA
        this, shared = self._sharing(row, epsilon, delta_cost)
        own_accounts = this.own_accounts()
        others = sorted(this.accounts - set(own_accounts))
        if [(charge["population"], charge["cohort"]) for charge in charges] != [
            *((None, cohort) for _, cohort in own_accounts),
            *others,
        ]:
            raise Inconsistent("the accounts charged aren't those of its cohorts, and of releases that share records")
        totals: list[Total] = []
        for charge in charges:
            relation, unit = charge["neighbouring_relation"], charge["privacy_unit"]
            named = (charge["population"] or population, charge["cohort"])
            key = (*named, kind)
            if unit != this.unit:
                raise Inconsistent("charged as if its claim protected another unit")
            self._one_unit(named[0], kind, unit)
            cost = _in_terms_of(relation, this.relation, epsilon, delta_cost)
            taken = [before for before in shared if named in own_accounts and named not in before.accounts]
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
            cap = self._cap(key)
            sums = Decimal(charge["epsilon_before"]) + cost[0], Decimal(charge["delta_before"]) + cost[1]
            sums = self._composed(key, charge, cap, [one.loss(relation) for one in (this, *taken)]) or sums
            if (Decimal(charge["epsilon"]), Decimal(charge["delta"])) != cost or sums != after:
                raise Inconsistent(f"account {named[0]}/{named[1]} ({kind}): the sum doesn't add up")
            # guard: the replay holds the cap
            if after[0] > cap.epsilon or (cap.delta is not None and after[1] > cap.delta):
                raise Inconsistent(f"account {named[0]}/{named[1]} ({kind}): the cap is exceeded")
            self._accounts[key] = (charge["epsilon_after"], charge["delta_after"], relation, unit)
            totals.append((*key, sequence, relation, unit, charge["epsilon_after"], charge["delta_after"]))
        this.accounts |= set(own_accounts)
        return totals

    def _composed(
        self, key: tuple[str, str, str], charge: dict[str, Any], cap: Cap, losses: list[Loss]
    ) -> tuple[Decimal, Decimal] | None:
        """Returns an account's epsilon and delta after a charge, from the events alone; None where claims add up."""
        before, spent = self._sums.get(key, (None, None))
        rule: composition.Rule = "basic"
        added = None
        if cap.delta is not None and not (before == "basic" and spent is None):
            added = losses[0]
            for loss in losses[1:]:
                added = added.plus(loss)
            after = added if spent is None else spent.plus(added)
            rule_in_force = "basic" if cap.composition == "basic" else before
            rule = composition.next_rule(rule_in_force, after, added, epsilon=cap.epsilon, delta=cap.delta)
            added, spent = (None, None) if rule == "basic" and spent is None else (added, after)
        self._sums[key] = rule, spent
        sums = {"loss": added, "spent": spent}
        if charge.get("composition") != rule or any(
            charge.get(name) != (value and value.model_dump(mode="json")) for name, value in sums.items()
        ):
            # guard: the replay takes losses from events
            raise Inconsistent(f"account {key[0]}/{key[1]} ({key[2]}): its losses are not those of the events")
        if spent is None or cap.delta is None:
            return None
        near = Decimal(charge["epsilon_after"])
        total = composition.total(spent, rule=rule, delta=cap.delta, near=near)
        return total, spent.delta if rule == "basic" else cap.delta

    def _one_unit(self, population: str, kind: str, unit: str) -> None:
        """Require that a population's releases all protect the same unit."""
        if self._units.setdefault((population, kind), unit) != unit:
            raise Inconsistent(f"{population} ({kind}): charged next to releases that protect another unit")

    def _sharing(self, row: dict[str, Any], epsilon: Decimal, delta: Decimal) -> tuple[_Release, list[_Release]]:
        """Return a release with all accounts that it counts in, and, as it is reserved, those that it overlaps."""
        release_id = row["release_id"]
        release = self._releases.get(release_id)
        if release is not None:
            release.epsilon += epsilon
            return release, []
        relation, unit, kind = row["neighbouring_relation"], row["privacy_unit"], row["guarantee_kind"]
        shared: list[_Release] = []
        for name in row["details"].get("records", {}).get("overlap", ()):
            before = self._releases.get(name)
            if before is None or before.kind != kind:
                raise Inconsistent("it names a release with the same records that does not exist")
            shared.append(before)
        population, cohorts = row["population"], row["cohorts"]
        this = self._releases[release_id] = _Release(
            population, cohorts, kind, relation, unit, epsilon, delta, set(), row["event"],
            row["max_records_per_unit"] or 1,
        )  # fmt: skip
        for one in (this, *shared):
            this.accounts |= set(one.own_accounts())
        return this, shared

    def _cap(self, key: tuple[str, str, str]) -> Cap:
        if key not in self._caps:
            kind = key[2]
            cap = None
            if self._policy is not None and (kind == "formal" or kind == "asymptotic-local"):
                cap = self._policy.cap(key[0], key[1], kind)
            if cap is None:
                raise Inconsistent(f"account {key[0]}/{key[1]} ({kind}): the policy has no cap for it")
            self._caps[key] = cap
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
