"""Runs a formal retrain of anybody's records from a form of its own: a short one, in which nothing is filled in.

What the form has no field for is read from `advanced`, a YAML text in the nesting of a profile. Everything else is the
profile `formal`, and the run is that of `flows.retrain`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from flows.commands import profiles
from flows.retrain import RetrainResult, run_retrain
from flows.server.form import number_fields, with_title
from storage import strict_yaml
from storage.errors import InputError
from tasks.parameters import RetrainParameters
from tasks.running.flow_run import job

NO_LIST = "none"
"""What stands in place of a code list where nobody published one."""
_Name = Annotated[str, Field(min_length=1)]


class FormalForm(BaseModel):
    """Holds what only the operator can know of the records, and the epsilon of the data owner."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Formal release", json_schema_extra=number_fields)

    source: _Name = Field(title="Records", description="File of the records, as the worker has it: an absolute path.")
    codelist: _Name = Field(
        title="Code list", description="File of the published code list (code, title); `none` where there is none."
    )
    text_columns: tuple[_Name, ...] = Field(min_length=1, title="Text columns", description="Columns of the text.")
    label_column: _Name = Field(title="Code column", description="Column of the code.")
    population: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$",
        title="Population",
        description="Whose budget pays: the same name for the same records, always.",
    )
    target_epsilon: float = Field(
        gt=0,
        le=1000,
        allow_inf_nan=False,
        title="Target epsilon",
        description="What a release may cost one unit; the data owner decides it.",
    )
    advanced: str = Field(
        default="",
        title="Advanced (YAML)",
        description="All else, as in a profile: `data: {classification: SOC, ingest: {date_column: Day}}`; "
        "docs/parameters.md lists it.",
    )

    @model_validator(mode="after")
    def _as_a_whole(self) -> FormalForm:
        try:
            self.parameters()
        except InputError as error:
            raise ValueError(str(error)) from None
        return self

    def parameters(self) -> RetrainParameters:
        """Returns the parameters of profile `formal` with these values.

        Raises:
            InputError: names the field.
        """
        try:
            content = strict_yaml.load(self.advanced) or {}
        except yaml.YAMLError:
            raise InputError("advanced: it is not YAML. Write `section: {name: value}`") from None
        if not isinstance(content, dict):
            raise InputError("advanced: it must be a mapping of sections. Write `section: {name: value}`")
        own = {
            "data.source": self.source,
            "data.ingest.text_columns": list(self.text_columns),
            "data.ingest.label_column": self.label_column,
            "data.population": self.population,
            "formal.target_epsilon": self.target_epsilon,
        } | ({} if self.codelist == NO_LIST else {"data.codelist": self.codelist})
        extra = dict(_settings(content))
        twice = sorted(extra.keys() & {*own, "data.codelist"})
        if twice:
            raise InputError(f"advanced: {twice[0]} has a field of its own. Leave it out here")
        settings = {"release.deployment": "release/release"} | extra | own
        return profiles.parameters("formal", [f"{key}={json.dumps(value)}" for key, value in settings.items()])


def _settings(content: dict[Any, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields dotted names and values."""
    for name, value in content.items():
        if isinstance(value, dict) and value:
            yield from _settings(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


@job(
    name="retrain",
    description="Train on your own records with a formal guarantee, and plan the release. The plan is audited, then "
    "approved and released.",
)
def retrain(parameters: Annotated[FormalForm, with_title("Records and epsilon")]) -> RetrainResult:
    """Run the formal method in the worker's workspace; finished stages are reused.

    Args:
        parameters: records, code list, columns, population and epsilon; the rest as YAML.
    """
    return run_retrain(parameters.parameters, home=None)
