"""A method: a mechanism with its settings, under the name that profiles, commands and reports use.

It is written flat, in a profile as in `deployments/branches.yaml`:

    method: {name: prior-descent, target_epsilon: 5}
    method: {kind: dp-sgd, learning_rate: 0.01, epochs: 4}

A name of that file brings the settings that stand there; what is written beside it replaces them.
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
"""Names what a training run releases, next to the names of a comparison's branches."""
STANDARD = "swag-ppm-reweighted"
"""The method of parameters that name none."""


def _parse(value: Any) -> Mechanism:
    from mechanisms.mechanism import Mechanism, parsed

    return value if isinstance(value, Mechanism) else parsed(value)


if TYPE_CHECKING:
    AnyMechanism = Mechanism
else:
    AnyMechanism = Annotated[Any, BeforeValidator(_parse)]


def _free_form(schema: dict[str, Any]) -> None:
    """The settings of the mechanism stand beside the name; which there are, its kind says."""
    schema["additionalProperties"] = True
    schema["properties"].pop("mechanism")
    schema["required"] = ["name"]


class Method(BaseModel, frozen=True, extra="forbid", title="Method", json_schema_extra=_free_form):
    """Names one mechanism with its settings."""

    name: str = Field(
        title="Name",
        description="Of a method in deployments/branches.yaml, or your own, with its kind.",
        pattern=r"^[a-z0-9][a-z0-9.-]{0,63}$",
    )
    title: str = Field(
        default="",
        title="Title",
        description="As reports show it; empty: the name.",
        max_length=200,
    )
    mechanism: AnyMechanism
    token_settings: dict[str, Any] = Field(
        default={},
        title="Settings on tokens",
        description="Settings that differ where more than a head on cached features trains.",
    )
    unprotected: tuple[str, ...] = Field(
        default=(),
        title="Unprotected",
        description="What its settings took from records outside the accounting.",
    )
    prior: Prior | None = Field(
        default=None,
        title="Its prior",
        description="Where its head starts, in place of the run's own; `titles` only where the "
        "run has a code list and a linear head on pooled features.",
    )
    settings_tried: int | None = Field(
        default=None,
        ge=1,
        title="Settings tried",
        description="Settings that its own were chosen among.",
    )
    needs_titles: bool = Field(
        default=False,
        title="Needs titles",
        description="Without a code list there is no such method: `all` leaves it out.",
    )

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or "mechanism" in value:
            return value
        own = {name: value[name] for name in value if name in OWN}
        settings = settings_of(value)
        if "kind" not in settings:
            raise ValueError(_no_kind(own.get("name")))
        own.setdefault("name", settings["kind"])
        return own | {"mechanism": _parse(settings)}

    @model_serializer(mode="wrap")
    def _flat(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        own = handler(self)
        return {"name": self.name, **own.pop("mechanism"), **own}

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
        """The kind of claim that a release of it has."""
        return self.mechanism.guarantee_kind

    @property
    def needs_target_epsilon(self) -> bool:
        """Whether its noise is solved for the run's target epsilon and delta."""
        fixed = self.target_epsilon is not None or self.delta is not None
        return self.mechanism.needs_target_epsilon and not fixed

    def name_at(self, target_epsilon: float | None) -> str:
        """Returns its name, with the target that its noise is solved for."""
        if target_epsilon is None or not self.needs_target_epsilon:
            return self.name
        return f"{self.name} at epsilon {target_epsilon:g}"

    def model_of(self, model: ModelConfig, *, has_titles: bool) -> ModelConfig:
        """Returns a run's model, with the method's prior where the data allow it."""
        possible = self.prior != "titles" or (has_titles and model.pooling == "mean")
        if self.prior is None or not possible:
            return model
        return model.model_copy(update={"prior": self.prior})


OWN = frozenset(Method.model_fields) - {"mechanism"}
"""What stands beside the settings of the mechanism."""


def settings_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of the mechanism in a method as it is written."""
    return {name: value for name, value in body.items() if name not in OWN}


def chosen(value: Any) -> Any:
    """Returns a run's method as it is written, with what the method of its name has beside it."""
    if not isinstance(value, Mapping) or "mechanism" in value:
        return value
    base = branch_bodies().get(value.get("name", value.get("kind")))
    if base is None:
        return value
    if value.get("kind", base["kind"]) != base["kind"]:
        raise ValueError(
            f"`{base['name']}` is of kind `{base['kind']}`. Leave kind out, or choose another name"
        )
    whole = {**base, **value}
    if base.get("token_settings") and "token_settings" not in value:
        # what the run says replaces the settings on tokens too
        whole["token_settings"] = base["token_settings"] | settings_of(value)
        whole["token_settings"].pop("kind", None)
    # guard: test_a_run_leaves_out_what_its_settings_took
    stated = [*base.get("unprotected", ()), *value.get("unprotected", ())]
    return whole | {"unprotected": tuple(dict.fromkeys(stated))}


def _no_kind(name: Any) -> str:
    names = list(branch_bodies())
    if name is None:
        return f"name one of {', '.join(names)}, or give the kind of a mechanism"
    near = difflib.get_close_matches(str(name), names, n=1)
    meant = f"Did you mean {near[0]}? " if near else ""
    return f"there is no method `{name}`. {meant}There are {', '.join(names)}"


def method_named(name: str) -> Method:
    return standard_methods()[name]


@cache
def standard_methods() -> dict[str, Method]:
    return {name: parse_method(body, BRANCHES.name) for name, body in branch_bodies().items()}


def parse_method(body: Any, source: str) -> Method:
    """Returns a method as it is written; a refusal names the source and the setting."""
    try:
        return Method.model_validate(body)
    except ValidationError as error:
        name = body.get("name") if isinstance(body, Mapping) else None
        place = source if name is None else f"{source}: {name}"
        raise OutOfRange(first_fault(error, place), kind="invalid-setting") from None


def first_fault(error: ValidationError, place: str) -> str:
    """Words the first fault that pydantic found in the settings at this place."""
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join([place, *map(str, first["loc"])])
    return f"{where}: {first['msg'].removeprefix('Value error, ')}"
