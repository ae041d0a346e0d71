"""Reads the values of a form as the parameters of a flow. Faults name the form's fields."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, Signature
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic_core import ErrorDetails

from flows.commands.value_faults import fault_of
from storage.errors import OutOfRange


def read(shape: Signature, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a function with this signature, from the values of its form.

    Raises:
        OutOfRange: values do not fit, in one sentence per field.
    """
    form = form_of(shape)
    try:
        found = form.model_validate(dict(given))
    except ValidationError as error:
        faults = [sentence(form, entry) for entry in error.errors(include_input=False)]
        raise OutOfRange(" ".join(faults), kind="form-values") from None
    return {name: getattr(found, name) for name in shape.parameters}


def form_of(shape: Signature) -> type[BaseModel]:
    fields: dict[str, Any] = {
        name: (
            parameter.annotation,
            ... if parameter.default is Parameter.empty else parameter.default,
        )
        for name, parameter in shape.parameters.items()
    }
    config = ConfigDict(extra="forbid", hide_input_in_errors=True, arbitrary_types_allowed=True)
    return create_model("Form", __config__=config, **fields)


def sentence(form: type[BaseModel], entry: ErrorDetails) -> str:
    """Returns what is wrong with one field. Faults of a whole section have their sentences."""
    raised = entry.get("ctx", {}).get("error")
    if isinstance(raised, ValueError):
        text = str(raised)
        return text if _is_section(form, entry["loc"]) else f"{title(form, entry['loc'])}: {text}."
    return f"{title(form, entry['loc'])} {fault_of(entry)}."


def title(form: type[BaseModel], place: tuple[int | str, ...]) -> str:
    """Returns the title that the form shows for the innermost field of a place."""
    named, section = "The form", form
    for part in place:
        field = section.model_fields.get(str(part))
        if field is None:
            return named if isinstance(part, int) else str(part)
        extra = field.json_schema_extra
        shown = extra.get("title") if isinstance(extra, dict) else None
        named = str(field.title or shown or part)
        section = _section_of(field.annotation) or section
    return named


def _is_section(form: type[BaseModel], place: tuple[int | str, ...]) -> bool:
    field = form.model_fields.get(str(place[0])) if len(place) == 1 else None
    return field is not None and _section_of(field.annotation) is not None


def _section_of(annotation: Any) -> type[BaseModel] | None:
    """Returns the section that a field holds, also if the field may be empty."""
    candidates = (annotation, *getattr(annotation, "__args__", ()))
    return next(
        (one for one in candidates if isinstance(one, type) and issubclass(one, BaseModel)), None
    )
