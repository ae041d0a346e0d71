"""The rows' meaning, replayed from the first row on: states, budgets and policies must follow from each other."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from operator import itemgetter
from typing import Any

from storage.ledger import amounts
from storage.ledger.content import TERMS
from storage.ledger.decisions import Subject, approvers, from_row, signer
from storage.ledger.models import SCHEMA_VERSION
from storage.ledger.policy import Policy

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


def _signed(row: dict[str, Any]) -> tuple[Any, Any]:
    return row["details"].get("plan_digest"), row["details"].get("decisions")


Total = tuple[str, str, str, int, str, str, str | None, str | None]
"""A row of the spend table: account, sequence, relation, unit, epsilon and delta as text."""


class Inconsistent(Exception):
    """A row doesn't follow from the rows before it."""


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
            if ("refusal", plan_digest) in self._keys:
                raise Inconsistent(f"release {release_id} was refused before")
            totals = self._charge(row, Decimal(row["epsilon"]), row["delta"])
            self._approved(row, "release", plan_digest, {name: row[name] for name in TERMS})
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
        if [charge["cohort"] for charge in charges] != row["cohorts"]:
            raise Inconsistent("the accounts charged aren't those of its cohorts")
        asked = Decimal(delta) if kind == "formal" and delta is not None else amounts.ZERO_DELTA
        doubled: tuple[Decimal, Decimal | None] | None = None
        totals: list[Total] = []
        for charge in charges:
            relation, unit = charge["neighbouring_relation"], charge["privacy_unit"]
            cost: tuple[Decimal, Decimal | None] = (epsilon, asked)
            if relation != row["neighbouring_relation"]:
                if relation != "replace-one":
                    raise Inconsistent("charged under a relation that the claim says nothing about")
                doubled = doubled or amounts.as_replace_one(epsilon, asked)
                cost = doubled
            key = (population, charge["cohort"], kind)
            account = self._accounts.get(key)
            spent = account or (amounts.text(amounts.ZERO_EPSILON), _NO_DELTA, relation, unit)
            if (charge["epsilon_before"], charge["delta_before"], relation, unit) != spent:
                raise Inconsistent(f"account {population}/{charge['cohort']} ({kind}): the sum before is wrong")
            after = (Decimal(charge["epsilon_after"]), Decimal(charge["delta_after"]))
            if (Decimal(charge["epsilon"]), Decimal(charge["delta"])) != cost or (
                Decimal(charge["epsilon_before"]) + cost[0],
                Decimal(charge["delta_before"]) + (cost[1] or 0),
            ) != after:
                raise Inconsistent(f"account {population}/{charge['cohort']} ({kind}): the sum doesn't add up")
            cap_epsilon, cap_delta = self._cap(key)
            if after[0] > cap_epsilon or (cap_delta is not None and after[1] > cap_delta):
                raise Inconsistent(f"account {population}/{charge['cohort']} ({kind}): the cap is exceeded")
            self._accounts[key] = (charge["epsilon_after"], charge["delta_after"], relation, unit)
            totals.append(
                (*key, sequence, relation, unit, charge["epsilon_after"], charge["delta_after"])
            )  # fmt: skip
        return totals

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


def _growth(row: dict[str, Any], before: dict[str, Any], name: str) -> Decimal:
    if row[name] == before[name]:
        return amounts.ZERO_EPSILON
    if row[name] is None or (before[name] is not None and Decimal(row[name]) < Decimal(before[name])):
        raise Inconsistent(f"{name} fell")
    return Decimal(row[name]) - Decimal(before[name] or 0)
