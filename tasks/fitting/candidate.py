"""What a release takes its parameters from: a SWAG posterior, to be drawn from once, or one fit with noise in it."""

from __future__ import annotations

from pydantic import BaseModel, Field
from torch import Tensor

from mechanisms.model import checkpoint
from mechanisms.model.bounded import BoundedLikelihood
from mechanisms.model.classifier import Classifier, ModelConfig
from mechanisms.posterior import risks, swag
from mechanisms.privacy.entropy import system_normal
from storage.artifacts import ArtifactRef
from tasks.fitting.prepared import build, load_inputs
from tasks.fitting.train import load_weights
from tasks.running.stage import Context


class Candidate(BaseModel, frozen=True, extra="forbid"):
    """References and settings from which the released model follows, up to the one draw."""

    dataset: ArtifactRef
    prepared: ArtifactRef
    fitted: ArtifactRef = Field(description="a SWAG posterior, or the parameters of one fit")
    measured: ArtifactRef | None = Field(
        default=None, description="risk weights and sensitivity of a SWAG posterior; None: the fit is released as it is"
    )
    model: ModelConfig
    seed: int = Field(description="of the head's initial weights, from which a frozen part is built again")
    std_scale: float = Field(default=1.0, description="of the SWAG draw's standard deviation")
    bound: float | None = Field(default=None, description="B of a bounded likelihood, in nats; None: not bounded")

    def take(self, context: Context) -> Tensor:
        """The parameters to release, flat: one draw with the operating system's entropy, or the fit's own.

        Called once a release: whoever calls again draws again.
        """
        folder = context.store.open(self.fitted)
        if self.measured is None:
            return checkpoint.load(folder / "theta.safetensors")[0]["theta"]
        return swag.sample(swag.load(folder, std_scale=self.std_scale), normal=system_normal)

    def untrained(self, context: Context) -> Classifier:
        """The model as training found it."""
        return build(context, self.model, context.store.open(self.dataset), seed=self.seed)

    def classifier(self, context: Context, theta: Tensor) -> Classifier:
        """The model with these parameters."""
        trained = self.untrained(context)
        trained.flat.copy_(theta)
        return trained

    def sensitivity_at(self, context: Context, theta: Tensor) -> float | None:
        """Delta at these parameters over the training records; None where the guarantee does not depend on them."""
        if self.measured is None:
            return None
        records, labels = load_inputs(context.store.open(self.prepared), "train")
        weights = load_weights(context.store.open(self.measured))
        largest = risks.at_draw(self.classifier(context, theta), records, labels, weights=weights)
        return largest if self.bound is None else BoundedLikelihood(bound=self.bound).at(largest)
