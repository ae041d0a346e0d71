"""The ledger's state: the fold of its rows, one pure function that every reader and writer uses.

A row counts as what it is worth, not because it is in the chain. A release's rows, handovers and revocations carry the
signature of a releasing worker's key, over their place in the chain too; approvals, refusals, changes of a policy and
recoveries those of the persons whose keys the policy in force lists. What an account is charged follows from the events
of the releases that it counts, and is never read from a row. A row that does not follow from those before is named in
`State.bad` and has no effect, except that a well signed release is charged in any case and may not be drawn. Damage to
the chain itself stops everything.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from mechanisms.privacy.events import GuaranteeKind
from storage.errors import InputError, StorageError
from storage.ledger import amounts, chain
from storage.ledger.budget import Account, Cost, accounts_of, charge_account
from storage.ledger.chain import Entry
from storage.ledger.composition import Loss
from storage.ledger.content import policy_terms, recovery_terms, signed_terms
from storage.ledger.decisions import Matter, Subject, approvers, from_row, signer
from storage.ledger.heads import key_id, verify_bytes
from storage.ledger.models import GENESIS, SCHEMA_VERSION, SIGNED, Charge, Mark, Row
from storage.ledger.policy import DEFAULT_POLICY, Policy

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

_MAY_FOLLOW = {"drawn": ("reserved",), "committed": ("drawn",), "burned": ("reserved", "drawn")}
_CHANGING = {
    "sequence", "previous_hash", "hash", "recorded_at", "state", "charges", "draw_digest", "bundle_digest", "epsilon",
    "sensitivity", "event", "epsilon_add_remove", "reason", "cause", "policy_digest", "signer", "signature",
}  # fmt: skip
"""Fields in which a release's rows may differ; each has a rule of its own below."""

_MEASURED = {"sensitivity": None, "bound": None}
"""Of an event, what a draw may measure larger than planned."""

AccountKey = tuple[str, str, GuaranteeKind]


class Inconsistent(Exception):
    """A row does not follow from the rows before it."""


class BadRow(NamedTuple):
    """A row that has no effect, or that may not be drawn, and why."""

    sequence: int
    problem: str
    void: bool = True
    """It has no effect; otherwise it is a release that is charged and may not be drawn."""


@dataclass
class Release:
    """One release: its rows, what it costs, and the accounts (population, cohort) that count it."""

    reserved: Row
    row: Row
    """The newest."""
    cost: Cost
    accounts: set[tuple[str, str]]
    problem: str = ""
    """Why it may not be drawn."""
    revoked: Row | None = None

    @property
    def kind(self) -> GuaranteeKind:
        return self.row.guarantee_kind

    @property
    def own_accounts(self) -> list[tuple[str, str]]:
        return accounts_of(str(self.row.population), self.row.cohorts, self.row.privacy_unit)


@dataclass
class State:
    """What a ledger says after some of its rows."""

    sequence: int = 0
    hash: str = GENESIS
    ledger: str | None = None
    """Hash of the first row."""
    policy: Policy | None = None
    policy_row: Row | None = None
    releases: dict[str, Release] = field(default_factory=dict)
    accounts: dict[AccountKey, Account] = field(default_factory=dict)
    refusals: dict[str, Row] = field(default_factory=dict)
    """By the idempotency key of the plan."""
    recovery: Row | None = None
    """The newest."""
    keys: dict[tuple[str, str], Row] = field(default_factory=dict)
    """The first row of each kind and idempotency key."""
    charges: list[tuple[Row, tuple[Charge, ...]]] = field(default_factory=list)
    bad: list[BadRow] = field(default_factory=list)
    broken: str = ""
    """Damage to the chain: what rows mean from there on is not known."""

    # -- taking rows ---------------------------------------------------------------------------------------

    def take(self, entry: Entry) -> Row | None:
        """Takes the next row as it is stored; returns it where it could be read."""
        if self.broken:
            return None
        expected, row, problem = self.sequence + 1, None, ""
        try:
            if entry.sequence != expected:
                missing = expected if entry.sequence == expected + 1 else f"{expected} to {entry.sequence - 1}"
                raise Inconsistent(f"row {missing} missing: row {entry.sequence} follows row {self.sequence}")
            row, problem = _read(entry, self.hash)
        except Inconsistent as error:
            self.broken = str(error)
            self.bad.append(BadRow(min(entry.sequence, expected), self.broken))
            return None
        self.sequence, self.hash = entry.sequence, entry.hash
        self.ledger = self.ledger or entry.hash
        if row is not None and not problem:
            problem = self._step(row)
        if problem:
            counted = row is not None and row.kind == "release" and self.counts(row)
            self.bad.append(BadRow(entry.sequence, f"row {entry.sequence}: {problem}", void=not counted))
        return row

    def _step(self, row: Row) -> str:
        """Takes a row whose place in the chain is sound; returns what is wrong with it."""
        try:
            if row.schema_version != SCHEMA_VERSION:
                raise Inconsistent(f"schema version {row.schema_version} is not known to this code")
            if row.kind in SIGNED:
                self._require_signed(row)
            if row.kind == "release":
                return self._release(row)
            if row.charges or row.state not in ("internal", "recorded"):
                raise Inconsistent(f"a row of kind {row.kind} spends or pretends to be a release")
            if row.idempotency_key is not None and (row.kind, row.idempotency_key) in self.keys:
                raise Inconsistent("its idempotency key was used before")
            steps = {
                "budget-change": self._policy_change, "refusal": self._refusal, "recovery": self._recovery,
                "revocation": self._revocation,
            }  # fmt: skip
            if row.kind in steps:
                steps[row.kind](row)
            if row.idempotency_key is not None:
                self.keys[row.kind, row.idempotency_key] = row
        except (Inconsistent, InputError) as error:
            return str(error)
        except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError):
            return "a field is missing or of another type"
        return ""

    def _require_signed(self, row: Row) -> None:
        # guard: a row of a release is signed by a releasing worker
        if row.signer is None or not verify_bytes(chain.signed_bytes(row), row.signature or "", _key(row.signer)):
            raise Inconsistent(f"a row of kind {row.kind} without the signature of a releasing worker")
        listed = self.in_force.release_key_ids()
        reserved = self.releases.get(row.release_id or "")
        if listed and key_id(_key(row.signer)) not in listed:
            raise Inconsistent("signed by a key that the policy does not list among its `release_keys`")
        foreign = reserved is not None and row.signer != reserved.reserved.signer
        if not listed and row.kind == "release" and foreign:
            raise Inconsistent("signed by another key than the release's reservation, and the policy lists none")

    def _approved(self, row: Row, policy: Policy, matter: Matter, *, least: int) -> None:
        """Requires that the signatures that a row keeps are as many as the policy demanded, and good."""
        names = approvers(from_row(row.details), policy.approvals, matter, at=datetime.fromisoformat(row.recorded_at))
        # guard: approvals in a row are signatures
        if names != row.approvals or len(names) < least:
            raise Inconsistent("its approvals aren't those that were signed, or too few")

    def _matter(self, row: Row, subject: Subject, digest: str, terms: Mapping[str, str]) -> Matter:
        return Matter(subject, digest, terms, row.requester)

    def _policy_change(self, row: Row) -> None:
        policy = Policy.parse(row.details["policy"])
        if row.policy_digest != policy.digest:
            raise Inconsistent("the policy doesn't have its digest")
        before = None if self.policy_row is None else self.policy_row.policy_digest
        if row.details["previous_policy_digest"] != before:
            raise Inconsistent("the policy before it was another one")
        if self.policy is not None:
            terms = policy_terms(policy.name, self.policy_mark, requester=str(row.requester), reason=row.reason)
            matter = self._matter(row, "policy", policy.digest, terms)
            self._approved(row, self.policy, matter, least=self.policy.approvals.minimum)
        self.policy, self.policy_row = policy, row

    def _refusal(self, row: Row) -> None:
        (decision,) = from_row(row.details)
        if decision.decision != "refuse":
            raise Inconsistent("a refusal without a signature")
        matter = self._matter(row, "release", row.idempotency_key or "", decision.terms)
        signer(decision, self.in_force.approvals, matter, at=datetime.fromisoformat(row.recorded_at))
        self.refusals.setdefault(decision.terms.get("idempotency_key", ""), row)

    def _recovery(self, row: Row) -> None:
        content = row.details["recovery"]
        policy = Policy.parse(content["policy"])
        matter = self._matter(row, "recovery", row.idempotency_key or "", recovery_terms(content))
        self._approved(row, policy, matter, least=max(1, policy.approvals.minimum))
        self.recovery = row

    def _revocation(self, row: Row) -> None:
        release = self.releases.get(row.release_id or "")
        if release is None:
            raise Inconsistent("it revokes a release that does not exist")
        release.revoked = release.revoked or row

    # -- releases ------------------------------------------------------------------------------------------

    def _release(self, row: Row) -> str:
        if row.state == "reserved":
            return self._reserved(row)
        release = self.releases.get(row.release_id or "")
        if release is None or release.row.state not in _MAY_FOLLOW.get(row.state, ()):
            was = "nothing" if release is None else release.row.state
            raise Inconsistent(f"release {row.release_id} went from {was} to {row.state}")
        before = release.row
        if any(getattr(row, name) != getattr(before, name) for name in Row.model_fields if name not in _CHANGING):
            raise Inconsistent(f"release {row.release_id}: a field changed that may not")
        if {**(row.event or {}), **_MEASURED} != {**(before.event or {}), **_MEASURED}:
            raise Inconsistent(f"release {row.release_id}: its event changed")
        grown = _growth(row, before, "epsilon")
        _growth(row, before, "sensitivity")
        for name in ("draw_digest", "bundle_digest"):
            if getattr(before, name) is not None and getattr(row, name) != getattr(before, name):
                raise Inconsistent(f"release {row.release_id}: {name} changed")
        if (row.draw_digest is None and row.state != "burned") or (
            row.bundle_digest is None and row.state == "committed"
        ):
            raise Inconsistent(f"release {row.release_id} is {row.state} without a digest")
        if grown and (row.state != "drawn" or row.guarantee_kind == "formal"):
            raise Inconsistent(f"release {row.release_id}: its cost grew when it was {row.state}")
        charges, problem = self.surplus(release, grown) if grown else ((), None)
        self._charge(row, charges, Loss(epsilon=row.epsilon or amounts.ZERO_EPSILON))
        release.row = row
        return self._compare(row, charges, problem)

    def _reserved(self, row: Row) -> str:
        release_id, key = str(row.release_id), str(row.idempotency_key)
        if release_id in self.releases or ("release", key) in self.keys:
            raise Inconsistent(f"release {release_id} is reserved twice")
        if row.guarantee_kind not in ("formal", "asymptotic-local") or row.epsilon is None or row.epsilon <= 0:
            raise Inconsistent("a release without a cost")
        shared = row.details.get("records", {}).get("overlap", ())
        unknown = [
            name for name in shared if name not in self.releases or self.releases[name].kind != row.guarantee_kind
        ]
        if unknown:
            raise Inconsistent("it names a release with the same records that does not exist")
        problems = []
        if key in self.refusals:
            problems.append(f"release {release_id} was refused before")
        try:
            matter = self._matter(row, "release", row.details.get("plan_digest", ""), signed_terms(row.as_json()))
            self._approved(row, self.in_force, matter, least=self.in_force.approvals.minimum)
        except (Inconsistent, InputError) as error:
            problems.append(str(error))
        release = Release(row, row, Cost.of(vars(row)), set())
        charges, problem = self.price(release, [self.releases[name] for name in shared])
        self._count(release, [self.releases[name] for name in shared], charges)
        self._charge(row, charges, None)
        self.releases[release_id], self.keys["release", key] = release, row
        problems.append(self._compare(row, charges, problem))
        release.problem = next((one for one in problems if one), "")
        return release.problem

    def _compare(self, row: Row, charges: tuple[Charge, ...], problem: str | None) -> str:
        # guard: the fold takes losses from events
        if row.charges != charges:
            return "its charges are not those of the events"
        if charges and row.policy_digest != (self.policy_row and self.policy_row.policy_digest):
            return "the policy that it was checked against wasn't in force"
        return problem or ""

    def _charge(self, row: Row, charges: tuple[Charge, ...], last: Loss | None) -> None:
        for charge in charges:
            key = self._key(row.guarantee_kind, charge, str(row.population))
            account = self.accounts.get(key) or Account(*key)
            self.accounts[key] = account.after(charge, sequence=row.sequence, last=last or charge.loss)
        if charges:
            self.charges.append((row, charges))

    @staticmethod
    def _key(kind: GuaranteeKind, charge: Charge, population: str) -> AccountKey:
        return charge.population or population, charge.cohort, kind

    def _count(self, release: Release, shared: Sequence[Release], charges: Sequence[Charge]) -> None:
        own = release.own_accounts
        population = str(release.row.population)
        release.accounts |= {(charge.population or population, charge.cohort) for charge in charges}
        for earlier in shared:
            earlier.accounts |= set(own)

    def price(self, release: Release, shared: Sequence[Release]) -> tuple[tuple[Charge, ...], str | None]:
        """Returns what a release costs each account: its own, and those of earlier releases of the same records.

        Its own accounts take what those releases cost, too, where they were not charged for it. So the first account
        that any record or unit was charged to has all that was ever spent on it.

        Args:
            release: not among the state's yet; only its row's plan counts.
            shared: earlier releases that share records or units with it.

        Returns the charges, and why the budget refuses them, if so.
        """
        own = release.own_accounts
        # guard: the accounts of earlier releases are charged
        others = sorted({name for earlier in shared for name in earlier.own_accounts} - set(own))
        charges, problems = [], [self._unit_conflict([*own, *others], release)]
        for name in [*own, *others]:
            taken = [one.cost for one in shared if name in own and name not in one.accounts]
            charge, problem = self._charge_to(name, release.kind, [release.cost, *taken], own=name in own)
            charges.append(charge)
            problems.append(problem)
        return tuple(charges), next((one for one in problems if one), None)

    def surplus(self, release: Release, epsilon: Decimal) -> tuple[tuple[Charge, ...], str | None]:
        """Returns what it costs each account that counts a release, that its draw cost more than planned."""
        cost = Cost(release.cost.relation, release.cost.privacy_unit, epsilon, amounts.ZERO_DELTA)
        own = release.own_accounts
        priced = [
            self._charge_to(name, release.kind, [cost], own=name in own)
            for name in [*own, *sorted(release.accounts - set(own))]
        ]
        return tuple(charge for charge, _ in priced), next((problem for _, problem in priced if problem), None)

    def _charge_to(
        self, name: tuple[str, str], kind: GuaranteeKind, costs: Sequence[Cost], *, own: bool
    ) -> tuple[Charge, str | None]:
        account = self.accounts.get((*name, kind)) or Account(*name, kind)
        policy = self.in_force
        return charge_account(account, policy.cap(*name, kind), costs, policy=policy.name, own=own)

    def _unit_conflict(self, names: Iterable[tuple[str, str]], release: Release) -> str | None:
        for population in dict.fromkeys(population for population, _ in names):
            # guard: claims about records and units are not added
            other = self.other_unit(population, release.kind, release.cost.privacy_unit)
            if other is not None:
                return (
                    f"{population} ({release.kind}): its accounts count each {other}, the claim protects a "
                    f"{release.cost.privacy_unit}; these can't be added, since how many records of the one belong to "
                    "the other is not bounded"
                )
        return None

    # -- questions -----------------------------------------------------------------------------------------

    @property
    def in_force(self) -> Policy:
        return self.policy or DEFAULT_POLICY

    @property
    def policy_mark(self) -> Mark:
        """The row of the policy in force, which a signature on the next one names."""
        if self.policy_row is None or self.ledger is None:
            raise InputError("ledger: it has no policy yet. The first one needs no signature")
        return Mark(ledger=self.ledger, sequence=self.policy_row.sequence, hash=self.policy_row.hash)

    @property
    def mark(self) -> Mark | None:
        """Which ledger this is and how far it went; None of an empty one."""
        return None if self.ledger is None else Mark(ledger=self.ledger, sequence=self.sequence, hash=self.hash)

    def other_unit(self, population: str, kind: GuaranteeKind, unit: str) -> str | None:
        """Returns another unit that some account of a population protects, None where there is none."""
        for (name, _, of), account in self.accounts.items():
            if (name, of) == (population, kind) and account.privacy_unit not in (None, unit):
                return account.privacy_unit
        return None

    def release(self, release_id: str) -> Release:
        if release_id not in self.releases:
            raise InputError(f"release {release_id}: not in this ledger")
        return self.releases[release_id]

    def release_of_key(self, key: str) -> Release | None:
        row = self.keys.get(("release", key))
        return None if row is None else self.releases[str(row.release_id)]

    def counts(self, row: Row) -> bool:
        """Tells whether a row of a release is one that has an effect."""
        release = self.releases.get(row.release_id or "")
        return release is not None and row.sequence in (release.row.sequence, release.reserved.sequence)

    @property
    def void(self) -> frozenset[int]:
        """The sequences of rows without effect."""
        return frozenset(bad.sequence for bad in self.bad if bad.void)

    def require_sound(self) -> None:
        """Refuses a ledger whose chain is damaged."""
        if self.broken:
            raise StorageError(f"ledger: {self.broken}. Nothing is drawn or recorded. Run `autocoder ledger verify`")


def fold(entries: Iterable[Entry], state: State | None = None) -> State:
    """Returns the state after more rows; without one, after these alone."""
    state = state or State()
    for entry in entries:
        state.take(entry)
    return state


def policy_after(rows: Iterable[Row], ledger: str) -> Policy | None:
    """Returns the policy in force after the changes of it alone, without those that were not signed as required."""
    state = State(ledger=ledger)
    for row in rows:
        with suppress(Inconsistent, InputError, KeyError, TypeError):
            state._policy_change(row)
    return state.policy


def _growth(row: Row, before: Row, name: str) -> Decimal:
    now, then = getattr(row, name), getattr(before, name)
    if now == then:
        return amounts.ZERO_EPSILON
    if now is None or (then is not None and now < then):
        raise Inconsistent(f"{name} fell")
    return now - (then or 0)


@lru_cache(maxsize=64)
def _key(encoded: str) -> EllipticCurvePublicKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    try:
        key = load_der_public_key(base64.b64decode(encoded, validate=True))
    except (ValueError, UnsupportedAlgorithm):
        raise Inconsistent("its signer is not a public key") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise Inconsistent("its signer is not a P-256 key")
    return key


def _read(entry: Entry, previous: str) -> tuple[Row | None, str]:
    """Reads a stored row; returns it, or why it has no meaning.

    Raises:
        Inconsistent: the chain is damaged here.
    """
    sequence = entry.sequence
    if chain.digest(entry.body) != entry.hash:
        raise Inconsistent(f"row {sequence} was edited: its content doesn't have its hash")
    try:
        content: dict[str, Any] = json.loads(entry.body, parse_constant=_no_constant)
        linked = content["sequence"], content["previous_hash"]
    except (ValueError, RecursionError):  # numbers too long or nested too deep for us; the next row names its hash
        return None, "its body cannot be read"
    except (KeyError, TypeError):
        raise Inconsistent(f"row {sequence}: its body is not a row") from None
    if linked[0] != sequence:
        raise Inconsistent(f"row {sequence} was moved: it was written as row {linked[0]}")
    if linked[1] != previous:
        culprit = max(sequence - 1, 1)
        raise Inconsistent(f"row {culprit} was rewritten: row {sequence} was linked to another row {sequence - 1}")
    try:
        if chain.canonical(content) != entry.body:
            return None, "its body is not canonical JSON"
        return chain.parse(entry.body, entry.hash), ""
    except StorageError:
        return None, "its body is not a row of this version"


def _no_constant(text: str) -> None:
    raise ValueError("not JSON")
