"""Settings of the released files other than the model, which are signed with the plan."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, Field

from mechanisms.model.config import Precision
from storage.artifacts import digest
from storage.datasets import load_codes
from storage.errors import Contradiction
from storage.ledger import ReleasePlan
from storage.ledger.content import anticipated
from storage.ledger.policy import RegistryStatement
from tasks.bundle import licence
from tasks.bundle.statement import repeated_fields
from tasks.bundle.texts import encoder_digest, own_texts
from tasks.fitting.candidate import Candidate
from tasks.fitting.ingest import ingest_figures
from tasks.fitting.prior import public_of_lexicon
from tasks.parameters import BundleParameters
from tasks.running.stage import Context

DIGEST = "^[0-9a-f]{64}$"
"""A SHA-256, in hex."""


class Output(BaseModel, frozen=True, extra="forbid"):
    """Settings of the released files other than the model, which are signed with the plan."""

    precision: Precision = "float32"
    int8: bool = False
    licence: str = Field(default=licence.OURS, pattern=r"^[A-Za-z0-9.+-]{1,64}$")
    """An SPDX name."""
    encoder: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """Digest of the encoder in the released model."""
    public: tuple[Annotated[str, Field(pattern=DIGEST)], ...] = ()
    """Digests of the stages that embedded public texts for the released model's word features."""
    registry: RegistryStatement | None = None
    """The policy's statement for a registry, which the bundle repeats."""
    texts: tuple[str, ...] = ()
    """Every text of the bundle that is neither published nor a short name or number."""

    @staticmethod
    def from_settings(settings: BundleParameters) -> Output:
        return Output(
            precision=settings.precision,
            int8=settings.int8,
            licence=licence.resolve(settings.licence),
        )

    def with_texts(
        self, context: Context, candidate: Candidate, plan: ReleasePlan, **changed: Any
    ) -> Output:
        """Returns the settings, with changes, and the texts of this plan's bundle."""
        output, store = self.model_copy(update=changed), context.store
        texts = own_texts(
            load_codes(store.open(candidate.dataset)),
            ingest_figures(store, candidate.dataset),
            candidate.model.encoder,
            statement=repeated_fields(anticipated(plan, audit=None)),
            label=plan.release_label,
            registry=output.registry,
        )
        return output.model_copy(update={"texts": texts})

    def with_contents(self, context: Context, candidate: Candidate, plan: ReleasePlan) -> Output:
        """Returns the settings with the encoder and the texts that a bundle of this
        plan contains.
        """
        contents: dict[str, object] = {"encoder": encoder_digest(candidate.model.encoder)}
        if context.copies is None:  # a release uses the plan's
            contents["public"] = _public_stages(context, candidate)
        return self.with_texts(context, candidate, plan, **contents)

    @property
    def texts_digest(self) -> str:
        """The first 16 digits of a digest of the texts, which confirms that
        someone read them.
        """
        return digest(list(self.texts))[:16]

    def apply_to(self, settings: BundleParameters) -> BundleParameters:
        """Applies the planned output to the releasing run's settings. Refuses
        settings that request a different output.
        """
        if settings.precision not in ("float32", self.precision):
            raise Contradiction(
                f"precision: the approved plan has {self.precision}. Plan again to change it",
                kind="another-precision",
            )
        if settings.int8 and not self.int8:
            raise Contradiction(
                "int8: the approved plan does not include it. Plan again with release.int8=true",
                kind="plan-without-int8",
            )
        # guard: test_a_licence_other_than_the_one_signed
        if settings.licence is not None and licence.resolve(settings.licence) != self.licence:
            raise Contradiction(
                f"licence: the approved plan has {self.licence}. Plan again with "
                f"release.licence={settings.licence}",
                kind="another-licence",
            )
        return settings.model_copy(
            update={"precision": self.precision, "int8": self.int8, "licence": self.licence}
        )


def _public_stages(context: Context, candidate: Candidate) -> tuple[str, ...]:
    public = public_of_lexicon(candidate.model, load_codes(context.store.open(candidate.dataset)))
    steps = [] if public is None else public.steps
    stages = [stage for step in steps if (stage := step.find(context.store)) is not None]
    for stage in stages:
        context.store.open(stage)  # a damaged one is refused before anyone signs it
    return tuple(sorted({stage.sha256 for stage in stages}))
