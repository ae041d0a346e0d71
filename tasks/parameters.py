"""Parameters of a training run, set in a profile, on the command line or in Prefect's form.

Defaults that the paper specifies are the paper's. Values out of range, unknown names and
contradictions are refused before any work starts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, field_validator, model_validator

from mechanisms.model.config import ModelConfig, OptimiserPhase, Precision
from storage.coding_index import CodingIndex, read_index
from storage.errors import Contradiction, Missing
from storage.ingest import IngestConfig, Name, read_codes
from storage.tables.inputs import files_in
from storage.tables.options import AS_IT_LOOKS, ReadOptions
from tasks.method import STANDARD, AnyMechanism, Method, chosen, method_named

_CLASSIFICATION = r"^[A-Za-z0-9 ()._-]{0,80}$"


class DataParameters(BaseModel, frozen=True, extra="forbid", title="Data"):
    """The records, and how their columns are read."""

    source: tuple[str, ...] = Field(
        title="Source",
        description="File of records: delimited text, XLSX, ODS, XLS, Parquet or JSON, possibly "
        "compressed; or several such files, or a folder of them, with the same columns.",
        min_length=1,
    )
    codelist: str | None = Field(
        default=None,
        title="Code list",
        description="CSV of the published classification (code, title). It fixes the label "
        "space; without it "
        "the observed codes do, which is recorded as not covered by epsilon.",
    )
    examples: str | None = Field(
        default=None,
        title="Coding index",
        description="Table of a published index (text, code), such as job titles: public examples "
        "on which the head is trained first, in addition to the titles. Its entries must not come "
        "from the records: no epsilon covers them.",
        exclude_if=lambda value: value is None,
    )
    examples_read: ReadOptions = Field(
        default=AS_IT_LOOKS,
        title="Reading of the coding index",
        exclude_if=lambda value: value == AS_IT_LOOKS,
    )
    classification: str = Field(
        default="",
        title="Classification",
        description=(
            "Name of the classification that the code list belongs to, such as OIICS; every coded "
            "row includes it."
        ),
        json_schema_extra={"pattern": _CLASSIFICATION},
    )
    classification_version: str = Field(
        default="",
        title="Classification version",
        description="Version of the classification, such as 2.01.",
        json_schema_extra={"pattern": _CLASSIFICATION},
    )
    population: Name = Field(
        default="default",
        title="Population",
        description="Name of the dataset. Each population has its own privacy budget.",
    )
    public: bool = Field(
        default=False,
        title="Public",
        description="The records themselves are published. Pages of results say so only if this is "
        "set.",
    )
    labels: dict[str, str | None] = Field(
        default={},
        title="Code columns planned together",
        description="`{Nature: nature.csv, Part: part.csv}`: each with its code list or null. "
        "Each column is its own release; "
        "the texts of all records are encoded once. Empty: one column, "
        "`ingest.label_column`.",
    )
    ingest: IngestConfig = Field(title="Columns and sampling")

    @field_validator("source", mode="before")
    @classmethod
    def _one_file(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("classification", "classification_version")
    @classmethod
    def _plain(cls, value: str) -> str:
        if not re.fullmatch(
            _CLASSIFICATION.strip("^$"), value
        ):  # every recipient of a bundle or of coded rows reads it
            raise ValueError(
                "a classification has up to 80 of the letters A to Z, digits, blanks and ( ) . _ -"
            )
        return value

    @field_validator("source")
    @classmethod
    def _named(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(value):
            raise ValueError("source is empty. Name the file of records")
        return value

    @property
    def sources(self) -> tuple[Path, ...]:
        """The files of records, including the files in folders."""
        return tuple(files_in([Path(file).expanduser() for file in self.source], "--data"))

    def of_label(self, column: str) -> DataParameters:
        """Returns the parameters for the release of one of `labels`."""
        ingest = IngestConfig.model_validate(self.ingest.model_dump() | {"label_column": column})
        return self.model_copy(update={"codelist": self.labels[column], "ingest": ingest})

    @property
    def codelist_path(self) -> Path | None:
        return None if self.codelist is None else Path(self.codelist).expanduser()

    @property
    def coding_index(self) -> CodingIndex | None:
        """Reads the public examples, if there are any."""
        if self.examples is None:
            return None
        return read_index(Path(self.examples).expanduser(), self.examples_read)

    @property
    def has_titles(self) -> bool:
        """Whether codes have titles, from a code list or because the codes are words themselves."""
        return self.codelist is not None or self.ingest.codes_are_names

    @property
    def complete_codelist(self) -> Path | None:
        """The code list if each of its codes is a class, observed or not."""
        return self.codelist_path if self.ingest.label_space == "codelist" else None


HEAD_RATE = 0.003
"""Default rate if only a head is fine-tuned. At the rate of a whole encoder it hardly moves."""


class LedgerParameters(BaseModel, frozen=True, extra="forbid", title="Ledger"):
    """The budget policy."""

    policy: str | None = Field(
        default=None,
        title="Policy file",
        description=(
            "Budget policy (YAML), valid from the first plan on. Empty: the current one, "
            "else the default."
        ),
    )


class BundleParameters(LedgerParameters, frozen=True, title="Ledger and bundle"):
    """The budget policy, and how the bundle is written and signed."""

    signing_key: str | None = Field(
        default=None,
        title="Signing key",
        description=(
            "File of a private P-256 key (`autocoder keys new`); empty: the workspace's, "
            "created when needed."
        ),
    )
    unsigned: bool = Field(
        default=False,
        title="Unsigned",
        description="Leave the bundle unsigned. Partners must then allow unsigned bundles.",
    )
    precision: Precision = Field(
        default="float32",
        title="Precision",
        description="Of the released weights; bfloat16 halves the bundle.",
    )
    int8: bool = Field(
        default=False,
        title="Eight bits",
        description="Add `model.int8.onnx`, the graph with the encoder in eight bits. It is a "
        "quarter of the size and faster, and its scores differ slightly. Needs an encoder with "
        "BERT's word pieces.",
    )
    licence: str | None = Field(
        default=None, title="Licence", description="SPDX name; empty: Apache 2.0."
    )
    accept_texts: str | None = Field(
        default=None,
        title="Digest of approved texts",
        description=(
            "Digest from the plan's page; required to release unpublished texts if the policy "
            "requires no signature."
        ),
        pattern=r"^[0-9a-f]{16}$",
    )

    @model_validator(mode="after")
    def _signed_in_one_way(self) -> BundleParameters:
        if self.unsigned and self.signing_key:
            raise ValueError("unsigned and signing_key contradict each other. Leave one out")
        return self


class ReleaseParameters(BundleParameters, frozen=True, title="Release"):
    """Whether and how a draw is released."""

    enabled: bool = Field(
        default=False,
        title="Release at once",
        description=(
            "Release the plan at once. Off: stop at the plan, so that it is audited "
            "before it is released."
        ),
    )
    label: Name = Field(
        default="first",
        title="Label",
        description="The same records, method and label are released once, however often it is "
        "run. Another label, like any change of records or method, makes another release, which is "
        "charged again.",
    )
    requester: str = Field(
        default="operator",
        title="Requester",
        description="Who requests the release; the ledger records it.",
        min_length=1,
        max_length=200,
        pattern=r"^[^\x00-\x1f\x7f\u0085\u2028\u2029]*$",
    )
    deployment: str | None = Field(
        default=None,
        title="Release deployment",
        description="Hand the plan to this deployment (`release/release`), which waits for the "
        "approvals that the policy requires. Empty: release in this run, which a command may do if "
        "the policy requires no approvals, and a deployment may never do.",
        pattern=r"^[^/]+/[^/]+$",
    )
    supersedes: str | None = Field(
        default=None, title="Supersedes", description="Release id that this one replaces."
    )


Epsilon = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
Delta = Annotated[
    float | None,
    Field(
        gt=0,
        lt=1,
        title="Delta",
        description="Delta of formal claims, far below one over the number of records. Empty: the "
        "profile's, or the smallest of 1e-5, a tenth over the number of records, and the policy's "
        "cap.",
    ),
]


_MOVED: Mapping[str, str] = {
    "formal.branch": "method.name",
    "formal.target_epsilon": "method.target_epsilon",
    "formal.delta": "method.delta",
    "formal.mechanism": "method",
    "formal": "method",
    "fit.seed": "seed",
    "fit.adamw": "method.fine_tune",
    "fit.sgd": "method.collect",
    "fit.swag": "method.moments",
    "fit": "method",
    "pseudo_posterior.target_epsilon": "method.target_epsilon",
    "pseudo_posterior.reweight": "method.round",
    "pseudo_posterior": "method.pseudo_posterior",
}
"""Parameters of earlier versions, and their current equivalents."""


def moved(values: Mapping[str, object]) -> list[str]:
    """Returns a sentence for each of these parameters that comes from an earlier version."""
    found = []
    for section in dict.fromkeys(name.partition(".")[0] for name in _MOVED):
        if section not in values:
            continue
        inner = values[section]
        names = inner if isinstance(inner, Mapping) else ()
        moved_names = [f"{section}.{name}" for name in names if f"{section}.{name}" in _MOVED]
        found += [f"{name} is now {_MOVED[name]}" for name in moved_names or [section]]
    return found


class RetrainParameters(BaseModel, frozen=True, extra="forbid", title="Retrain"):
    """All parameters of a training run except its workspace."""

    data: DataParameters
    model: ModelConfig = ModelConfig()
    method: Method = Field(
        default_factory=lambda: method_named(STANDARD),
        title="Method",
        description="The method that trains and releases the model: a name from "
        "deployments/branches.yaml, with settings that override those listed there.",
    )
    baselines: tuple[AnyMechanism, ...] = Field(
        default=(),
        title="Baselines",
        description="Settings of a comparison's methods that they leave open, by kind.",
    )
    seed: int = Field(
        default=20260101,
        ge=0,
        lt=2**53,
        title="Seed",
        description="Seed of every repeatable step. The release's noise has no seed.",
    )
    release: ReleaseParameters = ReleaseParameters()

    @model_validator(mode="before")
    @classmethod
    def _of_this_version(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and (old := moved(values)):
            raise ValueError("; ".join(old))
        return values

    @model_validator(mode="before")
    @classmethod
    def _rate_of_a_head(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or not _trains_head(values.get("model")):
            return values
        filled = {"method": _with_rate(values["method"])} if "method" in values else {}
        if isinstance(baselines := values.get("baselines"), list | tuple):
            filled["baselines"] = [_with_rate(settings) for settings in baselines]
        return {**values, **filled}

    @field_validator("method", mode="before")
    @classmethod
    def _chosen(cls, value: Any) -> Any:
        return chosen(value)

    @model_validator(mode="after")
    def _the_model_reads_the_data(self) -> RetrainParameters:
        if self.model.pooling == "none":
            raise ValueError(
                "model.pooling `none` does not read narratives. Set it to `mean` or `first`"
            )
        return self

    def open_settings(self, *, epochs: int) -> dict[str, object]:
        """Returns the values for settings that methods leave open, by name.

        Args:
            epochs: epochs of training without protection, if no baseline specifies them.
        """
        phase = OptimiserPhase(learning_rate=HEAD_RATE if _trains_head(self.model) else 5e-5)
        plain = phase.model_copy(update={"epochs": epochs})
        found: dict[str, object] = {"fine_tune": phase, "phase": plain}
        for mechanism in (self.method.mechanism, *self.baselines):
            found |= {
                name: getattr(mechanism, name)
                for name in mechanism.shared
                if getattr(mechanism, name) is not None
            }
        return found

    @property
    def codelist_path(self) -> Path | None:
        return self.data.codelist_path


def _trains_head(model: Any) -> bool:
    part = model.get("trainable") if isinstance(model, Mapping) else getattr(model, "trainable", "")
    return part == "head"


def _with_rate(settings: Any) -> Any:
    """Returns the method's flat mapping, with the rate for a head if it specifies none."""
    if not isinstance(settings, Mapping):
        return settings
    lacking = {
        name: {"learning_rate": HEAD_RATE, **settings[name]}
        for name in ("fine_tune", "phase")
        if isinstance(settings.get(name), Mapping)
    }
    return {**settings, **lacking}


def require_index(parameters: RetrainParameters) -> None:
    """Refuses a coding index if the model has no head that can be trained on it."""
    data, model = parameters.data, parameters.model
    index = data.coding_index
    if index is None:
        return
    if model.prior != "titles" or model.trainable != "head":
        raise Contradiction(
            "--examples: the head starts at an index only with model.prior=titles and "
            "model.trainable=head. Choose the profile formal, or leave it out",
            kind="index-needs-titles",
        )
    if data.labels:
        raise Contradiction(
            "--examples: with several --label, run a command for each",
            kind="index-of-several-labels",
        )
    if data.complete_codelist is None:
        raise Missing(
            "--examples: the codes of an index require --codelist, with all its "
            "codes as classes (data.ingest.label_space=codelist)",
            kind="index-needs-codelist",
        )
    index.labels(read_codes(data.complete_codelist, data.ingest).codes)
