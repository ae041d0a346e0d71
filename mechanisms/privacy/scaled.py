"""The same event with more noise, or less: what an audit at half of the noise runs, what a smaller release would be."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from mechanisms.errors import MechanismError
from mechanisms.privacy.events import ComposedEvent, DpSgdEvent, Event, GaussianReleaseEvent


@runtime_checkable
class LikeGaussian(Protocol):
    """An event whose noise is another, and which is told apart no better than Gaussian releases are."""

    @property
    def gaussian(self) -> Event:
        """Those."""
        ...

    def with_noise(self, factor: float) -> Event:
        """The same with so many times the noise."""
        ...


def noise_scaled(event: Event, factor: float) -> Event:
    """The same event with every noise multiplier times the factor.

    Raises:
        MechanismError: the event is none of Gaussian noise.
    """
    match event:
        case ComposedEvent():
            return event.model_copy(update={"events": tuple(noise_scaled(part, factor) for part in event.events)})
        case DpSgdEvent():
            changed = [s.model_copy(update={"noise_multiplier": factor * s.noise_multiplier}) for s in event.segments]
            return event.model_copy(update={"segments": tuple(changed)})
        case GaussianReleaseEvent():
            return event.model_copy(update={"noise_multiplier": factor * event.noise_multiplier})
        case LikeGaussian():
            return event.with_noise(factor)
        case _:
            raise MechanismError(f"event `{event.mechanism}` is none of Gaussian noise: it has no noise multiplier")
