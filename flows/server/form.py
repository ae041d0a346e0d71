"""Defines the form of a retrain on Prefect's page: data, columns, population, mechanism, epsilon, and "Advanced".

Its fields are those of `RetrainParameters`, in the order of their use and with the same checks. Fields have a position,
without which the page shows them in any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

from prefect.runtime import deployment
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator
from pydantic.fields import FieldInfo

from flows.server.client import server
from mechanisms.model.config import ModelConfig
from mechanisms.posterior.config import PseudoPosteriorConfig
from storage.errors import InputError
from storage.ingest import IngestConfig
from tasks.parameters import DataParameters, FitParameters, FormalParameters, ReleaseParameters, RetrainParameters
from tasks.running.stage import Device

_COLUMNS = ("text_columns", "label_column", "date_column")
_RECORDS = ("source", "codelist", "population", "classification", "classification_version", "public")


def with_title(title: str) -> Any:
    """Returns the metadata that titles a parameter of a flow, in place of its name."""
    return Field(json_schema_extra={"title": title})


Workspace = Annotated[str | None, with_title("Workspace")]
DeviceChoice = Annotated[Device, with_title("Device")]
PlanFile = Annotated[str, Field(min_length=1), with_title("Plan")]


def number_fields(schema: dict[str, Any]) -> None:
    """Number the properties of a section in the order of the source."""
    for position, field in enumerate(schema.get("properties", {}).values()):
        field["position"] = position


def section(model: type[BaseModel], *, without: tuple[str, ...] = (), title: str | None = None) -> type[BaseModel]:
    """Returns a model as a section of the form: its fields with positions, without those that the form has elsewhere.

    Rules across fields are checked when the form becomes parameters.
    """
    fields: dict[str, Any] = {}
    for name, info in model.model_fields.items():
        if name not in without:
            fields[name] = _field(info)
    config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=number_fields)
    config["title"] = title or model.model_config.get("title") or model.__name__
    made: Any = create_model(f"{model.__name__}Section", __config__=config, __doc__=model.__doc__, **fields)
    return made


def _field(info: FieldInfo) -> tuple[Any, FieldInfo]:
    """Returns a field, with positions in its sections too."""
    kind = info.annotation
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        own = section(kind)
        if isinstance(info.default, BaseModel):
            changed = FieldInfo.merge_field_infos(info, annotation=own, default=_as(own, info.default))
        else:
            changed = FieldInfo.merge_field_infos(info, annotation=own)
        return own, changed
    if get_origin(kind) not in (None, dict) and any(
        isinstance(a, type) and issubclass(a, BaseModel) for a in get_args(kind)
    ):
        raise TypeError(f"the form cannot show an optional section: {info.title}")
    return info.rebuild_annotation(), info


def _as(kind: Any, value: BaseModel) -> BaseModel:
    values: dict[str, Any] = {name: getattr(value, name) for name in kind.model_fields}
    for name, own in values.items():
        if isinstance(own, BaseModel):
            values[name] = _as(kind.model_fields[name].annotation, own)
    return kind.model_construct(**values)


def _copied(model: type[BaseModel], name: str, **changes: Any) -> Any:
    """Copies a field of a model for the form itself."""
    return FieldInfo.merge_field_infos(model.model_fields[name], **changes)


SamplingSection = section(IngestConfig, without=_COLUMNS, title="Sampling and other columns")
ModelSection = section(ModelConfig)
FitSection = section(FitParameters)
RiskSection = section(PseudoPosteriorConfig, without=("mechanism", "target_epsilon"), title="Risks and weights")
FormalSection = section(FormalParameters, without=("target_epsilon",), title="Formal fit")
ReleaseSection = section(ReleaseParameters, without=("enabled",), title="Plan and release")


class Advanced(BaseModel):
    """Holds what a profile sets: sampling, encoder, fits, weights, ledger and bundle."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Advanced", json_schema_extra=number_fields)

    sampling: SamplingSection = Field(default=SamplingSection(), title="Sampling and other columns")  # type: ignore[valid-type]
    model: ModelSection = Field(default=ModelSection(), title="Model")  # type: ignore[valid-type]
    fit: FitSection = Field(default=FitSection(), title="Fit")  # type: ignore[valid-type]
    pseudo_posterior: RiskSection = Field(default=RiskSection(), title="Risks and weights")  # type: ignore[valid-type]
    formal: FormalSection = Field(default=FormalSection(), title="Formal fit")  # type: ignore[valid-type]
    release: ReleaseSection = Field(default=ReleaseSection(), title="Plan and release")  # type: ignore[valid-type]


class RetrainForm(BaseModel):
    """Holds records, population, mechanism and epsilon of a retrain."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Retrain", json_schema_extra=number_fields)

    source: str = _copied(DataParameters, "source", title="Records")
    codelist: str | None = _copied(DataParameters, "codelist")
    text_columns: tuple[str, ...] = _copied(IngestConfig, "text_columns")
    label_column: str = _copied(IngestConfig, "label_column")
    date_column: str | None = _copied(IngestConfig, "date_column")
    population: str = _copied(DataParameters, "population")
    classification: str = _copied(DataParameters, "classification")
    classification_version: str = _copied(DataParameters, "classification_version")
    public: bool = _copied(DataParameters, "public")
    mechanism: Literal["weighted", "censored", "both", "formal"] = Field(
        default="weighted",
        title="Mechanism",
        description="`formal`: one fit with a formal guarantee at the target epsilon. `weighted`: SWAG-PPM as "
        "published, epsilon is measured. `censored`: each record's log-likelihood is bounded by half of the target. "
        "`both`: weighted first, then bounded.",
    )
    target_epsilon: float | None = Field(
        default=None,
        gt=0,
        le=1000,
        allow_inf_nan=False,
        title="Target epsilon",
        description="What a release may cost one unit; the data owner decides it. All mechanisms "
        "but `weighted` need it; for `weighted` it is searched for by fits on the records. Empty: as measured.",
    )
    release: bool = _copied(ReleaseParameters, "enabled")
    advanced: Advanced = Field(default=Advanced(), title="Advanced")

    @model_validator(mode="after")
    def _as_a_whole(self) -> RetrainForm:
        try:
            self.parameters()
        except ValidationError as error:
            problems = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_input=False)]
            raise ValueError("; ".join(problems)) from None
        return self

    def parameters(self) -> RetrainParameters:
        """Returns the parameters; empty fields keep their defaults."""
        given = self.model_dump(mode="json", exclude_unset=True)
        own = given.pop("advanced", {})
        own.setdefault("release", {}).update({"enabled": given["release"]} if "release" in given else {})
        formal, aim = self.mechanism == "formal", {"target_epsilon": self.target_epsilon}
        ingest = own.pop("sampling", {}) | {name: given[name] for name in _COLUMNS if name in given}
        data = {name: given[name] for name in _RECORDS if name in given} | {"ingest": ingest}
        settled, risks = own.pop("formal", {}), own.pop("pseudo_posterior", {})
        return RetrainParameters.model_validate(
            own
            | {"data": data}
            | {"pseudo_posterior": risks | ({} if formal else {"mechanism": self.mechanism, **aim})}
            | ({"formal": settled | aim} if formal else {})
        )

    @staticmethod
    def values(content: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the form's values for parameters in the nesting of a profile."""
        sections = {name: dict(content[name]) for name in ("model", "fit") if name in content}
        risks, release = dict(content.get("pseudo_posterior", {})), dict(content.get("release", {}))
        formal, data = content.get("formal"), dict(content["data"])
        ingest = dict(data.pop("ingest"))
        aimed = (formal or {}).get("target_epsilon", risks.pop("target_epsilon", None))
        mechanism = "formal" if formal is not None else risks.pop("mechanism", None)
        for name in ("mechanism", "target_epsilon"):
            risks.pop(name, None)
        columns = {name: ingest.pop(name) for name in _COLUMNS if name in ingest}
        sections |= {"sampling": ingest, "pseudo_posterior": risks}
        if formal is not None:
            sections["formal"] = {name: value for name, value in formal.items() if name != "target_epsilon"}
        at_once = {"release": release.pop("enabled")} if "enabled" in release else {}
        sections["release"] = release
        return (
            data
            | columns
            | ({} if mechanism is None else {"mechanism": mechanism})
            | ({} if aimed is None else {"target_epsilon": aimed})
            | at_once
            | {"advanced": {name: values for name, values in sections.items() if values}}
        )

    @staticmethod
    def of(parameters: RetrainParameters) -> RetrainForm:
        """Returns the form of given parameters, such as those of a command."""
        return RetrainForm.model_validate(RetrainForm.values(parameters.model_dump(mode="json")))


def with_own_population(parameters: RetrainParameters) -> RetrainParameters:
    """Returns the parameters without what the deployment says of its own records, where the run has others.

    Other columns, or another population, drop `public`, the split date, the sentence of the titles and the release at
    once, as far as they are the deployment's.

    Raises:
        InputError: the form has other columns, but the population or classification of the deployment.
        StorageError: the server does not answer.
    """
    theirs = _values_of_deployment()
    if theirs is None:
        return parameters
    data, ingest, model = parameters.data, parameters.data.ingest, parameters.model
    sampling, head = (_section_of(theirs, name) for name in ("sampling", "model"))
    columns = {"text_columns": list(ingest.text_columns), "label_column": ingest.label_column}
    changed = [name for name, value in columns.items() if name in theirs and list_of(theirs[name]) != list_of(value)]
    if {name: field["label_column"] for name, field in (sampling.get("fields") or {}).items()} != {
        name: field.label_column for name, field in ingest.fields.items()
    }:
        changed.append("fields")
    unchanged = [
        name for name in ("population", "classification") if theirs.get(name) and theirs[name] == getattr(data, name)
    ]
    if changed and unchanged:
        raise InputError(
            f"{unchanged[0]}: the form has other columns ({changed[0]}) than this deployment, whose "
            f"{' and '.join(unchanged)} belong to its own records. Name those of your records."
        )
    if not changed and data.population == theirs.get("population", data.population):
        return parameters
    values = parameters.model_dump(mode="json", exclude_unset=True)
    if data.public and theirs.get("public"):
        del values["data"]["public"]
    if parameters.release.enabled and theirs.get("release"):
        del values["release"]["enabled"]
    if ingest.train_before and str(ingest.train_before) == str(sampling.get("train_before")):
        del values["data"]["ingest"]["train_before"]
    if model.prior_sentence and model.prior_sentence == head.get("prior_sentence"):
        del values["model"]["prior_sentence"]
    return RetrainParameters.model_validate(values)


def _values_of_deployment() -> dict[str, Any] | None:
    """Returns the form's values in the deployment of this run; `deployment.parameters` are those of the run itself."""
    if deployment.id is None:
        return None
    with server() as client:
        values = client.read_deployment(deployment.id).parameters.get("parameters")
    return values if isinstance(values, dict) else None


def _section_of(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Returns a section of `advanced`, or an empty one."""
    return (values.get("advanced") or {}).get(name) or {}


def list_of(value: Any) -> list[Any]:
    """Returns a list, also of one column."""
    return [value] if isinstance(value, str) else list(value)
