"""Events and claims: one frozen type per mechanism, separate from its cost.

An event contains enough for another accountant to compute the cost again.
`mechanisms.privacy.claims` is the only place that turns an event into a `Claim`. A mechanism that
needs its own event type defines it in its own file. Events are decoded by the tag `mechanism`.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import ROUND_CEILING, Context
from html import escape
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BaseModel, BeforeValidator, Field, SerializeAsAny

GuaranteeKind = Literal["formal", "asymptotic-local", "none"]
NeighbouringRelation = Literal["add-remove", "replace-one"]

CONVOLUTION_ERROR = 1e-13
"""Allowance for a delta of sampled steps, which dp-accounting composes by Fourier transforms in
float64. Compared with the same distribution composed under an exponential tilt, whose tail has
full relative precision, deltas were up to 3.2e-14 too small
(`tests/mechanisms/privacy/test_small_deltas.py`).
"""
LEAST_EPSILON = 1e-9
"""To which an accountant's smaller epsilon is rounded up. It may be 0 at a delta near 1, and a
ledger charges more than nothing for every draw.
"""
LEAST_DELTA_OF_SAMPLES = 1e-10
"""The allowance is at most a thousandth of a delta from here on. Smaller deltas of sampled steps
are refused.
"""


class Event(BaseModel, frozen=True, extra="forbid"):
    """The effect of a mechanism on the records. Subclasses add the numbers that determine its
    cost.
    """

    by_tag: ClassVar[dict[str, type[Event]]] = {}
    mechanism: str

    @property
    def risk_weights(self) -> bool:
        """Whether weights computed from the records were used."""
        return False

    @property
    def of_training(self) -> Event:
        """The part that read the training records and produced the model."""
        return self

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Registers every subclass under the values of its tag. A tag belongs to one class."""
        super().__pydantic_init_subclass__(**kwargs)
        for tag in get_args(cls.model_fields["mechanism"].annotation):
            owner = Event.by_tag.setdefault(tag, cls)
            if (owner.__module__, owner.__qualname__) != (
                cls.__module__,
                cls.__qualname__,
            ):
                raise TypeError(
                    f"event tag `{tag}` belongs to {owner.__module__}.{owner.__qualname__}"
                )
            Event.by_tag[tag] = cls


def decode(value: Any) -> Any:
    """Decodes an event from JSON by its tag; returns an event unchanged.

    Raises:
        ValueError: the tag is unknown.
    """
    if not isinstance(value, dict):
        return value
    kind = Event.by_tag.get(value.get("mechanism", ""))
    if kind is None:
        raise ValueError(
            f"no event `{value.get('mechanism')}`; there are {', '.join(sorted(Event.by_tag))}"
        )
    return kind.model_validate(value)


class UnknownEvent(Event, frozen=True, extra="allow"):
    """A recorded event of a type that this process does not know or cannot decode."""

    @property
    def of_training(self) -> Event:
        training = (self.model_extra or {}).get("training")
        return self if training is None else recorded_event(training)


def recorded_event(value: Any) -> Any:
    """Decodes a recorded event. If that fails, the result is an `UnknownEvent` with the recorded
    fields.
    """
    try:
        return decode(value)
    except ValueError:
        return UnknownEvent.model_validate(value)


AnyEvent = Annotated[SerializeAsAny[Event], BeforeValidator(decode)]
"""Any event, decoded by its tag."""


class NonPrivateEvent(Event, frozen=True):
    """Training without protection. Nothing can be claimed and nothing released."""

    mechanism: Literal["non-private"] = "non-private"
    epochs: int = Field(ge=1)


class SwagPpmEvent(Event, frozen=True):
    """One draw from a SWAG posterior with a likelihood that was raised to per-record risk weights
    (SWAG-PPM).
    """

    mechanism: Literal["swag-ppm"] = "swag-ppm"
    reweighted: bool
    """Whether equation 7 was applied and a third posterior fitted."""
    snapshots: int = Field(ge=2)
    """Number of SGD iterates in the posterior's moments."""
    rank: int = Field(ge=2)
    """Number K of deviation vectors in the posterior."""
    sensitivity_draws: int = Field(ge=1)
    """Number S of draws over which the sensitivity was measured."""
    sensitivity: float = Field(gt=0, allow_inf_nan=False)
    """Delta in nats: the maximum over records and draws of alpha_i times |log-likelihood_i|. It
    includes the released draw once there is one.
    """

    @property
    def risk_weights(self) -> bool:
        return True


class NoiseSegment(BaseModel, frozen=True, extra="forbid"):
    """Consecutive steps with the same noise multiplier and clip."""

    steps: int = Field(ge=1)
    noise_multiplier: float = Field(gt=0, allow_inf_nan=False)
    """Standard deviation of the noise divided by `l2_clip_norm`."""
    l2_clip_norm: float = Field(gt=0, allow_inf_nan=False)
    """Bound on the l2 norm of one record's contribution to the sum. The noise is scaled by it, so
    it does not affect the cost.
    """


class DpSgdEvent(Event, frozen=True):
    """Steps of DP-SGD, each a sum of clipped per-record gradients over a Poisson sample plus
    Gaussian noise.

    With `sampling_prob` 1 every step reads every record: full-batch gradient descent.
    """

    mechanism: Literal["dp-sgd"] = "dp-sgd"
    sampling: Literal["poisson", "shuffled", "fixed-size"] = "poisson"
    """`poisson`: every record independently, anew at every step. The accountants support only this
    value.
    """
    sampling_prob: float = Field(gt=0, le=1)
    segments: tuple[NoiseSegment, ...] = Field(min_length=1)
    """The noise and clip schedule in the order of the steps, run-length encoded."""

    exact: bool = False
    """Whether sums consist of integers with rounded noise, so that the claim covers the released
    bits (`mechanisms.descent.exact_sums`).
    """

    @property
    def steps(self) -> int:
        return sum(segment.steps for segment in self.segments)


class GaussianReleaseEvent(Event, frozen=True):
    """One vector computed from every record and released with Gaussian noise."""

    mechanism: Literal["gaussian-release"] = "gaussian-release"
    what: str
    """The released quantity, such as `class counts`."""
    noise_multiplier: float = Field(gt=0, allow_inf_nan=False)
    """Standard deviation of the noise divided by `l2_sensitivity`."""
    l2_sensitivity: float = Field(gt=0, allow_inf_nan=False)
    """Largest l2 change of the vector when one record is added or removed."""
    exact: bool = False
    """Whether the vector consists of integers with rounded noise, so that the claim covers the
    released bits.
    """

    @property
    def std(self) -> float:
        return self.noise_multiplier * self.l2_sensitivity


class ComposedEvent(Event, frozen=True):
    """Mechanisms that ran one after another on the same records. Later ones may read the releases
    of earlier ones.
    """

    mechanism: Literal["composed", "dp-sgd-class-weights", "prior-descent"] = "composed"
    """The purpose, if a mechanism here has its own tag."""
    events: tuple[AnyEvent, ...] = Field(min_length=1)

    @property
    def releases(self) -> tuple[GaussianReleaseEvent, ...]:
        return tuple(part for part in self.events if isinstance(part, GaussianReleaseEvent))


Split = Literal["record", "unit", "coupled"]
"""Whether a record's set is determined by its own data, its unit's data, or also other records."""


class ParallelEvent(Event, frozen=True):
    """A model trained on the training records, and a noisy table of the held-out records at this
    model.

    Each record is in one of the two sets, as determined by `split`, and the training used no
    held-out record.
    """

    mechanism: Literal["parallel"] = "parallel"
    training: AnyEvent
    evaluation: tuple[GaussianReleaseEvent, ...] = Field(min_length=1)
    """Releases one after another on the same records. Later ones may read earlier ones."""
    split: Split

    @property
    def of_training(self) -> Event:
        return self.training

    @property
    def of_evaluation(self) -> ComposedEvent:
        return ComposedEvent(events=self.evaluation)


def descent_of(event: Event | None) -> DpSgdEvent:
    event = None if event is None else event.of_training
    parts = event.events if isinstance(event, ComposedEvent) else (event,)
    return next(part for part in parts if isinstance(part, DpSgdEvent))


_FOUR_DIGITS = Context(prec=4, rounding=ROUND_CEILING)


def is_exact(event: Event | None) -> bool:
    """Whether everything that read records was a sum of integers with rounded noise, so that the
    claim covers the released bits.
    """
    if isinstance(event, ParallelEvent):
        return is_exact(event.training) and is_exact(event.of_evaluation)
    parts = event.events if isinstance(event, ComposedEvent) else (event,)
    return all(isinstance(part, DpSgdEvent | GaussianReleaseEvent) and part.exact for part in parts)


class Claim(BaseModel, frozen=True, extra="forbid"):
    """A privacy claim with everything it depends on. The numbers alone are not a claim.

    Examples:
        >>> claim = Claim(
        ...     guarantee_kind="formal",
        ...     epsilon=1,
        ...     delta=1e-5,
        ...     neighbouring_relation="add-remove",
        ...     accountant="closed form of Gaussian noise",
        ... )
        >>> print(claim)
        formal guarantee: epsilon = 1, delta = 1e-5, for one record added or removed
          accountant: closed form of Gaussian noise
    """

    guarantee_kind: GuaranteeKind
    epsilon: float | None = Field(default=None, description="None if the kind is `none`")
    delta: float | None = Field(
        default=None, description="None if not quantified (asymptotic-local) or not claimed"
    )
    delta_text: str = Field(
        default="", description="description of a delta that is not a number, such as O(n^-1/2)"
    )
    sensitivity: float | None = None
    epsilon_add_remove: float | None = Field(
        default=None,
        description=(
            "Delta alone: the add/remove bound for a classifier with fixed weights, since l <= 0"
        ),
    )
    epsilon_replaced: float | None = Field(
        default=None,
        description=(
            "Epsilon for replacing one unit's values, at the same delta, with which "
            "claims for different relations can be compared. None if no finite value is "
            "known"
        ),
    )
    draws: int | None = Field(
        default=None, description="number of samples S behind a Monte Carlo maximum"
    )
    mc_failure_prob: float | None = Field(
        default=None,
        description="1/(S+1): probability that one new sample exceeds the maximum over S samples",
    )
    neighbouring_relation: NeighbouringRelation
    privacy_unit: str = "record"
    max_records_per_unit: int = Field(default=1, ge=1)
    accountant: str = Field(description="name and version of the accountant that computed the cost")
    assumptions: tuple[str, ...] = ()
    unprotected_inputs: tuple[str, ...] = ()

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """Shows each epsilon with four digits, rounded up."""
        for name, value in super().__repr_args__():
            rounded = isinstance(value, float) and name is not None and name.startswith("epsilon")
            yield name, float(_FOUR_DIGITS.create_decimal_from_float(value)) if rounded else value

    def __str__(self) -> str:
        """The claim as readable lines. `repr` contains every field."""
        lines = [self._headline]
        if self.epsilon_replaced is not None and self.epsilon_replaced != self.epsilon:
            replaced = _FOUR_DIGITS.create_decimal_from_float(self.epsilon_replaced)
            lines.append(f"  one {self.privacy_unit} replaced: epsilon = {replaced.normalize():f}")
        lines.append(f"  accountant: {self.accountant}")
        for title, entries in (
            ("assumes", self.assumptions),
            ("does not cover", self.unprotected_inputs),
        ):
            lines += [f"  {title}:", *(f"    - {entry}" for entry in entries)] if entries else []
        return "\n".join(lines)

    @property
    def _headline(self) -> str:
        if self.epsilon is None:
            return "no privacy guarantee"
        epsilon = _FOUR_DIGITS.create_decimal_from_float(self.epsilon).normalize()
        delta = f"delta {self.delta_text}"
        if self.delta is not None:
            delta = f"delta = {self.delta:g}".replace("e-0", "e-")
        change = "replaced" if self.neighbouring_relation == "replace-one" else "added or removed"
        unit = self.privacy_unit
        if self.max_records_per_unit > 1:
            unit += f" of at most {self.max_records_per_unit} records"
        return (
            f"{self.guarantee_kind} guarantee: epsilon = {epsilon:f}, {delta}, for one {unit} "
            f"{change}"
        )

    def _repr_html_(self) -> str:
        """Shows the same text in a notebook."""
        return f"<pre>{escape(str(self))}</pre>"
