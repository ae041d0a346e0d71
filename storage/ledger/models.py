"""Defines what the ledger takes and gives: the plan of a release, an evaluation, and a row of the
chain.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializeAsAny,
    model_validator,
)

from mechanisms.privacy.events import Claim, Event, GuaranteeKind, NeighbouringRelation
from storage.ledger import amounts

SCHEMA_VERSION = 1
"""Version of the rows' JSON; a change of it is a change of what is hashed."""

EPSILON_REPLACED = "epsilon_replaced"
"""Name, among a row's details, of the epsilon of one unit's values replaced."""
GENESIS = "0" * 64
"""Previous hash of the first row."""

State = Literal["reserved", "drawn", "committed", "burned", "internal", "recorded"]
Kind = Literal[
    "release", "evaluation", "audit", "budget-change", "refusal", "handover", "revocation"
]

SIGNED = ("release", "handover", "revocation")
"""Kinds of rows that count only with the signature of a releasing worker's key."""

UNSIGNED = ("evaluation", "audit", "budget-change", "refusal")
"""Kinds of rows that count by what they say, or by the signatures of persons."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def _printable(value: str) -> str:
    if _CONTROL.search(value):
        raise ValueError("control characters are not allowed")
    return value


def _one_line(value: str) -> str:
    if _printable(value).splitlines() != [value]:
        raise ValueError("line ends are not allowed")
    return value


Name = Annotated[str, Field(min_length=1, max_length=300), AfterValidator(_one_line)]
Prose = Annotated[str, Field(max_length=4000), AfterValidator(_printable)]
Amount = Annotated[Decimal, PlainSerializer(amounts.text, when_used="json")]


class _Provenance(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    trust_model: Prose = ""
    randomness_source: Prose = ""
    floating_point_caveat: Prose = ""
    code_commit: Name = "unknown"
    code_dirty: bool = True
    lock_digest: Name | None = None
    parameters_digest: Name | None = None
    artifact_digests: dict[Name, Name] = Field(default_factory=dict)
    requester: Name
    prefect_run_id: Name | None = None


class Mark(BaseModel):
    """A row of one ledger: which ledger, by the hash of its first row, and how far it went."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ledger: str = Field(pattern="^[0-9a-f]{64}$")
    sequence: int = Field(ge=1)
    hash: str = Field(pattern="^[0-9a-f]{64}$")

    def __str__(self) -> str:
        return f"ledger {self.ledger[:12]}… at row {self.sequence} ({self.hash[:12]}…)"

    @property
    def text(self) -> str:
        return f"{self.ledger}:{self.sequence}:{self.hash}"


class ReleasePlan(_Provenance):
    """One intended release: what it would disclose, of which records, at what cost."""

    idempotency_key: Name
    """The same plan has the same key; a key has one release, for ever."""
    release_label: Name
    population: Name
    cohorts: tuple[Name, ...] = Field(min_length=1)
    """Reference periods whose records were used; the cost is charged to each."""
    data_fingerprint: Name
    records_rounded: int = Field(ge=0)
    """Records used; the ledger rounds to what the policy says."""
    event: SerializeAsAny[Event]
    claim: Claim
    supersedes: Name | None = None
    """Release id that this one replaces."""
    ledger: Mark | None = None
    """The ledger that it was made under, and its newest row then. It is released there alone."""


class _Subject(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    LABEL: ClassVar[str]

    @property
    def label(self) -> str:
        return self.LABEL.format(**dict(self))


class ComparisonFit(_Subject):
    """Holds which fit of a comparison an evaluation is of."""

    LABEL: ClassVar[str] = "compare: {branch}, seed {seed}"
    kind: Literal["comparison"] = "comparison"
    branch: Name
    seed: int


class SearchFit(_Subject):
    """Holds which fit of a search for a target epsilon an evaluation is of."""

    LABEL: ClassVar[str] = "tuning for epsilon {target_epsilon:g}: {round}"
    kind: Literal["search"] = "search"
    target_epsilon: float
    round: Name


class Sensitivity(_Subject):
    """Holds which posterior of a training run an epsilon and a Delta are of."""

    LABEL: ClassVar[str] = "sensitivity of the {round} posterior, no release"
    kind: Literal["sensitivity"] = "sensitivity"
    round: Name


class Scores(_Subject):
    """Marks the scores of a training run on held-out records."""

    LABEL: ClassVar[str] = "internal evaluation on the test half"
    kind: Literal["scores"] = "scores"


class Purge(_Subject):
    """Holds that old stages were removed from a workspace."""

    LABEL: ClassVar[str] = "purge: {folders} folders older than {older_than_days:g} days"
    kind: Literal["purge"] = "purge"
    folders: int
    older_than_days: float


Subject = Annotated[
    ComparisonFit | SearchFit | Sensitivity | Scores | Purge, Field(discriminator="kind")
]


class Evaluation(_Provenance):
    """Holds what is not released: an internal or non-private evaluation, an audit, a handover, a
    revocation.
    """

    kind: Literal["evaluation", "audit", "handover", "revocation"] = "evaluation"
    subject: Subject | None = None
    label: str = Field(default="", max_length=300)
    """For people; by default the subject's."""
    population: Name
    cohorts: tuple[Name, ...] = ()
    data_fingerprint: Name
    records_rounded: int | None = Field(default=None, ge=0)
    event: SerializeAsAny[Event] | None = None
    claim: Claim | None = None
    release_id: Name | None = None
    """The release that an audit looked at."""
    idempotency_key: Name | None = None
    """With it, recording the same again returns the first row."""
    details: dict[str, Any] = Field(default_factory=dict)
    """Figures as plain JSON: F1 scores, attack advantage. No record content."""

    @model_validator(mode="after")
    def _labelled(self) -> Evaluation:
        if not self.title:
            raise ValueError("an evaluation needs a subject or a label")
        _printable(self.title)
        return self

    @property
    def title(self) -> str:
        return self.label or (self.subject.label if self.subject is not None else "")


class Row(BaseModel):
    """One row of the chain.

    A release's later rows say what they add alone: `State` has its current one, with all that is
    known of it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    sequence: int
    previous_hash: str
    hash: str = ""
    """SHA-256 of the canonical JSON (RFC 8785) of every other field."""
    schema_version: int = SCHEMA_VERSION
    recorded_at: str
    """UTC, ISO 8601, from the clock of the machine that wrote the row."""
    kind: Kind
    state: State
    release_id: str | None = None
    idempotency_key: str | None = None
    label: str = ""
    population: str | None = None
    cohorts: tuple[str, ...] = ()
    data_fingerprint: str | None = None
    records_rounded: int | None = None
    privacy_unit: str | None = None
    max_records_per_unit: int | None = None
    neighbouring_relation: NeighbouringRelation | None = None
    mechanism: str | None = None
    event: dict[str, Any] | None = None
    guarantee_kind: GuaranteeKind = "none"
    epsilon: Amount | None = None
    delta: Amount | None = None
    delta_text: str = ""
    sensitivity: Amount | None = None
    epsilon_add_remove: Amount | None = None
    draws: int | None = None
    mc_failure_prob: Amount | None = None
    accountant: str | None = None
    assumptions: tuple[str, ...] = ()
    unprotected_inputs: tuple[str, ...] = ()
    policy_digest: str | None = None
    trust_model: str = ""
    randomness_source: str = ""
    floating_point_caveat: str = ""
    code_commit: str | None = None
    code_dirty: bool | None = None
    lock_digest: str | None = None
    parameters_digest: str | None = None
    artifact_digests: dict[str, str] = Field(default_factory=dict)
    draw_digest: str | None = None
    bundle_digest: str | None = None
    requester: str | None = None
    approvals: tuple[str, ...] = ()
    prefect_run_id: str | None = None
    subject: Subject | None = None
    """Of an evaluation: which fit or measurement it is of."""
    supersedes: str | None = None
    reason: str = ""
    cause: Literal["surplus-refused"] | None = None
    """Why a release was burned, where the program acts on it."""
    details: dict[str, Any] = Field(default_factory=dict)
    signer: str | None = None
    """Public key (Base64, DER) of the releasing worker, in rows that only it may write (`SIGNED`).
    """
    signature: str | None = None
    """Base64, DER-encoded ECDSA on P-256 over the canonical JSON of every other field, the place in
    the chain too.
    """

    @property
    def epsilon_replaced(self) -> Decimal | None:
        """Returns the epsilon of one unit's values replaced, by which rows of different relations
        compare.

        A draw's 2 Delta is for that too. None: nothing finite is known.
        """
        if self.neighbouring_relation == "replace-one" or self.guarantee_kind == "asymptotic-local":
            return self.epsilon
        stated = self.details.get(EPSILON_REPLACED)
        return None if stated is None else Decimal(stated)

    def as_json(self) -> dict[str, Any]:
        """Return the row as plain data: amounts as fixed-point text, so that nothing is rounded on
        the way.
        """
        return self.model_dump(mode="json")
