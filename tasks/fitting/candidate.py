"""Holds the candidate of a release: a SWAG posterior, to be drawn from once, or one fit with noise
in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, Field

from mechanisms.model.config import ModelConfig
from storage.artifacts import ArtifactRef
from storage.errors import StorageError
from tasks.running.stage import Context

if TYPE_CHECKING:
    from torch import Tensor

    from mechanisms.model.classifier import Classifier


class Candidate(BaseModel, frozen=True, extra="forbid"):
    """Holds the references and settings from which the released model follows, up to the one draw."""

    dataset: ArtifactRef
    prepared: ArtifactRef
    fitted: ArtifactRef = Field(description="a SWAG posterior, or the parameters of one fit")
    measured: ArtifactRef | None = Field(
        default=None,
        description=(
            "risk weights and sensitivity of a SWAG posterior; None: the fit is released as it is"
        ),
    )
    model: ModelConfig
    seed: int = Field(
        description="of the head's initial weights, from which a frozen part is built again"
    )
    std_scale: float = Field(default=1.0, description="of the standard deviation of SWAG's sample")

    @property
    def artifact_digests(self) -> dict[str, str]:
        if self.measured is None:
            return {"dataset": self.dataset.sha256, "fit": self.fitted.sha256}
        digests = {"dataset": self.dataset, "posterior": self.fitted, "sensitivity": self.measured}
        return {name: ref.sha256 for name, ref in digests.items()}

    @property
    def is_sampled(self) -> bool:
        """A release draws from it; another one is released as it was fitted."""
        return self.measured is not None

    def take(self, context: Context) -> Tensor:
        """Returns the parameters to release, flat: one draw with the operating system's entropy, or
        the fit's.

        A release calls this once: a second call draws again.
        """
        from mechanisms.model import checkpoint
        from mechanisms.posterior import swag
        from mechanisms.privacy.entropy import system_normal

        folder = context.store.open(self.fitted)
        if self.measured is None:
            return checkpoint.load(folder / "theta.safetensors")[0]["theta"]
        return swag.sample(swag.load(folder, std_scale=self.std_scale), normal=system_normal)

    def require_draw(self, context: Context, theta: Tensor) -> None:
        """Refuses parameters that cannot be a draw of this posterior, or are not those of this fit.

        Raises:
            StorageError: they differ.
        """
        import torch

        from mechanisms.model import checkpoint
        from mechanisms.posterior import swag

        folder = context.store.open(self.fitted)
        if self.measured is None:
            possible = torch.equal(checkpoint.load(folder / "theta.safetensors")[0]["theta"], theta)
        else:
            possible = swag.within_reach(swag.load(folder, std_scale=self.std_scale), theta)
        if not possible:
            raise StorageError(
                f"sample: its parameters are not of the planned stage {self.fitted.kind} "
                f"({self.fitted.sha256[:12]}…). "
                "Run `autocoder ledger recover`"
            )

    def build_untrained(self, context: Context) -> Classifier:
        """Builds the classifier with other parameters than the fit's: those of its prior would cost
        a pass of the encoder, and every parameter that training moved is replaced.
        """
        from tasks.fitting.model_inputs import build

        model = self.model.model_copy(update={"prior": "none"})
        return build(context, model, context.store.open(self.dataset), seed=self.seed)

    def classifier(self, context: Context, theta: Tensor) -> Classifier:
        model = self.build_untrained(context)
        model.flat.copy_(theta)
        return model

    def sensitivity_at(self, context: Context, theta: Tensor) -> float | None:
        """Measures Delta at these parameters over the training records; None without such a
        guarantee.
        """
        from mechanisms.posterior import risks
        from tasks.fitting.model_inputs import load_inputs
        from tasks.fitting.train import load_weights

        if self.measured is None:
            return None
        records, labels = load_inputs(context.store.open(self.prepared), "train")
        weights = load_weights(context.store.open(self.measured))
        return risks.at_draw(self.classifier(context, theta), records, labels, weights=weights)
