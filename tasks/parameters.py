"""Parameters of a retrain: what an operator fills in, in a profile, on the command line or in Prefect's form.

Every default that the paper states is the paper's. A value out of range, an unknown name or a contradiction is refused
before work starts.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pydantic import (
    BaseModel,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from mechanisms.model.bounded import BoundedLikelihood
from mechanisms.model.classifier import ModelConfig
from mechanisms.model.export import Precision
from mechanisms.model.training import OptimiserPhase
from mechanisms.posterior.risks import PseudoPosteriorConfig
from mechanisms.posterior.swag import SwagConfig
from mechanisms.swag_ppm import BOUNDED, ROUNDS, RoundName
from storage.ingest import IngestConfig


class DataParameters(BaseModel, frozen=True, extra="forbid", title="Data"):
    """Which records, and how their columns are read."""

    source: str = Field(
        title="Source", description="CSV, ZIP holding one CSV, Parquet or JSON Lines; of images an .npz.", min_length=1
    )
    codelist: str | None = Field(
        default=None,
        title="Code list",
        description="CSV of the published classification (code, title). It fixes the label space; without it the "
        "observed codes do, which is recorded as an unprotected input.",
    )
    classification: str = Field(
        default="",
        title="Classification",
        description="Name of the classification that the code list is of, such as OIICS; every coded row will tell it.",
        pattern=r"^[A-Za-z0-9 ()._-]{0,80}$",
    )
    classification_version: str = Field(
        default="", title="Its version", description="Such as 2.01.", pattern=r"^[A-Za-z0-9._-]{0,40}$"
    )
    population: str = Field(
        default="default",
        title="Population",
        description="Whose records these are; budgets belong to a population.",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$",
    )
    public: bool = Field(
        default=False,
        title="Public",
        description="The records themselves are published. Only then does a page of results say so.",
    )
    ingest: IngestConfig = Field(title="Columns and sampling")

    @model_validator(mode="after")
    def _each_field_has_its_list(self) -> DataParameters:
        if self.codelist is not None and self.ingest.fields:
            raise ValueError("codelist: several fields have one each: ingest.fields.NAME.codelist; leave this one out")
        return self

    @property
    def codelists(self) -> dict[str, Path | None]:
        """The file of each field's code list; that of a single field has no name."""
        named = {name: field.codelist for name, field in self.ingest.fields.items()} or {"": self.codelist}
        return {name: None if file is None else Path(file).expanduser() for name, file in named.items()}

    @property
    def whole_codelists(self) -> dict[str, Path | None]:
        """Those of them whose every code is a class, whatever records have."""
        return self.codelists if self.ingest.label_space == "codelist" else {}

    @property
    def listed(self) -> bool:
        """Whether every field has a code list."""
        return None not in self.codelists.values()


class FitParameters(BaseModel, frozen=True, extra="forbid", title="Fit"):
    """How each of the three posteriors is fitted."""

    adamw: OptimiserPhase = Field(
        default=OptimiserPhase(optimiser="adamw", learning_rate=5e-5, epochs=10, batch_size=8), title="Fine-tuning"
    )
    sgd: OptimiserPhase = Field(
        default=OptimiserPhase(optimiser="sgd", learning_rate=0.01, epochs=20, batch_size=8),
        title="SWAG collection",
        description="Constant rate; one snapshot an epoch.",
    )
    swag: SwagConfig = Field(default=SwagConfig(), title="SWAG")
    seed: int = Field(
        default=20260101, ge=0, lt=2**53, title="Seed", description="Of every repeatable step; the release has none."
    )

    @model_validator(mode="after")
    def _consistent(self) -> FitParameters:
        if self.sgd.schedule != "constant":
            raise ValueError("sgd.schedule must be `constant`: SWAG rests on a constant rate")
        if self.swag.rank > self.sgd.epochs:
            raise ValueError(
                f"swag.rank ({self.swag.rank}) exceeds the snapshots (sgd.epochs = {self.sgd.epochs}); "
                "lower the rank or raise the epochs"
            )
        return self


class Spread(BaseModel, frozen=True, extra="forbid", title="Shards"):
    """How one work is spread over workers. Where it is computed does not change what comes out."""

    shards: int = Field(
        default=1,
        ge=1,
        le=10_000,
        title="Shards",
        description="In how many parts the work goes to workers; 1: none, this run does it itself. Some two to four a "
        "worker.",
    )
    patience_seconds: float = Field(
        default=120,
        ge=0,
        le=86_400,
        allow_inf_nan=False,
        title="Patience",
        description="Seconds without any worker at the shards before this run computes one itself; 0: it works along "
        "from the start.",
    )
    attempts: int = Field(
        default=3, ge=1, le=100, title="Attempts", description="How often a shard is asked for before the run fails."
    )


class FanOut(Spread, frozen=True, extra="forbid", title="Shards"):
    """How passes over draws, and the reruns of an audit, are spread over workers."""

    shards: int = Field(
        default=1,
        ge=1,
        le=10_000,
        title="Shards",
        description="In how many parts the draws of each risk and sensitivity pass, and the reruns of an audit, go to "
        "workers; 1: none, this run computes them itself. Some two to four a worker.",
    )
    deployment: str = Field(
        default="risk-shard/risk-shard",
        title="Deployment",
        description="Whose runs compute the shards of a pass.",
        pattern=r"^[^/]+/[^/]+$",
    )


RELEASED = "release"
"""The name that stands for what a retrain releases from, where the others are a comparison's branches."""
DEMO = "demo"
"""The population of invented narratives: deployments release it without approval until a policy is in force."""


class LedgerParameters(BaseModel, frozen=True, extra="forbid", title="Ledger", hide_input_in_errors=True):
    """Which ledger, under which policy."""

    policy: str | None = Field(
        default=None,
        title="Policy file",
        description="Budget policy (YAML); in force from the first plan on. Empty: the one in force, else the default.",
    )
    ledger_url: str | None = Field(
        default=None,
        title="Ledger",
        description="SQLAlchemy URL without a password; empty: $AUTOCODER_LEDGER_URL, or ledger.db in the workspace.",
    )

    @field_validator("ledger_url")
    @classmethod
    def _no_password(cls, value: str | None) -> str | None:
        # Prefect stores parameters in clear.
        if value is not None and re.search(r"://[^/@]*:[^/@]+@", value):
            raise ValueError("leave the password out: give it in AUTOCODER_LEDGER_URL, PGPASSWORD or PGPASSFILE")
        return value


class BundleParameters(LedgerParameters, frozen=True, title="Ledger and bundle"):
    """Which ledger, under which policy, and how the bundle is written and signed."""

    signing_key: str | None = Field(
        default=None,
        title="Signing key",
        description="File of a private P-256 key (`autocoder keys new`); empty: the workspace's own, made when needed.",
    )
    signing_certificate: str | None = Field(
        default=None,
        title="Signing certificate",
        description="X.509 certificate of that key (PEM), where there is one.",
    )
    certificate_chain: tuple[str, ...] = Field(
        default=(), title="Certificate chain", description="Files of the authorities above the certificate (PEM)."
    )
    unsigned: bool = Field(
        default=False,
        title="Unsigned",
        description="Leave the bundle without a signature; a partner has to allow that.",
    )
    precision: Precision = Field(
        default="float32", title="Precision", description="Of the released weights; bfloat16 halves the bundle."
    )
    licence: str | None = Field(
        default=None, title="Licence", description="SPDX name, or a text file, which the plan pins; empty: Apache 2.0."
    )

    @model_validator(mode="after")
    def _signed_in_one_way(self) -> BundleParameters:
        if self.signing_certificate and not self.signing_key:
            raise ValueError("signing_certificate: name its private key by signing_key")
        if self.unsigned and self.signing_key:
            raise ValueError("unsigned: a signing_key is given too; leave one out")
        return self


class ReleaseParameters(BundleParameters, frozen=True, title="Release"):
    """Whether and how a draw leaves."""

    enabled: bool = Field(
        default=False,
        title="Release at once",
        description="Go on from the plan to its release. Off: stop at the plan, so that it is audited before it is "
        "released.",
    )
    label: str = Field(
        default="first",
        title="Label",
        description="The same records, method and label release once, however often it is run. Another label, like any "
        "change of records or method, is another release and spends again.",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$",
    )
    requester: str = Field(
        default="operator", title="Requester", description="Who asks, for the ledger.", min_length=1, max_length=200
    )
    deployment: str | None = Field(
        default=None,
        title="Release deployment",
        description="Hand the plan to this deployment (`release/release`), which waits for the approvals that the "
        "policy asks for; empty: release in this run, which a command may where the policy asks for none, and a "
        "deployment only of the population `demo`.",
        pattern=r"^[^/]+/[^/]+$",
    )
    supersedes: str | None = Field(default=None, title="Supersedes", description="Release id that this one replaces.")


class FormalParameters(BaseModel, frozen=True, extra="forbid", title="Formal release"):
    """A release of one formally private fit, in place of a draw by SWAG-PPM."""

    branch: str = Field(
        default="prior-descent",
        title="Branch",
        description="Which one, by its name in deployments/branches.yaml.",
        pattern=r"^[a-z0-9][a-z0-9.-]{0,63}$",
    )
    target_epsilon: float | None = Field(
        default=None,
        gt=0,
        le=1000,
        allow_inf_nan=False,
        title="Target epsilon",
        description="Of one privacy unit. Whoever is responsible for the records gives it.",
    )
    delta: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        title="Delta",
        description="Well below one over the number of records; empty: 1e-5, or the policy's cap where that is less.",
    )
    mechanism: dict[str, Any] = Field(
        default={},
        title="Settings of the mechanism",
        description="In place of the branch's own, such as `prior_std`; chosen without the records, or else the choice "
        "is no part of the epsilon.",
    )

    @model_serializer(mode="wrap")
    def _without_settings_that_are_the_branch_s(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what changes nothing: such releases keep the digests they are found by."""
        return {name: value for name, value in serialise(self).items() if name != "mechanism" or value}


class RetrainParameters(BaseModel, frozen=True, extra="forbid", title="Retrain"):
    """Everything a retrain needs, apart from where it works."""

    data: DataParameters
    model: ModelConfig = ModelConfig()
    fit: FitParameters = FitParameters()
    pseudo_posterior: PseudoPosteriorConfig = PseudoPosteriorConfig()
    formal: FormalParameters | None = Field(
        default=None,
        title="Formal release",
        description="Release one formally private fit; empty: a draw by SWAG-PPM.",
    )
    release: ReleaseParameters = ReleaseParameters()

    @model_serializer(mode="wrap")
    def _without_what_is_not_asked_for(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out a formal release that is not asked for: other methods keep the digests they are found by."""
        return {name: value for name, value in serialise(self).items() if name != "formal" or value is not None}

    @model_validator(mode="after")
    def _encoder_where_one_is_used(self) -> RetrainParameters:
        kind, pooling = self.data.ingest.kind, self.model.pooling
        if kind != "text" and pooling != "none":
            raise ValueError(f"data.ingest.kind is `{kind}`, which needs no encoder: set model.pooling=none")
        if kind == "text" and pooling == "none":
            raise ValueError("model.pooling is `none`, which reads no narratives: set data.ingest.kind=table or images")
        return self

    @model_validator(mode="after")
    def _fields_have_linear_heads(self) -> RetrainParameters:
        several = self.data.ingest.fields
        if several and not self.model.linear_head:
            raise ValueError(
                "data.ingest.fields: several fields are coded by linear heads on one frozen encoding: set "
                "model.trainable=head and model.pooling=mean"
            )
        if unknown := [name for name in self.model.prior_sentences if name not in several]:
            raise ValueError(f"model.prior_sentences: {unknown[0]} is none of data.ingest.fields")
        return self

    @property
    def rounds(self) -> tuple[RoundName, ...]:
        """The posteriors to fit, in order; the last is the one released from."""
        config = self.pseudo_posterior
        return ROUNDS["reweighted" if config.mechanism == "weighted" and config.reweight else config.mechanism]

    def bounded(self, round_name: str) -> BoundedLikelihood | None:
        """The bound on each record's log-likelihood in one of the rounds; None where there is none.

        A unit of m records costs m times what one does, and the target is the unit's.
        """
        target = self.pseudo_posterior.target_epsilon
        if round_name not in BOUNDED or target is None:
            return None
        return BoundedLikelihood.for_epsilon(target / self.data.ingest.records_per_unit)

    @property
    def source_path(self) -> Path:
        """The data file."""
        return Path(self.data.source).expanduser()

    @property
    def codelist_path(self) -> Path | None:
        """The code list of a single field, if any."""
        return None if self.data.codelist is None else Path(self.data.codelist).expanduser()
