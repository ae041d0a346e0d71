"""Defines what the ledger takes: the plan of a release, and an evaluation; and the exact amounts of
a claim. `entries.py` has the rows that follow from them.
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

from mechanisms.privacy.events import Claim, Event, recorded_event
from storage.ledger import amounts

SCHEMA_VERSION = 2
"""Version of the rows' JSON; a change of it is a change of what is hashed."""

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
    """The amounts of a claim as decimals, rounded up: what accounts add up."""

    epsilon: Amount | None = None
    delta: Amount | None = None
    sensitivity: Amount | None = None
    epsilon_add_remove: Amount | None = None
    epsilon_replaced: Amount | None = None
    """The epsilon of one unit's values replaced, by which claims of different relations compare. A
    draw's 2 Delta is for that too. None: nothing finite is known.
    """
    mc_failure_prob: Amount | None = None

    @staticmethod
    def of(claim: Claim | None) -> Exact:
        """Returns a claim's amounts; refuses a number that no budget can be kept with."""
        if claim is None:
            return Exact()
        # A pure guarantee has delta 0 by proof; a zero without words is an unset field or an
        # underflow.
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
    # at a delta near 1 an accountant may say 0: rounded up as every measured amount is
    return amounts.epsilon(max(claim.epsilon_replaced, amounts.LEAST_EPSILON))


AnyRecordedEvent = Annotated[SerializeAsAny[Event], BeforeValidator(recorded_event)]
"""Any event, also one of a kind that this process does not know."""


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
    event: AnyRecordedEvent
    claim: Claim
    supersedes: Name | None = None
    """Release id that this one replaces."""
    ledger: LedgerPosition | None = None
    """The ledger that it was made under, and its newest row then. It is released there alone."""


class _Subject(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    LABEL: ClassVar[str]

    @property
    def label(self) -> str:
        return self.LABEL.format(**dict(self))


class ComparisonFit(_Subject):
    """Holds which fit of a comparison an evaluation is of."""

    LABEL: ClassVar[str] = "fit: {branch}, seed {seed}"
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


class Sample(BaseModel, frozen=True, extra="forbid"):
    """The smallest marks of a set of records, by which two sets compare (`RecordSet.sample`)."""

    key: str = Field(pattern="^[0-9a-f]{32}$")
    marks: tuple[Annotated[str, Field(pattern="^[0-9a-f]{16}$")], ...] = Field(max_length=64)


class Evaluation(_Provenance):
    """Holds what is not released: an internal or non-private evaluation, or an audit."""

    kind: Literal["evaluation", "audit"] = "evaluation"
    subject: Subject | None = None
    label: str = Field(default="", max_length=300)
    """For people; by default the subject's."""
    population: Name
    cohorts: tuple[Name, ...] = ()
    data_fingerprint: Name
    records_rounded: int | None = Field(default=None, ge=0)
    event: AnyRecordedEvent | None = None
    claim: Claim | None = None
    release_id: Name | None = None
    """The release that an audit looked at."""
    idempotency_key: Name | None = None
    """With it, recording the same again returns the first row."""
    sample: Sample | None = None
    """Of its records."""
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
