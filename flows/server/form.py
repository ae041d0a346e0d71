"""Defines the forms of Prefect's page: a few fields that only the operator can fill in, and one
YAML text for the rest.

Fields have a position, because the page would otherwise show them in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Self
from uuid import UUID

import yaml
from pydantic import BaseModel, ConfigDict, Field, create_model, model_validator

from flows.commands import profiles
from flows.server.settings import home_of
from storage import strict_yaml
from storage.errors import Contradiction, InputError, OutOfRange, Unknown, Unreadable
from storage.ingest import Name
from storage.worded_text import Worded
from tasks.parameters import RetrainParameters
from tasks.running.engine import of_environment
from tasks.running.run import Run
from tasks.running.stage import Context, Device

NO_LIST = "none"
"""Value for the code list if there is no published one."""


def with_title(title: str) -> Any:
    """Returns the metadata for the title of a flow's parameter."""
    return Field(json_schema_extra={"title": title})


Workspace = Annotated[str | None, with_title("Workspace")]
DeviceChoice = Annotated[Device, with_title("Device")]
PlanFile = Annotated[
    str, Worded("^[/~]", "an absolute path, since workers run elsewhere"), with_title("Plan")
]
_Name = Annotated[str, Field(min_length=1)]


def number_fields(schema: dict[str, Any]) -> None:
    """Number the properties of a section in the order of the source; `advanced` comes last."""
    fields = schema.get("properties", {})
    for position, name in enumerate(sorted(fields, key="advanced".__eq__)):
        fields[name]["position"] = position


def section(model: type[BaseModel]) -> type[BaseModel]:
    """Returns a model as a section of a form. Rules across its fields are checked
    when it becomes parameters.
    """
    config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=number_fields)
    config["title"] = model.model_config.get("title") or model.__name__
    fields: dict[str, Any] = {
        name: (info.rebuild_annotation(), info) for name, info in model.model_fields.items()
    }
    return create_model(
        f"{model.__name__}Section", __config__=config, __doc__=model.__doc__, **fields
    )


class WorkerSettings(BaseModel, frozen=True, extra="forbid"):
    """Where a run is executed: section `run` of the YAML text."""

    home: str | None = None
    """Workspace folder, or None for the worker's (AUTOCODER_HOME)."""
    device: Device = "auto"
    engine: str = Field(default_factory=of_environment)
    """Engine that computes the parts of large stages."""
    processes: int = Field(default=1, ge=1, le=64)
    """Number of processes that share one fit of an encoder."""

    def context(self, run: Run) -> Context:
        return Context(run=run, **self.model_dump() | {"home": str(home_of(self.home))})


class RecordsForm(BaseModel):
    """The facts on the records that only the operator can know. Everything else
    comes from a profile and YAML.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        title="Retrain",
        json_schema_extra=number_fields,
        hide_input_in_errors=True,  # the text may contain a ledger's password
    )
    PROFILE: ClassVar[str] = "osha-head"
    """Profile that the YAML text changes, unless it names another profile."""
    FLOW: ClassVar[str] = "estimated"
    """Name in `flows.deployed` of the flow for the release that the form describes."""

    source: _Name = Field(
        title="Records", description="File of the records: an absolute path on the worker."
    )
    codelist: _Name = Field(
        title="Code list",
        description="File of the published code list (code, title), or the word none if there "
        "is none.",
    )
    text_columns: tuple[_Name, ...] = Field(
        min_length=1, title="Text columns", description="Columns of the text."
    )
    label_column: _Name = Field(title="Code column", description="Column of the code.")
    population: Name = Field(
        title="Population",
        description="Name of the dataset; its budget is charged. Always use the same name for the "
        "same records. Up to 64 letters, digits, blanks, dots, hyphens and underscores.",
    )
    advanced: str = Field(
        default="",
        title="Advanced (YAML)",
        description="Any other setting, as in a profile, such as "
        "data: {classification: SOC, ingest: {date_column: Day}}. "
        "profile: NAME starts from a profile, and run: {device: cuda} says where to run. "
        "The page Parameters of the documentation lists every setting.",
    )

    @model_validator(mode="after")
    def _as_a_whole(self) -> Self:
        try:
            self.parameters()
            self.run()
        except InputError as error:
            raise ValueError(str(error)) from None
        return self

    def _content(self) -> dict[str, Any]:
        try:
            content = strict_yaml.load(self.advanced) or {}
        except yaml.YAMLError:
            raise Unreadable(
                "Advanced (YAML): it is not YAML. Write `section: {name: value}`",
                kind="advanced-not-yaml",
            ) from None
        if not isinstance(content, dict):
            raise Unreadable(
                "Advanced (YAML): it must be a mapping of sections. Write `section: {name: value}`",
                kind="advanced-not-a-mapping",
            )
        return content

    @classmethod
    def fields(cls) -> dict[str, str]:
        """Returns the parameter that each field sets. Their names are equal."""
        by_name = {parameter.rpartition(".")[2]: parameter for parameter in profiles.OPTIONS}
        return {name: by_name[name] for name in cls.model_fields if name in by_name}

    def profile(self) -> str | None:
        """Name of the profile that the text changes, or None if the text contains every setting."""
        return self._content().get("profile", self.PROFILE)

    def parameters(self) -> RetrainParameters:
        """Returns the profile's parameters with the changes of the YAML text and
        the fields. Errors name the field.
        """
        content = self._content()
        for name in ("run", "profile"):
            content.pop(name, None)
        profile = self.profile()
        fields = self.model_dump(mode="json")
        field_values = {key: fields[name] for name, key in self.fields().items()}
        settings = dict(_settings(content))
        twice = sorted(settings.keys() & field_values.keys())
        if twice:
            raise Contradiction(
                f"Advanced (YAML): {twice[0]} has its own field. Leave it out here",
                kind="own-field",
                option=twice[0],
            )
        if self.codelist == NO_LIST:
            del field_values["data.codelist"]
        if profile is None:
            for key, value in field_values.items():
                profiles.put(content, key, value)
            return profiles.validate(
                RetrainParameters, content, where="Advanced (YAML): ", options={}
            )
        if profile not in profiles.profile_names():
            raise Unknown(
                f"Advanced (YAML): unknown profile {profile!r}. Choose from "
                f"{', '.join(profiles.profile_names())}",
                kind="unknown-form-profile",
            )
        data = profiles.load_profile(profile).get("data", {})
        if field_values["data.population"] == data.get("population"):
            del field_values[
                "data.population"
            ]  # so that it counts as the profile's, which does not apply to other columns
        values = {"release.deployment": "release/release"} | settings | field_values
        return profiles.parameters(profile, (), values, where="Advanced (YAML): ", options={})

    def run(self) -> WorkerSettings:
        """Returns where the run is executed. Errors name the setting."""
        return profiles.validate(
            WorkerSettings, self._content().get("run") or {}, where="Advanced (YAML): run: "
        )

    @classmethod
    def of(cls, parameters: RetrainParameters, worker: WorkerSettings) -> Self:
        """Returns the form for parameters, such as a command's. Each is in a
        field or in the text.
        """
        content = parameters.model_dump(mode="json")
        fields = {name: _take(content, key) for name, key in cls.fields().items()}
        if len(fields["source"]) > 1:
            raise OutOfRange(
                "--data: a form takes one file of records. Join the files, and specify the result.",
                kind="one-file",
            )
        (fields["source"],) = fields["source"]
        fields["codelist"] = fields["codelist"] or NO_LIST
        content |= {"profile": None, "run": worker.model_dump(mode="json", exclude_unset=True)}
        return cls.model_validate(
            fields | {"advanced": yaml.safe_dump(content, sort_keys=False, allow_unicode=True)}
        )


class FormalForm(RecordsForm):
    """Adds the epsilon, which the data owner decides."""

    model_config = ConfigDict(title="Formal release")
    PROFILE: ClassVar[str] = "formal"
    FLOW: ClassVar[str] = "formal"

    def parameters(self) -> RetrainParameters:
        chosen = super().parameters()
        # guard: test_a_formal_form_makes_a_formal_claim
        if chosen.method.guarantee_kind != "formal":
            raise Contradiction(
                f"Advanced (YAML): the claim of {chosen.method.name} is an estimate, and this form "
                "is for formal ones. Use retrain/osha-head, or choose another method",
                kind="estimated-claim",
            )
        return chosen

    target_epsilon: float = Field(
        gt=0,
        le=1000,
        allow_inf_nan=False,
        title="Target epsilon",
        description="Target ε per unit; the data owner decides it.",
    )


def form_of(parameters: RetrainParameters, worker: WorkerSettings) -> RecordsForm:
    """Returns the form for these parameters, by kind of release."""
    form = FormalForm if parameters.method.guarantee_kind == "formal" else RecordsForm
    return form.of(parameters, worker)


def _settings(content: Mapping[Any, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, dict) and value:
            yield from _settings(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def _take(content: dict[str, Any], key: str) -> Any:
    *path, last = key.split(".")
    for part in path:
        content = content[part]
    return content.pop(last)


def parameters_of_run(form: RecordsForm, run: Run) -> RetrainParameters:
    """Returns the parameters of a run's form. A deployment's population and settings are not
    applied to other records.

    A profile drops settings that apply only to its own records. A deployment that contains all
    settings cannot.
    """
    theirs = {} if run.deployment is None else _values_of_deployment(run.deployment)
    names = ("text_columns", "label_column", "population")
    changed = [
        name
        for name in names
        if name in theirs and list_of(theirs[name]) != list_of(getattr(form, name))
    ]
    titles = {name: str(type(form).model_fields[name].title) for name in names}
    if changed and changed[-1] != "population" and "population" in theirs:
        raise Contradiction(
            f"Population: the form has other columns ({titles[changed[0]]}) than this deployment, "
            "whose population belongs to its own records. Specify the population of your records.",
            kind="other-columns",
            column=changed[0],
        )
    if changed and form.profile() is None:
        raise Contradiction(
            f"{titles[changed[0]]}: the form differs from this deployment, whose settings "
            "are fixed for its records. For other records use retrain/formal, or "
            "register them with `autocoder train --deploy`.",
            kind="fixed-setting",
            option=changed[0],
        )
    return form.parameters()


def _values_of_deployment(deployment: str) -> dict[str, object]:
    """Returns the form's values in a deployment.
    `prefect.runtime.deployment.parameters` has those of the run.
    """
    from flows.server.client import server

    with server() as client:
        values = client.read_deployment(UUID(deployment)).parameters.get("parameters")
    return values if isinstance(values, dict) else {}


def list_of(value: Any) -> list[Any]:
    """Returns a list, also for a single column."""
    return [value] if isinstance(value, str) else list(value)
