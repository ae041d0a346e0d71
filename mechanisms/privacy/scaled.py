"""Scales an event's noise, for an audit at half the noise or for a smaller release."""

from __future__ import annotations

from mechanisms.errors import MechanismError
from mechanisms.privacy.events import ComposedEvent, DpSgdEvent, Event, GaussianReleaseEvent


def noise_scaled(event: Event, factor: float) -> Event:
    """The event with every noise multiplier multiplied by the factor; refuses events without
    Gaussian noise.
    """
    match event:
        case ComposedEvent():
            return event.model_copy(
                update={"events": tuple(noise_scaled(part, factor) for part in event.events)}
            )
        case DpSgdEvent():
            changed = [
                s.model_copy(update={"noise_multiplier": factor * s.noise_multiplier})
                for s in event.segments
            ]
            return event.model_copy(update={"segments": tuple(changed)})
        case GaussianReleaseEvent():
            return event.model_copy(update={"noise_multiplier": factor * event.noise_multiplier})
        case _:
            raise MechanismError(
                f"event `{event.mechanism}` has no Gaussian noise, so it has no noise multiplier",
                kind="no-noise-multiplier",
            )
