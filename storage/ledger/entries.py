"""The rows of the chain: a type of entry for each event, and its position.

  Begun
  PolicySet
  Reserved -> Drawn -> Committed, or Burned; then HandedOver, Revoked
  Refused, Blocked, Overridden

An entry contains its complete cause, and no field is copied out of it. `ReleaseRow` is a release
after one of its rows, with everything known at that point. `Evaluated` is a row of the
measurements, which are not part of the chain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Generic, Literal, TypeVar, cast

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
    from storage.json_values import Json
    from storage.ledger.composition import EventJson


class Entry(BaseModel, frozen=True, extra="forbid"):
    """An event in the ledger. It is validated by its content, or by the signatures of persons in
    it.
    """

    kind: str

    @property
    def key(self) -> tuple[str, ...]:
        """Identifies an event that can happen only once. A later entry with the same key has no
        effect.
        """
        raise NotImplementedError

    @property
    def title(self) -> str:
        """Text for display."""
        raise NotImplementedError

    def as_json(self) -> dict[str, Json]:
        """The entry as it is stored. Amounts are fixed-point text, so that nothing is rounded."""
        return self.model_dump(mode="json", by_alias=True)


class ReleaseEntry(Entry, frozen=True):
    """An event of a release. It takes effect only if it is signed by the key of a releasing
    worker.
    """

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
    """The set of a release's records, and earlier releases that share some of them."""

    set: Sha256
    releases: tuple[str, ...] = ()


class StatedAudit(BaseModel, frozen=True, extra="allow"):
    """The results of an audit of a claim, as the statement repeats them."""

    line: str


class Reserved(ReleaseEntry, frozen=True):
    """A planned release is charged to its accounts."""

    kind: Literal["reserved"] = "reserved"
    plan: ReleasePlan
    """The plan, with its number of records rounded as the policy requires."""
    policy_digest: Sha256
    plan_digest: str | None = None
    """SHA-256 of everything that is released, which is the subject of the decisions."""
    decisions: tuple[Decision, ...] = ()
    approvals: tuple[str, ...] = ()
    audit: StatedAudit | None = None
    records: Overlap | None = None


class Drawn(ReleaseEntry, frozen=True):
    """The single draw of a release, and its cost as measured at the draw."""

    kind: Literal["drawn"] = "drawn"
    draw_digest: str
    epsilon: Amount | None = None
    sensitivity: Amount | None = None


class Committed(ReleaseEntry, frozen=True):
    """The bundle of a release is complete."""

    kind: Literal["committed"] = "committed"
    bundle_digest: str


class Burned(ReleaseEntry, frozen=True):
    """A release is closed without a bundle."""

    kind: Literal["burned"] = "burned"
    reason: str
    cause: Literal["surplus-refused"] | None = None
    """Set if the program reacts to the cause."""
    draw_digest: str | None = None


class HandedOver(ReleaseEntry, frozen=True):
    """A partner received an archive of a committed release."""

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
    """A person refused a plan, which can no longer be reserved."""

    kind: Literal["refused"] = "refused"
    decision: Decision
    by: str
    """The signer's name."""
    requester: str
    """Requester of the plan."""

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
    """The result of an audit for a plan."""

    plan_digest: Sha256
    audit_row: int
    line: str
    """Summary of the audit's measurements."""
    requester: str

    @property
    def key(self) -> tuple[str, ...]:
        return (self.kind, self.plan_digest, str(self.audit_row))


class Blocked(AuditedEntry, frozen=True):
    """The gate blocked a plan because an audit contradicts its claim."""

    kind: Literal["blocked"] = "blocked"

    @property
    def title(self) -> str:
        return "release blocked: contradicted by an audit"


class Overridden(AuditedEntry, frozen=True):
    """A person overrode an audit that blocks a plan. The decision is valid by its own signature."""

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
"""Kinds of entries that are not signed by a releasing worker."""

E_co = TypeVar("E_co", bound=Entry, covariant=True)


class Row(BaseModel, Generic[E_co], frozen=True, extra="forbid"):
    """An entry at its position in the chain."""

    sequence: int
    previous_hash: str
    recorded_at: str
    """UTC, ISO 8601, from the clock of the machine that wrote the row."""
    schema_version: int = SCHEMA_VERSION
    entry: E_co
    signer: str | None = None
    """Public key (Base64, DER) of the releasing worker."""
    signature: str | None = None
    """Base64, DER-encoded ECDSA on P-256 over the canonical JSON of every other field, including
    the position in the chain.
    """
    hash: str = Field(default="", exclude=True)
    """SHA-256 of the canonical JSON (RFC 8785) of every other field."""

    @property
    def release_id(self) -> str | None:
        return self.entry.release_id if isinstance(self.entry, ReleaseEntry) else None

    @property
    def title(self) -> str:
        return self.entry.title

    def as_json(self) -> dict[str, Json]:
        """The row as plain data for other programs, with amounts as fixed-point text."""
        place = self.model_dump(mode="json", exclude={"entry"})
        return place | {"hash": self.hash} | self.entry.as_json()


ChainRow = Row[AnyEntry]

State = Literal["reserved", "drawn", "committed", "burned"]


@dataclass(frozen=True)
class ReleaseRow:
    """A release after one of its rows, with everything known at that point."""

    row: Row[ReleaseEntry]
    """The newest row."""
    reserved: Reserved
    exact: Exact
    """Its cost: the larger of the planned and the measured amounts."""
    state: State = "reserved"
    draw_digest: str | None = None
    bundle_digest: str | None = None
    reason: str = ""
    cause: Literal["surplus-refused"] | None = None

    @staticmethod
    def of(row: Row[Reserved]) -> ReleaseRow:
        return ReleaseRow(row, row.entry, Exact.of(row.entry.plan.claim))

    def after(self, row: Row[ReleaseEntry], entry: Drawn | Committed | Burned) -> ReleaseRow:
        """The release after a later row. If the draw measured a larger cost, the larger one is
        used.
        """
        if isinstance(entry, Drawn):
            updated = replace(self, exact=self._measured(entry), draw_digest=entry.draw_digest)
        elif isinstance(entry, Committed):
            updated = replace(self, bundle_digest=entry.bundle_digest)
        else:
            digest = self.draw_digest or entry.draw_digest
            updated = replace(self, draw_digest=digest, reason=entry.reason, cause=entry.cause)
        return replace(updated, row=row, state=entry.kind)

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
        """The event as plain data, with the sensitivity at the draw if that is larger."""
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

    def as_json(self) -> dict[str, Json]:
        """Everything known, as plain data by name, with amounts as fixed-point text."""
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
            "event": cast("Json", self.event),
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
    """A measurement: an evaluation or an audit, which is not signed."""

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

    def as_json(self) -> dict[str, Json]:
        """Everything measured, as plain data by name, with amounts as fixed-point text."""
        evaluation, claim = self.evaluation, self.evaluation.claim
        return {
            "sequence": self.sequence,
            "recorded_at": self.recorded_at,
            **evaluation.model_dump(mode="json", exclude={"claim", "event"}),
            "label": evaluation.title,
            "mechanism": None
            if evaluation.event is None
            else evaluation.event.of_training.mechanism,
            "event": cast("Json", self.event),
            "guarantee_kind": self.guarantee_kind,
            **({} if claim is None else claim.model_dump(mode="json")),
            **self.exact.model_dump(mode="json"),
        }
