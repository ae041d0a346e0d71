"""The budget policy: for each population, caps a type of guarantee and cohort, and who must
approve.

docs/reference/policy-file.md has an example with every field.

A cap holds for each cohort by itself: of records, which are in one cohort each, disjoint cohorts
compose in parallel; a release over several cohorts spends from each. Where the claim protects a
unit, whose records may be in several cohorts, all of them have one account beside (`all cohorts`),
under the least cap of any. Composition is `exact`, by what each release's event costs, or `basic`:
epsilons add up, deltas add up. `formal` and `asymptotic-local` are two accounts that nothing adds
to each other. A kind without a cap is refused.
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


_MOST = 1 << 20
"""Bytes of a policy's file."""
ALL_COHORTS = "all cohorts"
"""The account of a population's units, whatever cohorts their records are in; no cohort has that
name.
"""


def _cap_epsilon(value: Any) -> Decimal:
    # Through the shortest text: a cap is what someone wrote, so 0.1 means one tenth and not its
    # float.
    return amounts.epsilon(str(value), name="cap epsilon")


def _cap_delta(value: Any) -> Decimal | None:
    return None if value is None else amounts.probability(str(value), name="cap delta")


_TEXT = PlainSerializer(amounts.text, when_used="json")


class Cap(BaseModel):
    """The most that one cohort of a population may spend of one type of guarantee."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epsilon: Annotated[Decimal, BeforeValidator(_cap_epsilon), _TEXT]
    delta: Annotated[Decimal | None, BeforeValidator(_cap_delta), _TEXT] = None
    composition: Literal["exact", "basic"] = "exact"
    """`basic`: epsilons and deltas of the claims add up. `exact`: see `storage.ledger.composition`.
    """
    neighbouring_relation: NeighbouringRelation | None = None
    """The relation the account is kept in; without it, that of the account's first release."""


class CohortBudget(BaseModel):
    """Caps a type of guarantee."""

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
    """Caps for each cohort of a population, and the cohorts that have their own."""

    cohorts: dict[str, CohortBudget] = Field(default_factory=dict)


class ApprovalRule(BaseModel):
    """Sets how many persons must have approved a release, and by whose keys; the requester never
    counts.
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
    """States what a public registry of deployments asks for and no ledger knows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    curators: tuple[str, ...] = Field(min_length=1)
    sector: Literal["Technology", "Healthcare", "Education", "Government", "Energy", "Finance"] = (
        "Government"
    )
    region: str = Field(min_length=1)
    intended_use: str = "Suggests codes for narratives, which persons confirm."
    domain: str = Field(min_length=1)
    """Which data sets are possible: how records are collected, which fields they have."""
    actors: str = Field(min_length=1)
    """Who may access data or product, and what each is trusted with."""
    refreshment: str = Field(min_length=1)
    """How often new records come, and that budgets do not reset."""
    justification: str = Field(min_length=1)
    sources: tuple[str, ...] = ()
    """Addresses of papers and pages about the release, and of the bundle where it is public."""
    code: str = ""
    """Address of the program's source; the ledger has its commit."""
    access: str = ""
    """How the records are secured: who may read them, and what keeps others out."""
    authors: tuple[str, ...] = Field(min_length=1)
    """Who wrote the record."""


class Policy(BaseModel):
    """Everything that a reservation is checked against. Recorded whole in the ledger when it comes
    into force.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, max_length=200)
    record_count_rounding: int = Field(default=10, ge=1)
    approvals: ApprovalRule = ApprovalRule()
    require_clean_code: bool = False
    require_audit: bool = False
    """Whether a candidate must have been audited. An audit that contradicts the claim blocks in any
    case.
    """
    audit_reach: float = Field(default=1.0, gt=0, le=100, allow_inf_nan=False)
    """The least power of an audit: the bound that its guesses would show if all were right, over
    the claim. An audit with less is inconclusive, and does not count as one.
    """
    release_keys: dict[str, str] = Field(default_factory=dict)
    """Name and public P-256 key (PEM) of every releasing worker: rows of releases that another key
    signed do not count. Without any, the key that signed the ledger's first release is the only
    one.
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
        """Validate plain data as a policy; errors name the field."""
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

    def as_json(self) -> dict[str, Any]:
        """Return the policy as plain data, decimals as text; without a statement for registries
        where it has none.
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
        """Return the cap that holds for a cohort of a population, None where nothing may be spent.

        For `ALL_COHORTS` it is the least that the population or any of its cohorts has, since a
        unit may be in each.
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
        """Round a record count to the nearest multiple that the policy names, halves up."""
        base = self.record_count_rounding
        return (2 * count + base) // (2 * base) * base


@lru_cache(maxsize=64)
def _key_ids(keys: tuple[tuple[str, str], ...]) -> frozenset[str]:
    return frozenset(key_id(parse_public_key(pem.encode(), name=name)) for name, pem in keys)


def _least(caps: Sequence[Cap]) -> Cap | None:
    """Every figure the smallest; under replace-one where one is, since an add/remove claim can be
    kept there.
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
"""Every population: formal (10, 0.001) and asymptotic-local 20 a cohort, no one need approve. For
trying out.
"""
