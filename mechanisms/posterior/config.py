"""Settings of a pseudo posterior and of its storage, validated before torch is imported."""

from __future__ import annotations

from pydantic import BaseModel, Field

from mechanisms.model.config import Positive


class PseudoPosteriorConfig(BaseModel, frozen=True, extra="forbid", title="Pseudo posterior"):
    """Number of draws, the weight map, and the constant of equation 7."""

    risk_draws: int = Field(
        default=500,
        ge=1,
        le=1_000_000,
        title="Samples for risks",
        description="A record's risk is its largest |log-likelihood| over these samples.",
    )
    sensitivity_draws: int = Field(
        default=500,
        ge=1,
        le=1_000_000,
        title="Samples S for the sensitivity",
        description="A new sample exceeds the maximum over S samples with probability 1/(S+1).",
    )
    c: Positive = Field(
        default=1.0,
        le=10,
        title="Scale c of the weight map",
        description="alpha = clip(c (1 - risk) + g, 0, 1).",
    )
    g: float = Field(
        default=0.0,
        ge=-1,
        le=1,
        allow_inf_nan=False,
        title="Shift g of the weight map",
        description="See the formula of c.",
    )
    k: Positive = Field(
        default=0.95,
        lt=1,
        title="Constant k of equation 7",
        description="Target value of Delta after reweighting.",
    )


class SwagConfig(BaseModel, frozen=True, extra="forbid", title="SWAG"):
    """How the posterior is stored and scaled."""

    rank: int = Field(
        default=20,
        ge=2,
        le=1000,
        title="Rank K",
        description="Number of deviations kept for the covariance.",
    )
    std_scale: Positive = Field(
        default=1.0, le=1000, title="Standard deviation scale", description="1 is standard SWAG."
    )
