"""The candidate of a release: a fit that is released as it is, or a posterior that
is sampled once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from mechanisms.model.config import ModelConfig
from storage.artifacts import ArtifactRef
from storage.errors import DamagedData, StorageError
from tasks.running.stage import Context

if TYPE_CHECKING:
    from torch import Tensor

    from mechanisms.mechanism import Drawable
    from mechanisms.model.classifier import Classifier


class Candidate(BaseModel, frozen=True, extra="forbid"):
    """References and settings that determine the released model, apart from the one draw."""

    dataset: ArtifactRef
    prepared: ArtifactRef
    fitted: ArtifactRef
    mechanism: dict[str, Any] = Field(
        description="as planned, with every setting filled in; read as JSON, because an officer's "
        "machine may not know its kind"
    )
    is_sampled: bool = Field(description="each release is another draw from the fitted posterior")
    model: ModelConfig
    seed: int = Field(
        description="seed of the head's initial weights, to rebuild parts that training froze"
    )

    @property
    def artifact_digests(self) -> dict[str, str]:
        return {"dataset": self.dataset.sha256, "fit": self.fitted.sha256}

    def drawable(self, context: Context) -> Drawable:
        """Loads the fitted model from which the released parameters are drawn."""
        from mechanisms.mechanism import Drawable, Run, parsed
        from tasks.fitting.model_inputs import label_count

        run = Run(
            classes=label_count(context.store.open(self.dataset)),
            seed=self.seed,
            classifier=lambda: self.build_untrained(context),
        )
        mechanism = parsed(self.mechanism)
        model = mechanism.load(context.store.open(self.fitted), run)
        if not isinstance(model, Drawable):
            raise StorageError(
                f"a model of `{mechanism.kind}` has no parameters to release",
                kind="nothing-to-draw",
            )
        return model

    def draw(self, context: Context) -> Tensor:
        """Returns the flat parameters to release: one draw with the operating system's entropy, or
        the fit's parameters.

        A release calls this once, because a second call would draw again.
        """
        from mechanisms.privacy.entropy import system_normal

        return self.drawable(context).draw(system_normal)

    def require_draw(self, context: Context, theta: Tensor) -> None:
        """Refuses parameters that cannot be a draw of this posterior, or that are not this fit's.

        Raises:
            StorageError: they differ.
        """
        if not self.drawable(context).could_draw(theta):
            raise DamagedData(
                f"sample: its parameters are not of the planned stage {self.fitted.kind} "
                f"({self.fitted.sha256[:12]}…). "
                "Run `autocoder ledger recover`",
                kind="sample-of-another-stage",
            )

    def build_untrained(self, context: Context) -> Classifier:
        """Builds the classifier with arbitrary parameters. The prior's parameters would need a pass
        of the encoder, and every trained parameter is replaced anyway.
        """
        from tasks.fitting.model_inputs import build

        model = self.model.model_copy(update={"prior": "none"})
        return build(context, model, context.store.open(self.dataset), seed=self.seed)

    def classifier(self, context: Context, theta: Tensor) -> Classifier:
        model = self.build_untrained(context)
        model.flat.copy_(theta)
        return model

    def sensitivity_at(self, context: Context, theta: Tensor) -> float | None:
        """Measures Delta at these parameters over the training records. Returns None for a
        mechanism without such a guarantee.
        """
        if not self.is_sampled:
            return None
        from mechanisms.mechanism import Records
        from tasks.fitting.model_inputs import load_inputs

        records = Records(*load_inputs(context.store.open(self.prepared), "train"))
        return self.drawable(context).sensitivity_at(theta, records)
