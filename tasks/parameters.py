"""Parameters of a retrain: what an operator fills in, in a profile, on the command line or in Prefect's form.

Every default is the paper's. A value out of range, an unknown name or a contradiction is refused before work starts.
"""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from mechanisms.classifier import ModelConfig
from mechanisms.pseudo_posterior import PseudoPosteriorConfig
from mechanisms.swag import SwagConfig
from mechanisms.training import OptimiserPhase
from storage.ingest import IngestConfig


class DataParameters(BaseModel):
    """Which records, and how their columns are read."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Data")

    source: str = Field(title="Source", description="CSV, ZIP holding one CSV, or Parquet.", min_length=1)
    codelist: str | None = Field(
        default=None,
        title="Code list",
        description="CSV of the published classification (code, title). It fixes the label space; without it the "
        "observed codes do, which is recorded as an unprotected input.",
    )
    population: str = Field(
        default="default",
        title="Population",
        description="Whose records these are; budgets belong to a population.",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$",
    )
    ingest: IngestConfig = Field(title="Columns and sampling")


class FitParameters(BaseModel):
    """How each of the three posteriors is fitted."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Fit")

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


class ReleaseParameters(BaseModel):
    """Whether and how a draw leaves."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Release", hide_input_in_errors=True)

    enabled: bool = Field(default=True, title="Release a draw", description="Off: stop after the release plan.")
    label: str = Field(
        default="first",
        title="Label",
        description="The same records, method and label release once, however often it is run. Another label, like any "
        "change of records or method, is another release and spends again.",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$",
    )
    requester: str = Field(default="operator", title="Requester", min_length=1, max_length=200)
    approvals: tuple[str, ...] = Field(
        default=(), title="Approvals", description="Names of those who approved, where the policy asks for some."
    )
    supersedes: str | None = Field(default=None, title="Supersedes", description="Release id that this one replaces.")
    policy: str | None = Field(
        default=None, title="Policy file", description="Budget policy (YAML); empty: the default."
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


class RetrainParameters(BaseModel):
    """Everything a retrain needs, apart from where it works."""

    model_config = ConfigDict(frozen=True, extra="forbid", title="Retrain")

    data: DataParameters
    model: ModelConfig = ModelConfig()
    fit: FitParameters = FitParameters()
    pseudo_posterior: PseudoPosteriorConfig = PseudoPosteriorConfig()
    release: ReleaseParameters = ReleaseParameters()

    @property
    def rounds(self) -> tuple[str, ...]:
        """The posteriors to fit, in order."""
        return ("base", "weighted", "reweighted") if self.pseudo_posterior.reweight else ("base", "weighted")

    @property
    def source_path(self) -> Path:
        """The data file."""
        return Path(self.data.source).expanduser()

    @property
    def codelist_path(self) -> Path | None:
        """The code list, if any."""
        return None if self.data.codelist is None else Path(self.data.codelist).expanduser()
