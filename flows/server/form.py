"""The form of a retrain on Prefect's page: data, columns, population, mechanism and epsilon; all else under "Advanced".

Its fields are those of `RetrainParameters`, in the order of their use and with the same checks. Fields have a position,
without which the page shows them in any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args, get_origin

from prefect.runtime import deployment
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator
from pydantic.fields import FieldInfo

from mechanisms.model.classifier import ModelConfig
from mechanisms.posterior.risks import PseudoPosteriorConfig
from storage.errors import InputError
from storage.ingest import IngestConfig
from tasks.parameters import DataParameters, FitParameters, FormalParameters, ReleaseParameters, RetrainParameters
from tasks.running.stage import Device

_COLUMNS = ("text_columns", "label_column", "date_column")
_RECORDS = ("source", "codelist", "population", "classification", "classification_version", "public")


def titled(title: str) -> Any:
    """What gives a parameter of a flow its title; Prefect has its name there."""
    return Field(json_schema_extra={"title": title})


Workspace = Annotated[str | None, titled("Workspace")]
OnDevice = Annotated[Device, titled("Device")]
PlanFile = Annotated[str, Field(min_length=1), titled("Plan")]


def in_order(schema: dict[str, Any]) -> None:
    """Give the properties of a section the order in which they are written."""
    for position, field in enumerate(schema.get("properties", {}).values()):
        field["position"] = position


def section(model: type[BaseModel], *, without: tuple[str, ...] = (), title: str | None = None) -> type[BaseModel]:
    """A model as a section of the form: the same fields with positions, but those that the form has elsewhere.

    What fields have to do with each other is checked when the whole form becomes parameters.
    """
    fields: dict[str, Any] = {}
    for name, info in model.model_fields.items():
        if name not in without:
            fields[name] = _field(info)
    config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=in_order)
    config["title"] = title or model.model_config.get("title") or model.__name__
    made: Any = create_model(f"{model.__name__}Section", __config__=config, __doc__=model.__doc__, **fields)
    return made


def _field(info: FieldInfo) -> tuple[Any, FieldInfo]:
    """A field, its own sections with positions too."""
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
        raise TypeError(f"a section that may be absent: {info.title}")
    return info.rebuild_annotation(), info


def _as(kind: Any, value: BaseModel) -> BaseModel:
    values: dict[str, Any] = {name: getattr(value, name) for name in kind.model_fields}
    for name, own in values.items():
        if isinstance(own, BaseModel):
            values[name] = _as(kind.model_fields[name].annotation, own)
    return kind.model_construct(**values)


def _copied(model: type[BaseModel], name: str, **changes: Any) -> Any:
    """A field of a model, for the form itself."""
    return FieldInfo.merge_field_infos(model.model_fields[name], **changes)


SamplingSection = section(IngestConfig, without=_COLUMNS, title="Sampling and other columns")
ModelSection = section(ModelConfig)
FitSection = section(FitParameters)
RiskSection = section(PseudoPosteriorConfig, without=("mechanism", "target_epsilon"), title="Risks and weights")
FormalSection = section(FormalParameters, without=("target_epsilon",), title="Formal fit")
ReleaseSection = section(ReleaseParameters, without=("enabled",), title="Plan and release")


class Advanced(BaseModel):
    """What a profile settles: sampling, encoder, fits, weights, ledger and bundle."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Advanced", json_schema_extra=in_order)

    sampling: SamplingSection = Field(default=SamplingSection(), title="Sampling and other columns")  # type: ignore[valid-type]
    model: ModelSection = Field(default=ModelSection(), title="Model")  # type: ignore[valid-type]
    fit: FitSection = Field(default=FitSection(), title="Fit")  # type: ignore[valid-type]
    pseudo_posterior: RiskSection = Field(default=RiskSection(), title="Risks and weights")  # type: ignore[valid-type]
    formal: FormalSection = Field(default=FormalSection(), title="Formal fit")  # type: ignore[valid-type]
    release: ReleaseSection = Field(default=ReleaseSection(), title="Plan and release")  # type: ignore[valid-type]


class RetrainForm(BaseModel):
    """Which records, whose they are, and what a release of them may cost."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Retrain", json_schema_extra=in_order)

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
        description="What a release may cost one unit; whoever is responsible for the records gives it. All mechanisms "
        "but `weighted` need it; for `weighted` it is searched for by fits on the records. Empty: as measured.",
    )
    release: bool = _copied(ReleaseParameters, "enabled")
    advanced: Advanced = Field(default=Advanced(), title="Advanced")

    @model_validator(mode="after")
    def _as_a_whole(self) -> RetrainForm:
        try:
            self.parameters()
        except ValidationError as error:
            told = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_input=False)]
            raise ValueError("; ".join(told)) from None
        return self

    def parameters(self) -> RetrainParameters:
        """What the form asks for; fields that nobody filled in keep their defaults."""
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
        """The form's values of parameters as a profile has them, or as they are dumped."""
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
        """Parameters as the form, such as a command's."""
        return RetrainForm.model_validate(RetrainForm.values(parameters.model_dump(mode="json")))


def refuse_borrowed_names(parameters: RetrainParameters) -> None:
    """No deployment lends its population and classification to other columns than its own, as no profile does.

    Raises:
        InputError: the form's columns were changed, and whose they are was not.
    """
    own = (deployment.parameters or {}).get("parameters") if deployment.id else None
    if not isinstance(own, Mapping):
        return
    data, ingest = parameters.data, parameters.data.ingest
    columns = {"text_columns": list(ingest.text_columns), "label_column": ingest.label_column}
    changed = [name for name, value in columns.items() if name in own and list_of(own[name]) != list_of(value)]
    theirs = ((own.get("advanced") or {}).get("sampling") or {}).get("fields") or {}
    if {name: field["label_column"] for name, field in theirs.items()} != {
        name: field.label_column for name, field in ingest.fields.items()
    }:
        changed.append("fields")
    kept = [name for name in ("population", "classification") if own.get(name) and own[name] == getattr(data, name)]
    if changed and kept:
        raise InputError(
            f"{kept[0]}: the form names other columns ({changed[0]}) than this deployment's, whose "
            f"{' and '.join(kept)} are of its own records; say whose these are, and what they are coded by"
        )


def list_of(value: Any) -> list[Any]:
    """One column is a list of one."""
    return [value] if isinstance(value, str) else list(value)
