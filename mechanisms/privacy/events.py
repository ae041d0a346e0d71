"""Defines events and claims: one frozen type a mechanism, apart from what it costs.

An event holds enough for another accountant to compute the cost again. `mechanisms.privacy.claims`
turns an event into a `Claim`; nothing else does. A mechanism that needs an event of its own defines
it in its own file: the tag `mechanism` is what it is decoded by.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import ROUND_CEILING, Context
from html import escape
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import BaseModel, BeforeValidator, Field, SerializeAsAny

GuaranteeKind = Literal["formal", "asymptotic-local", "none"]
NeighbouringRelation = Literal["add-remove", "replace-one"]


class Event(BaseModel, frozen=True, extra="forbid"):
    """Records what a mechanism did to the records; subclasses add the numbers that the cost depends
    on.
    """

    by_tag: ClassVar[dict[str, type[Event]]] = {}
    mechanism: str

    @property
    def risk_weights(self) -> bool:
        """Tells whether weights computed from the records came into it."""
        return False

    @property
    def of_training(self) -> Event:
        """The part that read the training half and made the model."""
        return self

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Every subclass is known by the values of its tag; a tag belongs to one class."""
        super().__pydantic_init_subclass__(**kwargs)
        for tag in get_args(cls.model_fields["mechanism"].annotation):
            known = Event.by_tag.setdefault(tag, cls)
            if (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
                raise TypeError(
                    f"event tag `{tag}` belongs to {known.__module__}.{known.__qualname__}"
                )
            Event.by_tag[tag] = cls


def decode(value: Any) -> Any:
    """Returns an event from its JSON, by its tag, and an event as it is; an unknown tag is a
    ValueError.
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
    """An event as it was recorded, of a kind that this process does not know, or cannot read."""

    @property
    def of_training(self) -> Event:
        training = (self.model_extra or {}).get("training")
        return self if training is None else recorded_event(training)


def recorded_event(value: Any) -> Any:
    """Returns a recorded event from its JSON; one that cannot be decoded stays as it is."""
    try:
        return decode(value)
    except ValueError:
        return UnknownEvent.model_validate(value)


AnyEvent = Annotated[SerializeAsAny[Event], BeforeValidator(decode)]
"""Any event, decoded by its tag."""


class NonPrivateEvent(Event, frozen=True):
    """Training without protection: nothing can be claimed and nothing released."""

    mechanism: Literal["non-private"] = "non-private"
    epochs: int = Field(ge=1)


class SwagPpmEvent(Event, frozen=True):
    """One draw from a SWAG posterior whose likelihood was raised to per-record risk weights
    (SWAG-PPM).
    """

    mechanism: Literal["swag-ppm"] = "swag-ppm"
    reweighted: bool
    """Whether equation 7 was applied and a third posterior fitted."""
    snapshots: int = Field(ge=2)
    """SGD iterates that the posterior's moments hold."""
    rank: int = Field(ge=2)
    """Deviation vectors that the posterior holds (K)."""
    sensitivity_draws: int = Field(ge=1)
    """Draws S over which the sensitivity was taken."""
    sensitivity: float = Field(gt=0, allow_inf_nan=False)
    """Delta: max over records and draws of alpha_i times |log-likelihood_i|, in nats; the released
    draw counts too once it exists.
    """

    @property
    def risk_weights(self) -> bool:
        return True


class NoiseSegment(BaseModel, frozen=True, extra="forbid"):
    """Consecutive steps that share one noise multiplier and one clip."""

    steps: int = Field(ge=1)
    noise_multiplier: float = Field(gt=0, allow_inf_nan=False)
    """Standard deviation of the noise divided by `l2_clip_norm`."""
    l2_clip_norm: float = Field(gt=0, allow_inf_nan=False)
    """Bound on the l2 norm of what one record adds to the sum; the noise is scaled by it, so it
    costs nothing.
    """


class DpSgdEvent(Event, frozen=True):
    """Steps of DP-SGD, each the sum of clipped per-record gradients over a Poisson sample plus
    Gaussian noise.

    With `sampling_prob` 1 every step reads every record: full-batch gradient descent.
    """

    mechanism: Literal["dp-sgd"] = "dp-sgd"
    sampling: Literal["poisson", "shuffled", "fixed-size"] = "poisson"
    """`poisson`: every record independently, anew at every step. The only one that the accountants
    support.
    """
    sampling_prob: float = Field(gt=0, le=1)
    segments: tuple[NoiseSegment, ...] = Field(min_length=1)
    """The noise and clip schedule in the order of the steps, run-length coded."""

    exact: bool = False
    """Sums of integers with rounded noise: the claim covers the released bits
    (`mechanisms.descent.exact_sums`).
    """

    @property
    def steps(self) -> int:
        return sum(segment.steps for segment in self.segments)


class GaussianReleaseEvent(Event, frozen=True):
    """One vector computed from every record and released with Gaussian noise."""

    mechanism: Literal["gaussian-release"] = "gaussian-release"
    what: str
    """What was released, such as `class counts`."""
    noise_multiplier: float = Field(gt=0, allow_inf_nan=False)
    """Standard deviation of the noise divided by `l2_sensitivity`."""
    l2_sensitivity: float = Field(gt=0, allow_inf_nan=False)
    """Largest l2 change of the vector when one record is added or removed."""
    exact: bool = False
    """Integers with rounded noise: the claim covers the released bits."""

    @property
    def std(self) -> float:
        return self.noise_multiplier * self.l2_sensitivity


class ComposedEvent(Event, frozen=True):
    """Mechanisms that ran one after another on the same records; later ones may read what earlier
    ones released.
    """

    mechanism: Literal["composed", "dp-sgd-class-weights", "prior-descent"] = "composed"
    """Names the purpose, where a mechanism here has one of its own."""
    events: tuple[AnyEvent, ...] = Field(min_length=1)

    @property
    def releases(self) -> tuple[GaussianReleaseEvent, ...]:
        return tuple(part for part in self.events if isinstance(part, GaussianReleaseEvent))


Split = Literal["record", "unit", "coupled"]
"""What decides a record's half: its own data, its unit's, or other records too."""


class ParallelEvent(Event, frozen=True):
    """A model from the training half, and a noisy table of the test half at this model.

    A record is in one half, which `split` decides, and nothing of the test half entered the
    training.
    """

    mechanism: Literal["parallel"] = "parallel"
    training: AnyEvent
    evaluation: tuple[GaussianReleaseEvent, ...] = Field(min_length=1)
    """One after another on the same records; later ones may read what earlier ones released."""
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
    """Checks whether all that read records were sums of integers with rounded noise: the claim
    covers the bits.
    """
    if isinstance(event, ParallelEvent):
        return is_exact(event.training) and is_exact(event.of_evaluation)
    parts = event.events if isinstance(event, ComposedEvent) else (event,)
    return all(isinstance(part, DpSgdEvent | GaussianReleaseEvent) and part.exact for part in parts)


class Claim(BaseModel, frozen=True, extra="forbid"):
    """A privacy claim with everything it depends on. A number without these is not a claim."""

    guarantee_kind: GuaranteeKind
    epsilon: float | None = Field(default=None, description="None when the kind is `none`")
    delta: float | None = Field(
        default=None, description="None when not quantified (asymptotic-local) or not claimed"
    )
    delta_text: str = Field(
        default="", description="what delta is when it is no number, such as O(n^-1/2)"
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
        description="Epsilon of one unit's values replaced, at the same delta: the figure by "
        "which claims of different "
        "relations compare. None where nothing finite is known",
    )
    draws: int | None = Field(default=None, description="samples S behind a Monte Carlo maximum")
    mc_failure_prob: float | None = Field(
        default=None,
        description="1/(S+1): probability that one new sample exceeds the maximum over S samples",
    )
    neighbouring_relation: NeighbouringRelation
    privacy_unit: str = "record"
    max_records_per_unit: int = Field(default=1, ge=1)
    accountant: str = Field(description="name and version of what computed the cost")
    assumptions: tuple[str, ...] = ()
    unprotected_inputs: tuple[str, ...] = ()

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """Shows each epsilon with four digits, rounded up."""
        for name, value in super().__repr_args__():
            rounded = isinstance(value, float) and name is not None and name.startswith("epsilon")
            yield name, float(_FOUR_DIGITS.create_decimal_from_float(value)) if rounded else value

    def __str__(self) -> str:
        """Writes the claim in lines that a person can read; `repr` has every field."""
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
        """Shows the same in a notebook."""
        return f"<pre>{escape(str(self))}</pre>"
