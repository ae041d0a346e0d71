"""The inputs of the ledger: the plan of a release, an evaluation, and the exact amounts of a claim.
`entries.py` defines the resulting rows.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SerializeAsAny,
    model_validator,
)

from mechanisms.privacy.events import LEAST_EPSILON, Claim, Event, recorded_event
from storage.ledger import amounts

SCHEMA_VERSION = 2
"""Version of the rows' JSON. Changing it changes what is hashed."""

GENESIS = "0" * 64
"""Previous hash of the first row."""

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
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Exact(BaseModel, frozen=True, extra="forbid"):
    """The amounts of a claim as decimals, rounded up, which accounts add."""

    epsilon: Amount | None = None
    delta: Amount | None = None
    sensitivity: Amount | None = None
    epsilon_add_remove: Amount | None = None
    epsilon_replaced: Amount | None = None
    """The epsilon for replacing one unit's values, with which claims for different relations can be
    compared. For a posterior draw it is also 2 Delta. None if no finite value is known.
    """
    mc_failure_prob: Amount | None = None

    @staticmethod
    def of(claim: Claim | None) -> Exact:
        """A claim's amounts; refuses numbers that cannot be used in a budget."""
        if claim is None:
            return Exact()
        # A pure guarantee has delta 0 by proof. A zero without an explanation is an unset field or
        # an underflow.
        pure = claim.delta == 0 and claim.delta_text != ""
        losses = {
            name: amounts.epsilon(value, name=name)
            for name in ("epsilon", "sensitivity", "epsilon_add_remove")
            if (value := getattr(claim, name)) is not None
        }
        delta, failure = claim.delta, claim.mc_failure_prob
        if delta is not None:
            losses["delta"] = amounts.ZERO_DELTA if pure else amounts.delta(delta)
        if failure is not None:
            losses["mc_failure_prob"] = amounts.probability(failure, name="mc_failure_prob")
        return Exact(**losses, epsilon_replaced=_replaced(claim, losses.get("epsilon")))


def _replaced(claim: Claim, epsilon: Decimal | None) -> Decimal | None:
    if claim.neighbouring_relation == "replace-one" or claim.guarantee_kind == "asymptotic-local":
        return epsilon
    if claim.guarantee_kind != "formal" or claim.epsilon_replaced is None:
        return None
    # at a delta near 1 an accountant may report 0, which is rounded up like every measured amount
    return amounts.epsilon(max(claim.epsilon_replaced, LEAST_EPSILON))


AnyRecordedEvent = Annotated[SerializeAsAny[Event], BeforeValidator(recorded_event)]
"""Any event, including kinds that this process does not know."""


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


class LedgerPosition(BaseModel):
    """A row of one ledger: the ledger (as the hash of its first row), the sequence, and the
    hash.
    """

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
    """An intended release: its content, its records, and its cost."""

    idempotency_key: Name
    """The same plan always has the same key, and a key can have only one release."""
    release_label: Name
    population: Name
    cohorts: tuple[Name, ...] = Field(min_length=1)
    """Reference periods of the records. The cost is charged to each."""
    data_fingerprint: Name
    records_rounded: int = Field(ge=0)
    """Number of records. The ledger rounds it as the policy requires."""
    event: AnyRecordedEvent
    claim: Claim
    supersedes: Name | None = None
    """Id of the release that this one replaces."""
    ledger: LedgerPosition | None = None
    """The ledger under which the plan was made, and its newest row at that time. The plan can be
    released only there.
    """


class _Subject(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    LABEL: ClassVar[str]

    @property
    def label(self) -> str:
        return self.LABEL.format(**dict(self))


class ComparisonFit(_Subject):
    """The fit of a comparison to which an evaluation belongs."""

    LABEL: ClassVar[str] = "fit: {branch}, seed {seed}"
    kind: Literal["comparison"] = "comparison"
    branch: Name
    seed: int


class SearchFit(_Subject):
    """The fit of a search for a target epsilon to which an evaluation belongs."""

    LABEL: ClassVar[str] = "tuning for epsilon {target_epsilon:g}: {round}"
    kind: Literal["search"] = "search"
    target_epsilon: float
    round: Name


class Sensitivity(_Subject):
    """The posterior of a training run to which an epsilon and a Delta belong."""

    LABEL: ClassVar[str] = "sensitivity of the {round} posterior, no release"
    kind: Literal["sensitivity"] = "sensitivity"
    round: Name


class Scores(_Subject):
    """Scores of a training run on held-out records."""

    LABEL: ClassVar[str] = "internal evaluation on held-out records"
    kind: Literal["scores"] = "scores"


class Purge(_Subject):
    """The removal of old stages from a workspace."""

    LABEL: ClassVar[str] = "purge: {folders} folders older than {older_than_days:g} days"
    kind: Literal["purge"] = "purge"
    folders: int
    older_than_days: float


Subject = Annotated[
    ComparisonFit | SearchFit | Sensitivity | Scores | Purge, Field(discriminator="kind")
]


class Sample(BaseModel, frozen=True, extra="forbid"):
    """The smallest marks of a record set, with which two sets can be compared
    (`RecordSet.sample`).
    """

    key: str = Field(pattern="^[0-9a-f]{32}$")
    marks: tuple[Annotated[str, Field(pattern="^[0-9a-f]{16}$")], ...] = Field(max_length=64)


class Evaluation(_Provenance):
    """A result that is not released: an internal or non-private evaluation, or an audit."""

    kind: Literal["evaluation", "audit"] = "evaluation"
    subject: Subject | None = None
    label: str = Field(default="", max_length=300)
    """For display; by default the subject's."""
    population: Name
    cohorts: tuple[Name, ...] = ()
    data_fingerprint: Name
    records_rounded: int | None = Field(default=None, ge=0)
    event: AnyRecordedEvent | None = None
    claim: Claim | None = None
    release_id: Name | None = None
    """The release that was audited."""
    idempotency_key: Name | None = None
    """If set, recording the same evaluation again returns the first row."""
    sample: Sample | None = None
    """Sample of its records."""
    details: dict[str, Any] = Field(default_factory=dict)
    """Figures as plain JSON: F1 scores, attack advantage. Never content of records."""

    @model_validator(mode="after")
    def _labelled(self) -> Evaluation:
        if not self.title:
            raise ValueError("an evaluation needs a subject or a label")
        _printable(self.title)
        return self

    @property
    def title(self) -> str:
        return self.label or (self.subject.label if self.subject is not None else "")
