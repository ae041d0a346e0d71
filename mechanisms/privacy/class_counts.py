"""Class weights from private class counts (Rosenblatt et al. 2025, algorithm 4), with their cost
included in the claim.

The paper computes w_i = (1/p_{y_i}) / ||1/p||_1 from the true class frequencies p. These depend on
every record, but its proof of privacy (proposition 6) treats the weights as fixed. Here the counts
are released first, once, with Gaussian noise. One record is in one class, so the histogram has an
l2 sensitivity of 1. Everything computed from the noisy counts, including the weights, is
post-processing, and the release composes with the DP-SGD steps in one event.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, Field

from mechanisms.privacy.events import GaussianReleaseEvent

if TYPE_CHECKING:
    from torch import Tensor

    from mechanisms.privacy.noise import SecretStream

L2_SENSITIVITY = 1.0
"""Sensitivity of a histogram over classes to adding or removing one record."""


class ClassWeightsConfig(BaseModel, frozen=True, extra="forbid", title="Class weights"):
    """How private counts become weights."""

    noise_multiplier: float = Field(
        default=10.0,
        gt=0,
        le=1e6,
        allow_inf_nan=False,
        title="Noise of the counts",
        description="Standard deviation, in records, of the noise on each class count.",
    )
    smallest_count: float = Field(
        default=10.0,
        gt=0,
        allow_inf_nan=False,
        title="Smallest count",
        description=(
            "Noisy counts below this are raised to it, so that noise does not determine "
            "the largest weights."
        ),
    )
    power: float = Field(
        default=1.0,
        ge=0,
        le=1,
        title="Power",
        description=(
            "Weights are proportional to count^-power: 1 is the paper's inverse "
            "frequency, 0 disables weighting."
        ),
    )
    apply: Literal["before-clip", "after-clip"] = Field(
        default="after-clip",
        title="Where",
        description=(
            "`before-clip`: the paper's weighted loss, min(w, C/norm). `after-clip`: w "
            "min(1, C/norm), which still distinguishes classes if every gradient is "
            "clipped."
        ),
    )

    @property
    def event(self) -> GaussianReleaseEvent:
        return GaussianReleaseEvent(
            what="class counts",
            noise_multiplier=self.noise_multiplier,
            l2_sensitivity=L2_SENSITIVITY,
            exact=True,
        )


def noisy_counts(
    labels: Tensor, classes: int, *, event: GaussianReleaseEvent, stream: SecretStream
) -> Tensor:
    """Class counts with rounded Gaussian noise, integers as float64 [classes]. Some may be
    negative.
    """
    import torch

    std = Fraction(event.noise_multiplier) * Fraction(event.l2_sensitivity)
    counts = torch.bincount(labels, minlength=classes).double()
    return stream.add_rounded_normal_(counts, std=std, purpose="class counts", step=0)


def class_weights(noisy_counts: Tensor, config: ClassWeightsConfig) -> Tensor:
    """Weight of each class in (0, 1] from its noisy count, float32 [classes]; the largest is 1."""
    inverse = noisy_counts.clamp(min=config.smallest_count).pow(-config.power).float()
    return inverse / inverse.max()
