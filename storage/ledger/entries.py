"""The rows of the chain: an entry of its own type for each thing that happens, at its place.

    Begun
    PolicySet
    Reserved -> Drawn -> Committed, or Burned; then HandedOver, Revoked
    Refused, Blocked, Overridden

An entry holds what caused it, whole, and nothing is copied out of it. `ReleaseRow` is a release
after one of its rows, with all that was known of it then. `Evaluated` is a row of the measurements,
which are beside the chain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeVar, cast

from pydantic import BaseModel, Field

from mechanisms.privacy.events import Claim, GuaranteeKind
from storage.ledger.decisions import Decision
from storage.ledger.models import (
    SCHEMA_VERSION,
    Amount,
    Evaluation,
    Exact,
    ReleasePlan,
    Sha256,
)
from storage.ledger.policy import Policy

if TYPE_CHECKING:
    from storage.ledger.composition import EventJson


class Entry(BaseModel, frozen=True, extra="forbid"):
    """What happened; it counts by what it says, or by the signatures of persons in it."""

    kind: str

    @property
    def key(self) -> tuple[str, ...]:
        """What happens once only: an entry of the same key has no effect."""
        raise NotImplementedError

    @property
    def title(self) -> str:
        """For people."""
        raise NotImplementedError

    def as_json(self) -> dict[str, Any]:
        """Returns the entry as it is stored: amounts as fixed-point text, so that nothing is
        rounded on the way.
        """
        return self.model_dump(mode="json", by_alias=True)


class ReleaseEntry(Entry, frozen=True):
    """What happened to a release; it counts only with the signature of a releasing worker's key."""

    release_id: str

    @property
    def key(self) -> tuple[str, ...]:
        return (self.kind, self.release_id)

    @property
    def title(self) -> str:
        return self.release_id


class Begun(Entry, frozen=True):
    """The ledger begins."""

    kind: Literal["begun"] = "begun"
    requester: str

    @property
    def key(self) -> tuple[str, ...]:
        return (self.kind,)

    @property
    def title(self) -> str:
        return "first row"


class PolicySet(Entry, frozen=True):
    """A policy comes into force."""

    kind: Literal["policy"] = "policy"
    policy: Policy
    requester: str
    reason: str
    decisions: tuple[Decision, ...] = ()
    approvals: tuple[str, ...] = ()
    """Names of those who signed the decisions."""

    @property
    def title(self) -> str:
        return self.policy.name


class Overlap(BaseModel, frozen=True, extra="forbid"):
    """The set of a release's records, and the earlier releases that it shares some with."""

    set: Sha256
    releases: tuple[str, ...] = ()


class StatedAudit(BaseModel, frozen=True, extra="allow"):
    """What an audit measured beside a claim, as the statement repeats it."""

    line: str


class Reserved(ReleaseEntry, frozen=True):
    """A planned release is charged to its accounts."""

    kind: Literal["reserved"] = "reserved"
    plan: ReleasePlan
    """Its number of records is rounded as the policy says."""
    policy_digest: Sha256
    plan_digest: str | None = None
    """SHA-256 of everything that is released, which the decisions are about."""
    decisions: tuple[Decision, ...] = ()
    approvals: tuple[str, ...] = ()
    audit: StatedAudit | None = None
    records: Overlap | None = None


class Drawn(ReleaseEntry, frozen=True):
    """The one draw of a release, and what it costs as measured at the draw."""

    kind: Literal["drawn"] = "drawn"
    draw_digest: str
    epsilon: Amount | None = None
    sensitivity: Amount | None = None


class Committed(ReleaseEntry, frozen=True):
    """The bundle of a release stands."""

    kind: Literal["committed"] = "committed"
    bundle_digest: str


class Burned(ReleaseEntry, frozen=True):
    """A release is closed without a bundle."""

    kind: Literal["burned"] = "burned"
    reason: str
    cause: Literal["surplus-refused"] | None = None
    """Where the program acts on it."""
    draw_digest: str | None = None


class HandedOver(ReleaseEntry, frozen=True):
    """A partner got an archive of a committed release."""

    kind: Literal["handed-over"] = "handed-over"
    requester: str
    partner: str
    bundle_digest: str
    archive_sha256: Sha256
    archive_bytes: int = Field(ge=0)

    @property
    def key(self) -> tuple[str, ...]:
        return (self.kind, self.release_id, self.archive_sha256, self.partner)


class Revoked(ReleaseEntry, frozen=True):
    """A committed release must no longer be used."""

    kind: Literal["revoked"] = "revoked"
    requester: str
    reason: str
    bundle_digest: str


class Refused(Entry, frozen=True):
    """A person refused a plan, which can't be reserved any more."""

    kind: Literal["refused"] = "refused"
    decision: Decision
    by: str
    """The signer's name."""
    requester: str
    """Of the plan."""

    @property
    def key(self) -> tuple[str, ...]:
        return (self.kind, self.decision.digest)

    @property
    def title(self) -> str:
        return self.reason

    @property
    def reason(self) -> str:
        return f"{self.by} refused: {self.decision.reason or 'no reason given'}"


class AuditedEntry(Entry, frozen=True):
    """What an audit came to for a plan."""

    plan_digest: Sha256
    audit_row: int
    line: str
    """What the audit measured."""
    requester: str

    @property
    def key(self) -> tuple[str, ...]:
        return (self.kind, self.plan_digest, str(self.audit_row))


class Blocked(AuditedEntry, frozen=True):
    """The gate blocked a plan, whose claim an audit contradicts."""

    kind: Literal["blocked"] = "blocked"

    @property
    def title(self) -> str:
        return "release blocked: contradicted by an audit"


class Overridden(AuditedEntry, frozen=True):
    """A person accepts an audit that blocks a plan. The decision counts by its signature alone."""

    kind: Literal["overridden"] = "overridden"
    decision: Decision
    by: str

    @property
    def key(self) -> tuple[str, ...]:
        return (*super().key, self.decision.key_id)

    @property
    def title(self) -> str:
        return f"override by {self.by}: {self.decision.reason}"


Noted = Begun | HandedOver | Revoked | Blocked | Overridden
"""Entries that charge nothing and change no policy."""
AnyEntry = Annotated[
    Noted | Reserved | Drawn | Committed | Burned | PolicySet | Refused, Field(discriminator="kind")
]
UNSIGNED = ("begun", "policy", "refused", "blocked", "overridden")
"""Kinds of entries that no releasing worker signs."""

E_co = TypeVar("E_co", bound=Entry, covariant=True)


class Row(BaseModel, Generic[E_co], frozen=True, extra="forbid"):
    """An entry at its place in the chain."""

    sequence: int
    previous_hash: str
    recorded_at: str
    """UTC, ISO 8601, from the clock of the machine that wrote the row."""
    schema_version: int = SCHEMA_VERSION
    entry: E_co
    signer: str | None = None
    """Public key (Base64, DER) of the releasing worker."""
    signature: str | None = None
    """Base64, DER-encoded ECDSA on P-256 over the canonical JSON of every other field, the place in
    the chain too.
    """
    hash: str = Field(default="", exclude=True)
    """SHA-256 of the canonical JSON (RFC 8785) of every other field."""

    @property
    def release_id(self) -> str | None:
        return self.entry.release_id if isinstance(self.entry, ReleaseEntry) else None

    @property
    def title(self) -> str:
        return self.entry.title

    def as_json(self) -> dict[str, Any]:
        """Returns the row as plain data for other programs; amounts as fixed-point text."""
        place = self.model_dump(mode="json", exclude={"entry"})
        return place | {"hash": self.hash} | self.entry.as_json()


ChainRow = Row[AnyEntry]

State = Literal["reserved", "drawn", "committed", "burned"]


@dataclass(frozen=True)
class ReleaseRow:
    """A release after one of its rows, with all that was known of it then."""

    row: Row[ReleaseEntry]
    """The newest."""
    reserved: Reserved
    exact: Exact
    """What it costs: of what was planned and what was measured at the draw, the larger."""
    state: State = "reserved"
    draw_digest: str | None = None
    bundle_digest: str | None = None
    reason: str = ""
    cause: Literal["surplus-refused"] | None = None

    @staticmethod
    def of(row: Row[Reserved]) -> ReleaseRow:
        return ReleaseRow(row, row.entry, Exact.of(row.entry.plan.claim))

    def after(self, row: Row[ReleaseEntry], entry: Drawn | Committed | Burned) -> ReleaseRow:
        """Returns the release after a later row; of what was measured at the draw, the larger
        counts.
        """
        if isinstance(entry, Drawn):
            known = replace(self, exact=self._measured(entry), draw_digest=entry.draw_digest)
        elif isinstance(entry, Committed):
            known = replace(self, bundle_digest=entry.bundle_digest)
        else:
            digest = self.draw_digest or entry.draw_digest
            known = replace(self, draw_digest=digest, reason=entry.reason, cause=entry.cause)
        return replace(known, row=row, state=entry.kind)

    def _measured(self, drawn: Drawn) -> Exact:
        exact = self.exact
        larger: dict[str, Decimal] = {}
        if exact.epsilon is not None and drawn.epsilon is not None:
            larger["epsilon"] = max(drawn.epsilon, exact.epsilon)
        if drawn.sensitivity is not None and drawn.sensitivity > (exact.sensitivity or 0):
            larger["sensitivity"] = drawn.sensitivity
            if exact.epsilon_add_remove is not None:
                most = drawn.sensitivity * self.claim.max_records_per_unit
                larger["epsilon_add_remove"] = max(exact.epsilon_add_remove, most)
        if self.guarantee_kind == "asymptotic-local" and "epsilon" in larger:
            larger["epsilon_replaced"] = larger["epsilon"]
        return exact.model_copy(update=larger)

    @property
    def release_id(self) -> str:
        return self.reserved.release_id

    @property
    def plan(self) -> ReleasePlan:
        return self.reserved.plan

    @property
    def claim(self) -> Claim:
        return self.plan.claim

    @property
    def guarantee_kind(self) -> GuaranteeKind:
        return self.claim.guarantee_kind

    @property
    def plan_digest(self) -> str | None:
        return self.reserved.plan_digest

    @property
    def epsilon(self) -> Decimal | None:
        return self.exact.epsilon

    @property
    def sensitivity(self) -> Decimal | None:
        return self.exact.sensitivity

    @cached_property
    def event(self) -> EventJson:
        """What was done, as plain data; with the sensitivity at the draw, where that is larger."""
        event = cast("EventJson", self.plan.event.model_dump(mode="json"))
        if self.sensitivity != Exact.of(self.claim).sensitivity and "sensitivity" in event:
            event["sensitivity"] = float(self.sensitivity or 0)
        return event

    @property
    def sequence(self) -> int:
        return self.row.sequence

    @property
    def hash(self) -> str:
        return self.row.hash

    @property
    def recorded_at(self) -> str:
        return self.row.recorded_at

    @property
    def signer(self) -> str | None:
        return self.row.signer

    @property
    def title(self) -> str:
        return self.release_id

    def as_json(self) -> dict[str, Any]:
        """Returns all that is known as plain data, each fact by its name; amounts as fixed-point
        text.
        """
        plan = self.plan.model_dump(mode="json", exclude={"claim", "event", "release_label"})
        return {
            "sequence": self.sequence,
            "previous_hash": self.row.previous_hash,
            "hash": self.hash,
            "recorded_at": self.recorded_at,
            "kind": "release",
            "state": self.state,
            "label": self.plan.release_label,
            **plan,
            "mechanism": self.plan.event.of_training.mechanism,
            "event": self.event,
            **self.claim.model_dump(mode="json"),
            **self.exact.model_dump(mode="json"),
            **self.reserved.model_dump(mode="json", exclude={"kind", "plan"}),
            "draw_digest": self.draw_digest,
            "bundle_digest": self.bundle_digest,
            "reason": self.reason,
            "cause": self.cause,
            "signer": self.row.signer,
            "signature": self.row.signature,
        }


LedgerRow = ReleaseRow | ChainRow


@dataclass(frozen=True)
class Evaluated:
    """A measurement: an evaluation or an audit, which no one signs."""

    sequence: int
    """Its number among the measurements."""
    recorded_at: str
    evaluation: Evaluation
    exact: Exact

    @staticmethod
    def of(sequence: int, recorded_at: str, evaluation: Evaluation) -> Evaluated:
        return Evaluated(sequence, recorded_at, evaluation, Exact.of(evaluation.claim))

    @property
    def epsilon(self) -> Decimal | None:
        return self.exact.epsilon

    @property
    def guarantee_kind(self) -> GuaranteeKind:
        claim = self.evaluation.claim
        return "none" if claim is None else claim.guarantee_kind

    @cached_property
    def event(self) -> EventJson | None:
        event = self.evaluation.event
        return None if event is None else cast("EventJson", event.model_dump(mode="json"))

    @property
    def title(self) -> str:
        return self.evaluation.release_id or self.evaluation.title

    def as_json(self) -> dict[str, Any]:
        """Returns all that was measured as plain data, each fact by its name; amounts as
        fixed-point text.
        """
        evaluation, claim = self.evaluation, self.evaluation.claim
        return {
            "sequence": self.sequence,
            "recorded_at": self.recorded_at,
            **evaluation.model_dump(mode="json", exclude={"claim", "event"}),
            "label": evaluation.title,
            "mechanism": None
            if evaluation.event is None
            else evaluation.event.of_training.mechanism,
            "event": self.event,
            "guarantee_kind": self.guarantee_kind,
            **({} if claim is None else claim.model_dump(mode="json")),
            **self.exact.model_dump(mode="json"),
        }
