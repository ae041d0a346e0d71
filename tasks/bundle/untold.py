"""Explains why a release reports no accuracy on its held-out records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from mechanisms.privacy.accuracy_table import counts_scale_and_accuracy
from mechanisms.privacy.claims import formal
from mechanisms.privacy.events import (
    ComposedEvent,
    DpSgdEvent,
    Event,
    GaussianReleaseEvent,
    ParallelEvent,
)
from mechanisms.privacy.gaussian_cost import gaussian_rate

Untold = Literal["no noise", "coupled", "sampled", "few"]
"""Why the accuracy on held-out records is not reported."""
REASONS: Mapping[Untold, str] = {
    "no noise": "the mechanism's guarantee is not one of Gaussian noise",
    "coupled": "sampling by code lets one record move others between the training and the held-out "
    "records. Set "
    "data.ingest.sampling to per-record",
    "sampled": "training samples its records, and budgets of such releases have no exact sum with "
    "a table. Set sampling_prob to 1",
    "few": "there are too few held-out records for the noise",
}


REASONS_FOR_PARTNERS: Mapping[str, str] = {
    "no noise": "the guarantee of its mechanism is not one of Gaussian noise",
    "coupled": "one record could move others between the training and the held-out records",
    "sampled": "training read a random sample of the records at each step, next to which a table "
    "has no exact cost",
    "few": "there were too few held-out records for the noise",
}


def untold_of(event: Event, *, sampling: str) -> Untold | None:
    """Returns why a release's event has no table of the held-out records, or None if it has one.

    Args:
        sampling: how the records were sampled, from the ingest's figures.
    """
    if isinstance(event, ParallelEvent):
        return None
    return untold_by_kind(event, sampling=sampling) or "few"


def states_scale(event: Event) -> bool:
    """Whether noisy counts of the held-out records also set the scale of the model's scores."""
    return isinstance(event, ParallelEvent) and counts_scale_and_accuracy(event.evaluation)


def untold_by_kind(training: Event, *, sampling: str) -> Untold | None:
    """Returns the reason that follows from the training's event, or None if the number of records
    decides.
    """
    gaussian = isinstance(training, DpSgdEvent | GaussianReleaseEvent | ComposedEvent)
    if not formal(training) or not gaussian:
        return "no noise"
    # guard: test_a_half_that_other_records_decide_is_told_nothing_of
    if sampling != "per-record":
        return "coupled"
    return "sampled" if gaussian_rate(training) is None else None
