"""Computes the claim of an event that ran. Unknown events are refused.

Accountants are registered by event type (`claims`), so that a new mechanism supplies its own and no
cost is guessed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypedDict, TypeVar

from mechanisms.errors import MechanismError
from mechanisms.privacy import gaussian_cost
from mechanisms.privacy.accuracy_table import counts_scale_and_accuracy
from mechanisms.privacy.events import (
    CONVOLUTION_ERROR,
    LEAST_DELTA_OF_SAMPLES,
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
    """Fields of a claim that describe the protected unit, for every accountant."""

    privacy_unit: str
    max_records_per_unit: int
    unprotected_inputs: tuple[str, ...]


def claims(
    event_type: type[E], *, formal: bool = False
) -> Callable[[Callable[..., Claim]], Callable[..., Claim]]:
    """Registers the decorated function as the accountant of one event type.

    Args:
        formal: whether its claims are made at a delta that is chosen. A pure claim is not: it has
            delta 0 at any choice, and its `delta_text` says why.
    """

    def register(accountant: Callable[..., Claim]) -> Callable[..., Claim]:
        _ACCOUNTANTS[event_type] = accountant
        if formal:
            _FORMAL.add(event_type)
        return accountant

    return register


def formal(event: Event) -> bool:
    """Whether claims of this event are made at a delta that is chosen."""
    return type(event) in _FORMAL


def of_one_record(claim: Claim) -> float | None:
    """The epsilon to which evidence about adding or removing one unit is compared: the claim's
    add/remove epsilon if there is one, otherwise its epsilon.
    """
    return claim.epsilon if claim.epsilon_add_remove is None else claim.epsilon_add_remove


def epsilon_of_one_replaced(
    event: Event, *, delta: float | None, records_per_unit: int
) -> float | None:
    """Epsilon for replacing one unit's values, at the delta of the event's claim.

    For Gaussian noise with a closed form for replacement, the noise determines it. If the claim's
    own epsilon is for replacement, as for a draw from a posterior (2 Delta), that is the result.
    Otherwise, replacing is removing and adding, so that (epsilon, delta) for each gives (2 epsilon,
    (1 + e^epsilon) delta). None means that no finite epsilon is known.
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
        claim = claim_at(delta)
        if claim.neighbouring_relation == "replace-one" or claim.guarantee_kind != "formal":
            return claim.epsilon
        if claim.delta == 0 and claim.epsilon is not None:
            return 2 * claim.epsilon  # removing a record and adding one, each without a delta
    assert delta is not None
    largest = epsilon_at(delta)
    while largest < 300:  # beyond this, no float can represent such a small delta
        smaller = delta / (1 + math.exp(largest))
        if of_noise and smaller < LEAST_DELTA_OF_SAMPLES:
            return None
        epsilon = epsilon_at(smaller)
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
        delta: additive term of the (epsilon, delta) guarantee; None for mechanisms that do not
            quantify it.
        privacy_unit: whose presence is protected: a record, or a unit that may have several
            records.
        max_records_per_unit: bound m on the records of one unit, enforced before training.
        unprotected_inputs: data that reached the release outside the mechanism, listed in the
            claim.
        public_inputs: data that reached the release from other sources than the records, and so
            costs nothing. Listed as an assumption.

    Raises:
        MechanismError: no accountant supports this event, delta is missing, superfluous or not in
            [0, 1), or a claim with delta 0 does not say why.
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
    if claim.delta == 0 and not claim.delta_text:
        raise MechanismError(
            f"event `{event.mechanism}` has a claim with delta 0, which must say in `delta_text` "
            "why nothing exceeds epsilon. Let its accountant set both",
            kind="delta-unexplained",
        )
    public_assumptions = tuple(f"public, read without cost: {line}" for line in public_inputs)
    replaced = epsilon_of_one_replaced(event, delta=delta, records_per_unit=max_records_per_unit)
    return claim.model_copy(
        update={
            "assumptions": (*claim.assumptions, *public_assumptions),
            "epsilon_replaced": replaced,
        }
    )


@claims(NonPrivateEvent)
def _non_private(event: NonPrivateEvent, *, delta: float | None, unit: ProtectedUnit) -> Claim:
    """No guarantee is claimed at any delta."""
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

    With xi(theta | D) proportional to exp(sum_i alpha_i l_i(theta)) xi(theta), removing record d
    multiplies the density by exp(-alpha_d l_d(theta)), and the normalising constant by at most the
    same factor:

    | neighbours                     | log of the density ratio   | bound     |
    |--------------------------------|----------------------------|-----------|
    | leave-one-out, any l (paper)   | in [-2 Delta, 2 Delta]     | 2 Delta   |
    | leave-one-out, l <= 0          | in [-Delta, Delta]         | Delta     |
    | one record replaced, l <= 0    | in [-2 Delta, 2 Delta]     | 2 Delta   |

    For l <= 0 the factor is in [1, e^Delta], the factor of the normalising constant is also in [1,
    e^Delta], and the two partly cancel, hence Delta. A unit of m records contributes a
    log-likelihood in [-m Delta, 0], because max_theta |sum_i alpha_i l_i| <= sum_i Delta_i <= m
    Delta, so both bounds are multiplied by m.
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
    """Claims 2 Delta for one draw, for any sampler of the posterior (with the proof of
    `_swag_ppm`).

    Args:
        over: description of the draws over which Delta is the maximum.
        sampled: assumption about the sampler.
        evidence: why a small epsilon is no evidence of privacy.

    Raises:
        MechanismError: a delta was passed, which this method does not quantify.
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
    """A finite-sample (epsilon, delta) computed from the noise that ran, including sampling.

    Raises:
        MechanismError: delta is missing, or no epsilon is finite.
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
            *_composition(event),
            _arithmetic(event),
        ),
        **unit,
    )


def _composition(event: Event) -> tuple[str, ...]:
    """Assumption about how sampled steps are composed. Without sampling there is a closed form."""
    if gaussian_cost.gaussian_rate(event) is not None:
        return ()
    return (
        "the sampled steps are composed in floating point, with an allowance of "
        f"{CONVOLUTION_ERROR:g} in delta: three times the largest error that was measured, which "
        "is not a proof",
    )


def _arithmetic(event: Event) -> str:
    """Assumption about arithmetic. For integers with rounded noise it is only that the stream of
    the key is random.
    """
    if is_exact(event):
        descends = any(True for _ in _descents(event.of_training))
        contribution = "a record's gradient" if descends else "what a record adds to a sum"
        return (
            "sums are of integers and noise is a Gaussian rounded without error, from a secret "
            "AES-256 stream, which "
            f"is assumed to look random: the claim covers the released bits, if {contribution} "
            "depends on that record only"
        )
    return "noise is sampled in floating point: attacks on low-order bits are not covered"


def _how_read(event: Event) -> tuple[str, str]:
    """Assumptions about record selection and the number n of records."""
    descents = tuple(_descents(event))
    if not descents:
        return (
            "every record is in what is computed: nothing is sampled, and only the result with its "
            "noise is published",
            "the number of records n, if it sets the scale of what is computed, is public",
        )
    if any(step.sampling_prob < 1 for step in descents):
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
    """The conditions for taking the maximum over training and held-out records."""
    if not isinstance(event, ParallelEvent):
        return ()
    decides = "its unit" if event.split == "unit" else "itself"
    tables = (
        "one noisy table in two parts, for the scale of the model's scores and for its accuracy, "
        "whose costs are added"
        if counts_scale_and_accuracy(event.evaluation)
        else "what the event says was counted of them with noise"
    )
    return (
        "apart from the unprotected inputs, the held-out records enter the release only through "
        f"{tables}: whether a record is a training or a held-out record follows from {decides} "
        f"alone, "
        "so that it pays either for the model or for what is counted (parallel composition)",
    )


def _descents(event: Event) -> Iterator[DpSgdEvent]:
    if isinstance(event, DpSgdEvent):
        yield event
    for part in event.events if isinstance(event, ComposedEvent) else ():
        yield from _descents(part)


for _event_type in (DpSgdEvent, GaussianReleaseEvent, ComposedEvent, ParallelEvent):
    claims(_event_type, formal=True)(gaussian)
