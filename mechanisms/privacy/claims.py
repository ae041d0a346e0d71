"""Turns an event that ran into a claim. An unknown event is refused.

Accountants are registered by event type (`claims`), so that a new mechanism brings its own and
nothing here guesses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypedDict, TypeVar

from mechanisms.errors import MechanismError
from mechanisms.privacy import gaussian_cost
from mechanisms.privacy.accuracy_table import counts_scale_and_accuracy
from mechanisms.privacy.events import (
    Claim,
    ComposedEvent,
    DpSgdEvent,
    Event,
    GaussianReleaseEvent,
    NonPrivateEvent,
    ParallelEvent,
    SwagPpmEvent,
    is_exact,
)
from mechanisms.privacy.numerics import epsilon_text, failure_probability

E = TypeVar("E", bound=Event)
Accountant = Callable[..., Claim]
TUNED = "hyperparameters were not chosen on these records, or their choice is listed as unprotected"
ONE_DRAW = "one sample is released; each further one costs as much again"
_ACCOUNTANTS: dict[type[Event], Accountant] = {}
_FORMAL: set[type[Event]] = set()


class ProtectedUnit(TypedDict):
    """Fields of a claim that say whom it protects, whatever the accountant."""

    privacy_unit: str
    max_records_per_unit: int
    unprotected_inputs: tuple[str, ...]


def claims(
    event_type: type[E], *, formal: bool = False
) -> Callable[[Callable[..., Claim]], Callable[..., Claim]]:
    """Register the decorated function as the accountant of one event type; `formal`: its claim is
    stated at a delta.
    """

    def register(accountant: Callable[..., Claim]) -> Callable[..., Claim]:
        _ACCOUNTANTS[event_type] = accountant
        if formal:
            _FORMAL.add(event_type)
        return accountant

    return register


def formal(event: Event) -> bool:
    """Checks whether the claim of this event is stated at a delta."""
    return type(event) in _FORMAL


def of_one_record(claim: Claim) -> float | None:
    """The epsilon that evidence about one unit more or less is held against: what is claimed for
    that, else epsilon.
    """
    return claim.epsilon if claim.epsilon_add_remove is None else claim.epsilon_add_remove


def epsilon_of_one_replaced(
    event: Event, *, delta: float | None, records_per_unit: int
) -> float | None:
    """Returns the epsilon of one unit's values replaced, at the delta of the event's claim.

    By the noise where it is Gaussian and replacement has a closed form, and the claim's own epsilon
    where that is for a replacement, as that of a posterior's draw is (2 Delta). Otherwise a
    replacement is one removal and one addition, so that (epsilon, delta) for each gives (2 epsilon,
    (1 + e^epsilon) delta). None: no finite epsilon.
    """
    of_noise = isinstance(event, DpSgdEvent | GaussianReleaseEvent | ComposedEvent | ParallelEvent)
    if delta is None and of_noise:
        raise MechanismError(
            f"event `{event.mechanism}` makes a formal claim, which requires a delta",
            kind="delta-missing",
        )
    if (
        delta is not None
        and of_noise
        and (records_per_unit == 1 or gaussian_cost.gaussian_rate(event) is not None)
    ):
        return gaussian_cost.cost(
            event, delta=delta, records_per_unit=records_per_unit
        ).epsilon_replace_one

    def claim_at(smaller: float | None) -> Claim:
        unit = {
            "privacy_unit": "unit",
            "max_records_per_unit": records_per_unit,
            "unprotected_inputs": (),
        }
        return _ACCOUNTANTS[type(event)](event, delta=smaller, unit=unit)

    def epsilon_at(smaller: float) -> float:
        if of_noise:
            return gaussian_cost.coarse_epsilon(event, smaller, records_per_unit=records_per_unit)
        return claim_at(smaller).epsilon or 0.0

    if not of_noise:
        stated = claim_at(delta)
        if stated.neighbouring_relation == "replace-one" or stated.guarantee_kind != "formal":
            return stated.epsilon
    assert delta is not None
    largest = epsilon_at(delta)
    while largest < 300:  # beyond, no float holds so small a delta
        epsilon = epsilon_at(delta / (1 + math.exp(largest)))
        if epsilon <= largest:
            return 2 * epsilon
        largest = 1.1 * epsilon
    return None


def claim_of(
    event: Event,
    *,
    delta: float | None,
    privacy_unit: str,
    max_records_per_unit: int,
    unprotected_inputs: tuple[str, ...],
    public_inputs: tuple[str, ...] = (),
) -> Claim:
    """The claim that this event supports, for one privacy unit.

    Args:
        delta: of a formal claim, added to e^epsilon times a probability; None for mechanisms that
            do not quantify it.
        privacy_unit: whose presence is protected: a record, or a unit that may own several.
        max_records_per_unit: bound m on the records of one unit, enforced before training.
        unprotected_inputs: what reached the release from the data outside the mechanism; stated
            with the claim.
        public_inputs: what reached it from elsewhere than the records, and so costs nothing; stated
            as an assumption.

    Raises:
        MechanismError: no accountant supports this event, or delta is missing, superfluous or not
            in [0, 1).
    """
    accountant = _ACCOUNTANTS.get(type(event))
    if accountant is None:
        raise MechanismError(
            f"no accountant supports event `{event.mechanism}`; supported: "
            + ", ".join(sorted(t.model_fields["mechanism"].default for t in _ACCOUNTANTS)),
            kind="no-accountant",
        )
    if max_records_per_unit < 1:
        raise MechanismError(
            f"max_records_per_unit is {max_records_per_unit}, but it must be at least 1",
            kind="records-per-unit",
        )
    if delta is not None and not 0 <= delta < 1:
        raise MechanismError(
            f"delta is {delta}, but it must be at least 0 and below 1", kind="delta-out-of-range"
        )
    claim = accountant(
        event,
        delta=delta,
        unit={
            "privacy_unit": privacy_unit,
            "max_records_per_unit": max_records_per_unit,
            "unprotected_inputs": unprotected_inputs,
        },
    )
    stated = tuple(f"public, read without cost: {line}" for line in public_inputs)
    replaced = epsilon_of_one_replaced(event, delta=delta, records_per_unit=max_records_per_unit)
    return claim.model_copy(
        update={"assumptions": (*claim.assumptions, *stated), "epsilon_replaced": replaced}
    )


@claims(NonPrivateEvent)
def _non_private(event: NonPrivateEvent, *, delta: float | None, unit: ProtectedUnit) -> Claim:
    """Nothing is claimed, whatever delta was asked for."""
    return Claim(
        guarantee_kind="none",
        neighbouring_relation="add-remove",
        accountant="none: training without protection",
        assumptions=(
            (
                "trained on the records without protection: no bound on what it gives away; never "
                "releasable"
            ),
        ),
        **unit,
    )


@claims(SwagPpmEvent)
def _swag_ppm(event: SwagPpmEvent, *, delta: float | None, unit: ProtectedUnit) -> Claim:
    """Claims 2 Delta for one draw from the pseudo posterior (Chew et al., section 2.1); refuses a
    delta.

    With xi(theta | D) proportional to exp(sum_i alpha_i l_i(theta)) xi(theta), taking record d away
    multiplies the density by exp(-alpha_d l_d(theta)) and the normalising constant by at most as
    much again:

    | neighbours                     | log of the density ratio   | bound     |
    |--------------------------------|----------------------------|-----------|
    | leave-one-out, any l (paper)   | in [-2 Delta, 2 Delta]     | 2 Delta   |
    | leave-one-out, l <= 0          | in [-Delta, Delta]         | Delta     |
    | one record replaced, l <= 0    | in [-2 Delta, 2 Delta]     | 2 Delta   |

    For l <= 0 the factor is in [1, e^Delta] and the normalising constant's in [1, e^Delta] too, and
    they pull apart, hence Delta. A unit of m records: its part of the log-likelihood is in [-m
    Delta, 0], because max_theta |sum_i alpha_i l_i| <= sum_i Delta_i <= m Delta, so both bounds are
    multiplied by m.
    """
    return pseudo_posterior(
        event.sensitivity,
        event.sensitivity_draws,
        delta=delta,
        unit=unit,
        over=f"the {event.sensitivity_draws} samples taken",
        sampled="SWAG approximates the posterior from which a sample is private; the claim is "
        "conditional on that "
        f"approximation ({event.snapshots} snapshots, rank {event.rank})",
        evidence="a model that has memorised them has small losses on them, and so a small Delta",
    )


def pseudo_posterior(
    sensitivity: float,
    draws: int,
    *,
    delta: float | None,
    unit: ProtectedUnit,
    over: str,
    sampled: str,
    evidence: str,
) -> Claim:
    """Claims 2 Delta for one draw, however the posterior is sampled (the proof is that of
    `_swag_ppm`).

    Args:
        over: the draws that Delta is a maximum over.
        sampled: what is assumed of the sampler.
        evidence: why a low epsilon is none.

    Raises:
        MechanismError: a delta was given. The method does not quantify one, and stating it would
            pretend so.
    """
    if delta is not None:
        raise MechanismError(
            "the pseudo posterior does not quantify delta (it is O(n^-1/2)). Leave delta out.",
            kind="no-delta",
        )
    m = int(unit["max_records_per_unit"])
    group = (
        ""
        if m == 1
        else f"; a unit owns at most {m} records, so the records' bound is multiplied by {m}"
    )
    return Claim(
        guarantee_kind="asymptotic-local",
        epsilon=2 * m * sensitivity,
        delta=None,
        delta_text="O(n^-1/2), not quantified",
        sensitivity=sensitivity,
        epsilon_add_remove=m * sensitivity,
        draws=draws,
        mc_failure_prob=failure_probability(draws),
        neighbouring_relation="add-remove",
        accountant="2 Delta (Chew et al., section 2.1; Savitsky et al. 2022)",
        assumptions=(
            "epsilon = 2 Delta is the paper's, for leave-one-out neighbours; as log-likelihoods "
            "of a classifier are "
            "<= 0, it also bounds replacing one record, and Delta alone bounds leaving one "
            f"out{group}",
            "local: Delta is estimated on this data set, a maximum over the records held, not a "
            "supremum over "
            "possible records or data sets; it approaches the global one only as n grows",
            f"Delta is a maximum over {over}, not a supremum over parameters: a new sample "
            "exceeds it with "
            f"probability 1/(S+1) = {failure_probability(draws):.2g}",
            sampled,
            (
                "the risk weights alpha, Delta and the constant k are computed from the data and "
                "taken as fixed"
            ),
            ONE_DRAW,
            (
                "a low epsilon of this kind is no evidence that the training records cannot be "
                "told "
                f"apart: {evidence}"
            ),
        ),
        **unit,
    )


def gaussian(
    event: Event,
    *,
    delta: float | None,
    unit: ProtectedUnit,
) -> Claim:
    """A finite-sample (epsilon, delta) from the noise that ran, sampling included.

    Raises:
        MechanismError: delta is missing, or no finite epsilon comes out.
    """
    if delta is None:
        raise MechanismError(
            f"event `{event.mechanism}` makes a formal claim, which requires a delta",
            kind="delta-missing",
        )
    m = int(unit["max_records_per_unit"])
    figures = gaussian_cost.cost(event, delta=delta, records_per_unit=m)
    if not math.isfinite(figures.epsilon):
        raise MechanismError(
            f"event `{event.mechanism}` has no finite epsilon at delta {delta:g}. "
            "Increase the noise",
            kind="no-finite-epsilon",
        )
    replaced = (
        f"replacing one {'record' if m == 1 else 'unit'} costs epsilon "
        f"{epsilon_text(figures.epsilon_replace_one)} at the same "
        "delta"
        if figures.epsilon_replace_one is not None
        else f"group privacy of up to {m} records a unit, by mixtures of Gaussians"
    )
    return Claim(
        guarantee_kind="formal",
        epsilon=figures.epsilon,
        delta=delta,
        epsilon_add_remove=figures.epsilon,
        neighbouring_relation="add-remove",
        accountant=gaussian_cost.accountant(event),
        assumptions=(
            f"neighbours differ by one unit added or removed; {replaced}",
            *_how_read(event.of_training),
            *_of_halves(event),
            TUNED,
            _arithmetic(event),
        ),
        **unit,
    )


def _arithmetic(event: Event) -> str:
    """Returns what is assumed of numbers: of integers and rounded noise, only that the key's stream
    is random.
    """
    if is_exact(event):
        return (
            "sums are of integers and noise is a Gaussian rounded without error, from a secret "
            "AES-256 stream, which "
            "is assumed to look random: the claim covers the released bits, if a record's "
            "gradient depends on that record only"
        )
    return "noise is sampled in floating point: attacks on low-order bits are not covered"


def _how_read(event: Event) -> tuple[str, str]:
    """Returns what is assumed of how records came into it, and of their number."""
    if any(step.sampling_prob < 1 for step in _descents(event)):
        return (
            "every record is sampled independently anew at every step (Poisson), and the samples "
            "are not published; "
            "the parameters after every step may be",
            (
                "the number of records n, which sets the sampling probability and the gradient's "
                "scale, is public"
            ),
        )
    return (
        (
            "every record is in every step: nothing is sampled, and the parameters after every "
            "step "
            "may be published"
        ),
        "the number of records n, which sets the scale of what is computed, is public",
    )


def _of_halves(event: Event) -> tuple[str, ...]:
    """Returns what the maximum over training and test records rests on."""
    if not isinstance(event, ParallelEvent):
        return ()
    decides = "its unit" if event.split == "unit" else "itself"
    tables = (
        "two noisy tables, one for the scale of the model's scores and one for its accuracy, whose "
        "costs are added"
        if counts_scale_and_accuracy(event.evaluation)
        else "what the event says was counted of them with noise"
    )
    return (
        "apart from the unprotected inputs, the test records enter the release only through "
        f"{tables}: whether a record is a training or a test record follows from {decides} alone, "
        "so that it pays the larger of both parts (parallel composition)",
    )


def _descents(event: Event) -> Iterator[DpSgdEvent]:
    if isinstance(event, DpSgdEvent):
        yield event
    for part in event.events if isinstance(event, ComposedEvent) else ():
        yield from _descents(part)


for _event_type in (DpSgdEvent, GaussianReleaseEvent, ComposedEvent, ParallelEvent):
    claims(_event_type, formal=True)(gaussian)
