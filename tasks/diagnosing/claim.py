"""The claim that a diagnosis looks at, and what the accountant would say of other sensitivities."""

from __future__ import annotations

from dataclasses import dataclass

from mechanisms.privacy.events import Claim, Event
from storage.artifacts import ArtifactRef, Store
from tasks.parameters import RetrainParameters
from tasks.releasing.claims import claim, claim_at, swag_event


@dataclass(frozen=True)
class RoundClaim:
    """What was done in the released round, and what it claims for a unit of records."""

    event: Event
    claim: Claim

    @staticmethod
    def of(
        store: Store,
        parameters: RetrainParameters,
        *,
        dataset: ArtifactRef,
        posterior: ArtifactRef,
        measured: ArtifactRef,
    ) -> RoundClaim:
        """The claim of the last round of these parameters."""
        moments, figures = store.figures(posterior), store.figures(measured)
        event = swag_event(
            parameters, parameters.rounds[-1], snapshots=moments["snapshots"], rank=moments["rank"], figures=figures
        )
        return RoundClaim(event, claim(parameters, event, store.figures(dataset)))

    @property
    def epsilon(self) -> float:
        """Of a unit, in nats."""
        return self.claim.epsilon or 0.0

    @property
    def sensitivity(self) -> float:
        """Delta of one record, in nats: what leaving it out may tell, by the claim."""
        return self.claim.sensitivity or 0.0

    def epsilon_at(self, sensitivity: float) -> float:
        """Epsilon of a unit, had this been the sensitivity."""
        return claim_at(sensitivity, self.event, self.claim).epsilon or 0.0
