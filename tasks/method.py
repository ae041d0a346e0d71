"""A method: a mechanism with its settings, under the name that profiles, commands and reports use.

In a profile and in `deployments/branches.yaml` a method is one flat mapping:

    method: {name: prior-descent, target_epsilon: 5}
    method: {kind: dp-sgd, learning_rate: 0.01, epochs: 4}

A name from that file stands for the settings listed there. Settings next to the name override them.
Mechanisms need torch, which is imported only when a method is read.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from mechanisms.model.config import ModelConfig, Prior
from storage.errors import OutOfRange
from tasks.catalogue import BRANCHES, branch_bodies

if TYPE_CHECKING:
    from mechanisms.mechanism import Mechanism
    from mechanisms.privacy.events import GuaranteeKind

RELEASE_BRANCH = "release"
"""Name of the released method, used in place of a branch name.
"""
STANDARD = "swag-ppm-reweighted"
"""The method used if the parameters name none."""


def _parse(value: Any) -> Mechanism:
    from mechanisms.mechanism import Mechanism, parsed

    return value if isinstance(value, Mechanism) else parsed(value)


if TYPE_CHECKING:
    AnyMechanism = Mechanism
else:
    AnyMechanism = Annotated[Any, BeforeValidator(_parse)]


def _free_form(schema: dict[str, Any]) -> None:
    """Allows the mechanism's settings next to the name. Its kind defines which settings exist."""
    schema["additionalProperties"] = True
    schema["properties"].pop("mechanism")
    schema["required"] = ["name"]


class Method(BaseModel, frozen=True, extra="forbid", title="Method", json_schema_extra=_free_form):
    """One mechanism with its settings."""

    name: str = Field(
        title="Name",
        description="A method in deployments/branches.yaml, or a new name together with a kind.",
        pattern=r"^[a-z0-9][a-z0-9.-]{0,63}$",
    )
    title: str = Field(
        default="",
        title="Title",
        description="Name shown in reports. Empty: the name.",
        max_length=200,
    )
    mechanism: AnyMechanism
    token_settings: dict[str, Any] = Field(
        default={},
        title="Settings for token inputs",
        description="Settings that replace these if more than a head on cached features trains.",
    )
    unprotected: tuple[str, ...] = Field(
        default=(),
        title="Unprotected",
        description="What was chosen with the help of records, outside the accounting.",
    )
    prior: Prior | None = Field(
        default=None,
        title="Prior of the head",
        description="Starting point of the head, instead of the run's own; `titles` applies only "
        "if the run has a code list and a linear head on pooled features.",
    )
    settings_tried: int | None = Field(
        default=None,
        ge=1,
        title="Settings tried",
        description="Number of settings that these were chosen from.",
    )
    needs_titles: bool = Field(
        default=False,
        title="Needs titles",
        description="The method requires a code list; without one, `all` skips it.",
    )

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or "mechanism" in value:
            return value
        fields = {name: value[name] for name in value if name in OWN}
        settings = settings_of(value)
        if "kind" not in settings:
            raise ValueError(_no_kind(fields.get("name")))
        fields.setdefault("name", settings["kind"])
        return fields | {"mechanism": _parse(settings)}

    @model_serializer(mode="wrap")
    def _flat(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        fields = handler(self)
        return {"name": self.name, **fields.pop("mechanism"), **fields}

    @field_validator("name")
    @classmethod
    def _not_taken(cls, name: str) -> str:
        if name == RELEASE_BRANCH:
            raise ValueError(f"the name `{RELEASE_BRANCH}` is taken. Choose another")
        return name

    @property
    def shown(self) -> str:
        return self.title or self.name

    @property
    def target_epsilon(self) -> float | None:
        return getattr(self.mechanism, "target_epsilon", None)

    @property
    def delta(self) -> float | None:
        return getattr(self.mechanism, "delta", None)

    @property
    def guarantee_kind(self) -> GuaranteeKind:
        """The kind of privacy claim that a release with this method has."""
        return self.mechanism.guarantee_kind

    @property
    def needs_target_epsilon(self) -> bool:
        """Whether the noise is calibrated to the run's target epsilon and delta."""
        fixed = self.target_epsilon is not None or self.delta is not None
        return self.mechanism.needs_target_epsilon and not fixed

    def name_at(self, target_epsilon: float | None) -> str:
        """Returns the name, with the target epsilon if the noise is calibrated to it."""
        if target_epsilon is None or not self.needs_target_epsilon:
            return self.name
        return f"{self.name} at epsilon {target_epsilon:g}"

    def model_of(self, model: ModelConfig, *, has_titles: bool) -> ModelConfig:
        """Returns a run's model with the method's prior, if the data allow it."""
        possible = self.prior != "titles" or (has_titles and model.pooling == "mean")
        if self.prior is None or not possible:
            return model
        return model.model_copy(update={"prior": self.prior})


OWN = frozenset(Method.model_fields) - {"mechanism"}
"""Keys of a method that are not settings of its mechanism."""


def settings_of(body: Mapping[str, object]) -> dict[str, object]:
    """Returns the mechanism's settings from a method's flat mapping."""
    return {name: value for name, value in body.items() if name not in OWN}


def chosen(value: Any) -> Any:
    """Returns the mapping of a run's method, completed with the shipped method of that name."""
    if not isinstance(value, Mapping) or "mechanism" in value:
        return value
    base = branch_bodies().get(value.get("name", value.get("kind")))
    if base is None:
        return value
    if value.get("kind", base["kind"]) != base["kind"]:
        raise ValueError(
            f"`{base['name']}` is of kind `{base['kind']}`. Leave kind out, or choose another name"
        )
    merged = {**base, **value}
    if base.get("token_settings") and "token_settings" not in value:
        # the run's settings also override the settings on tokens
        merged["token_settings"] = base["token_settings"] | settings_of(value)
        merged["token_settings"].pop("kind", None)
    # guard: test_a_run_leaves_out_what_its_settings_took
    unprotected = [*base.get("unprotected", ()), *value.get("unprotected", ())]
    return merged | {"unprotected": tuple(dict.fromkeys(unprotected))}


def _no_kind(name: Any) -> str:
    names = list(branch_bodies())
    if name is None:
        return f"choose one of {', '.join(names)}, or specify the kind of a mechanism"
    near = difflib.get_close_matches(str(name), names, n=1)
    meant = f"Did you mean {near[0]}? " if near else ""
    return f"unknown method `{name}`. {meant}Available: {', '.join(names)}"


def method_named(name: str) -> Method:
    return standard_methods()[name]


@cache
def standard_methods() -> dict[str, Method]:
    return {name: parse_method(body, BRANCHES.name) for name, body in branch_bodies().items()}


def parse_method(body: Any, source: str) -> Method:
    """Parses a method's flat mapping. Errors name the source and the setting."""
    try:
        return Method.model_validate(body)
    except ValidationError as error:
        name = body.get("name") if isinstance(body, Mapping) else None
        place = source if name is None else f"{source}: {name}"
        raise OutOfRange(first_fault(error, place), kind="invalid-setting") from None


def first_fault(error: ValidationError, place: str) -> str:
    """Describes the first fault that pydantic found in the settings at this place."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join([place, *map(str, first["loc"])])
    return f"{where}: {first['msg'].removeprefix('Value error, ')}"
