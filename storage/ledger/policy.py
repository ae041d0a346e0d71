"""The budget policy: caps per population, kind of guarantee and cohort, and the required approvals.

docs/reference/policy-file.md has an example with every field.

A cap applies to each cohort separately: each record is in one cohort, so disjoint cohorts compose
in parallel, and a release over several cohorts spends from each. If the claim protects a unit,
whose records may be in several cohorts, there is an additional account for all of them (`all
cohorts`), under the smallest cap of any cohort. Composition is `exact`, by the cost of each
release's event, or `basic`, in which epsilons and deltas add up. `formal` and `asymptotic-local`
have separate accounts that are never added. A kind without a cap is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    model_validator,
)

from mechanisms.privacy.events import GuaranteeKind, NeighbouringRelation
from storage.artifacts import digest
from storage.durable import read_regular
from storage.errors import InputError, OutOfRange, Unreadable
from storage.ledger import amounts
from storage.ledger.keys import key_id, parse_public_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

    from storage.json_values import Json


_MOST = 1 << 20
"""Maximum size of a policy file in bytes."""
ALL_COHORTS = "all cohorts"
"""The account of a population's units, for records of any cohort. No cohort may have this name."""


def _cap_epsilon(value: Any) -> Decimal:
    # Converted from the shortest text, because a cap was entered by a person: 0.1 means one tenth,
    # not its float.
    return amounts.epsilon(str(value), name="cap epsilon")


def _cap_delta(value: Any) -> Decimal | None:
    return None if value is None else amounts.probability(str(value), name="cap delta")


_TEXT = PlainSerializer(amounts.text, when_used="json")


class Cap(BaseModel):
    """The maximum spending of one cohort of a population for one kind of guarantee."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epsilon: Annotated[Decimal, BeforeValidator(_cap_epsilon), _TEXT]
    delta: Annotated[Decimal | None, BeforeValidator(_cap_delta), _TEXT] = None
    composition: Literal["exact", "basic"] = "exact"
    """`basic`: epsilons and deltas of the claims add up. `exact`: see
    `storage.ledger.composition`.
    """
    neighbouring_relation: NeighbouringRelation | None = None
    """The neighbouring relation of the account. By default, the account's first release determines
    it.
    """


class CohortBudget(BaseModel):
    """Caps for each kind of guarantee."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    formal: Cap | None = None
    asymptotic_local: Cap | None = Field(default=None, alias="asymptotic-local")

    @model_validator(mode="after")
    def _delta_is_for_formal(self) -> CohortBudget:
        if self.formal is not None and self.formal.delta is None:
            raise ValueError("a formal cap needs a delta")
        if self.asymptotic_local is not None and self.asymptotic_local.delta is not None:
            raise ValueError(
                "an asymptotic-local cap has no delta: what isn't quantified can't be added up"
            )
        return self

    def cap(self, kind: GuaranteeKind) -> Cap | None:
        return {"formal": self.formal, "asymptotic-local": self.asymptotic_local}.get(kind)


class PopulationBudget(CohortBudget):
    """Caps for each cohort of a population, and for cohorts with their own caps."""

    cohorts: dict[str, CohortBudget] = Field(default_factory=dict)


class ApprovalRule(BaseModel):
    """The number of persons who must approve a release, and their keys. The requester's approval is
    never counted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    minimum: int = Field(default=0, ge=0, le=20)
    valid_days: int | None = Field(default=None, ge=1, le=3650)
    approvers: dict[str, str] = Field(default_factory=dict)
    """Name and public P-256 key (PEM) of everyone who may decide."""

    @model_validator(mode="after")
    def _enough_keys(self) -> ApprovalRule:
        keys = self.keys()
        if len({key_id(key) for key in keys.values()}) < len(keys):
            raise ValueError("two approvers have the same key")
        if self.minimum > len(keys):
            raise ValueError(
                f"minimum {self.minimum} needs as many `approvers`, each a name and its public "
                "key in PEM;"
                " a name that someone types approves nothing"
            )
        return self

    @property
    def signatures_required(self) -> str:
        return f"{self.minimum} signed approval{'' if self.minimum == 1 else 's'}"

    def keys(self) -> dict[str, EllipticCurvePublicKey]:
        return {
            name: parse_public_key(pem.encode(), name=name) for name, pem in self.approvers.items()
        }


class RegistryStatement(BaseModel):
    """Information that a public registry of deployments requires and the ledger does not
    contain.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    curators: tuple[str, ...] = Field(min_length=1)
    sector: Literal["Technology", "Healthcare", "Education", "Government", "Energy", "Finance"] = (
        "Government"
    )
    region: str = Field(min_length=1)
    intended_use: str = "Suggests codes for narratives."
    domain: str = Field(min_length=1)
    """The possible datasets: how records are collected, and their fields."""
    actors: str = Field(min_length=1)
    """Who may access data or product, and how far each is trusted."""
    refreshment: str = Field(min_length=1)
    """How often new records are added, and that budgets do not reset."""
    justification: str = Field(min_length=1)
    sources: tuple[str, ...] = ()
    """URLs of papers and pages about the release, and of the bundle if it is public."""
    code: str = ""
    """URL of the program's source code. The ledger contains its commit."""
    access: str = ""
    """How the records are secured: who may read them, and how access is restricted."""
    authors: tuple[str, ...] = Field(min_length=1)
    """Authors of the record."""


class Policy(BaseModel):
    """All rules for reservations. The ledger records the complete policy when it comes into
    force.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, max_length=200)
    record_count_rounding: int = Field(default=10, ge=1)
    approvals: ApprovalRule = ApprovalRule()
    require_clean_code: bool = False
    require_audit: bool = False
    """Whether a candidate must have been audited. An audit that contradicts the claim always
    blocks.
    """
    audit_reach: float = Field(default=1.0, gt=0, le=100, allow_inf_nan=False)
    """Minimum power of an audit: the bound that it would find if all guesses were right, divided by
    the claim. An audit below this is inconclusive and does not count.
    """
    release_keys: dict[str, str] = Field(default_factory=dict)
    """Name and public P-256 key (PEM) of every releasing worker. Rows of releases that are signed
    by other keys have no effect. If empty, only the key that signed the ledger's first release
    is valid.
    """
    populations: dict[str, PopulationBudget] = Field(default_factory=dict)
    default: PopulationBudget | None = None
    registry: RegistryStatement | None = None

    @staticmethod
    def load(path: Path | str | None) -> Policy:
        if path is None:
            return DEFAULT_POLICY
        import yaml

        from storage import strict_yaml

        source = Path(path)
        try:
            data = strict_yaml.load(
                read_regular(source, _MOST, option="policy file").decode("utf-8")
            )
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            mark = getattr(error, "problem_mark", None)
            where = f", line {mark.line + 1}" if mark else ""
            problem = getattr(error, "problem", None) or "not readable as YAML"
            raise Unreadable(
                f"policy file {source}{where}: {problem}", kind="policy-not-yaml"
            ) from error
        return Policy.parse(data, source=f"policy file {source}")

    @staticmethod
    def parse(data: Any, *, source: str = "policy") -> Policy:
        """Validates plain data as a policy. Errors contain the field."""
        try:
            return Policy.model_validate(data)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"]) or "policy"
            raise OutOfRange(
                f"{source}, {field}: {first['msg']}", kind="policy-field", option=field
            ) from error
        except InputError as error:
            raise OutOfRange(f"{source}: {error}", kind=error.kind, option=error.option) from error

    def as_json(self) -> dict[str, Json]:
        """The policy as plain data, with decimals as text. A missing statement for registries is
        omitted.
        """
        absent = {"registry"} if self.registry is None else None
        return self.model_dump(mode="json", by_alias=True, exclude=absent)

    def release_key_ids(self) -> frozenset[str]:
        return _key_ids(tuple(sorted(self.release_keys.items())))

    @property
    def digest(self) -> str:
        """SHA-256 of the policy's canonical JSON."""
        return digest(self.as_json())

    def cap(self, population: str, cohort: str, kind: GuaranteeKind) -> Cap | None:
        """The cap for a cohort of a population; None if nothing may be spent.

        For `ALL_COHORTS` it is the smallest cap of the population and its cohorts, because a unit
        may be in each.
        """
        budget = self.populations.get(population, self.default)
        if budget is None:
            return None
        # guard: test_the_least_cap_of_a_cohort_holds_for_units
        if cohort == ALL_COHORTS:
            return _least(
                [
                    cap
                    for terms in (budget, *budget.cohorts.values())
                    if (cap := terms.cap(kind)) is not None
                ]
            )
        cohort_budget = budget.cohorts.get(cohort)
        return (cohort_budget.cap(kind) if cohort_budget else None) or budget.cap(kind)

    def round_records(self, count: int) -> int:
        """Rounds a record count to the nearest multiple of `record_count_rounding`, halves up."""
        base = self.record_count_rounding
        return (2 * count + base) // (2 * base) * base


@lru_cache(maxsize=64)
def _key_ids(keys: tuple[tuple[str, str], ...]) -> frozenset[str]:
    return frozenset(key_id(parse_public_key(pem.encode(), name=name)) for name, pem in keys)


def _least(caps: Sequence[Cap]) -> Cap | None:
    """The smallest value of every figure. The relation is replace-one if any cap requires it,
    because an add-remove claim can also be counted there.
    """
    if not caps:
        return None
    relations = {cap.neighbouring_relation for cap in caps}
    return Cap(
        epsilon=min(cap.epsilon for cap in caps),
        delta=min((cap.delta for cap in caps if cap.delta is not None), default=None),
        composition="basic" if any(cap.composition == "basic" for cap in caps) else "exact",
        neighbouring_relation="replace-one"
        if "replace-one" in relations
        else caps[0].neighbouring_relation,
    )


DEFAULT_POLICY = Policy.parse(
    {
        "name": "default",
        "default": {
            "formal": {"epsilon": 10, "delta": "0.001"},
            "asymptotic-local": {"epsilon": 20},
        },
    }
)
"""Every population: formal (10, 0.001) and asymptotic-local 20 per cohort, without approvals. For
experiments only.
"""
