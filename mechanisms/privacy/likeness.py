"""Whether two events say the same: but for rounding, or but for what a target moves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mechanisms.privacy.events import Event


def alike(event: Event | None, other: Event) -> bool:
    """Whether they are the same event but for rounding."""
    return event is not None and type(event) is type(other) and _alike(event.model_dump(), other.model_dump())


def alike_up_to(event: Event, planned: Event, moved: Event) -> bool:
    """Whether an event is as planned wherever another target moved nothing.

    Args:
        planned: of one target.
        moved: of the same settings and another target.
    """
    return _up_to(event.model_dump(), planned.model_dump(), moved.model_dump())


def _alike(found: Any, other: Any) -> bool:
    if isinstance(found, float) and isinstance(other, float):
        return math.isclose(found, other, rel_tol=1e-12)
    return _by_part(_alike, found, other, otherwise=found == other)


def _up_to(found: Any, planned: Any, moved: Any) -> bool:
    number = isinstance(found, float) and isinstance(planned, float) and isinstance(moved, float)
    return _by_part(_up_to, found, planned, moved, otherwise=found == planned or (number and planned != moved))


def _by_part(compare: Callable[..., bool], *of: Any, otherwise: bool) -> bool:
    """The comparison of every part of dumps of the same shape; of leaves, and where shapes differ, what is given."""
    if all(isinstance(one, dict) for one in of) and len({frozenset(one) for one in of}) == 1:
        return all(compare(*(one[name] for one in of)) for name in of[0])
    if all(isinstance(one, list | tuple) for one in of) and len({len(one) for one in of}) == 1:
        return all(compare(*parts) for parts in zip(*of, strict=True))
    return otherwise
