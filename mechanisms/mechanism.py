"""The interface of a mechanism: one frozen config, in one file and registered by its `kind`, that
plans, fits and loads.

  plan(task) -> Plan                fill in unset fields and solve the noise, before any record
  event(noise, task) -> Event       what a fit at this noise does to the records
  plan.fit(records, run) -> Fitted  fit as planned; resumes from `run.folder`
  load(folder, run) -> Model        the model that `Fitted.model.save(folder)` wrote

A model computes `log_probabilities`, and can be saved and loaded. A model that can be written as a
bundle also has `release_to`. Claims follow only from the event that actually ran
(`mechanisms.privacy.claims`). `docs/how-to/add-a-mechanism.md` walks through an example.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.metadata import entry_points
from itertools import chain
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypeVar,
    cast,
    runtime_checkable,
)

from pydantic import BaseModel, BeforeValidator, Field, SerializeAsAny

import mechanisms
from mechanisms.errors import MechanismError
from mechanisms.model.config import ModelConfig, Precision
from mechanisms.model.pace import CHECKPOINT_SECONDS
from mechanisms.privacy import gaussian_cost
from mechanisms.privacy.events import AnyEvent, Event, GuaranteeKind, descent_of
from mechanisms.privacy.scaled import noise_scaled

if TYPE_CHECKING:
    from torch import Tensor

    from mechanisms.audit.trials import Records as Pool
    from mechanisms.descent.noisy_descent import Witness
    from mechanisms.model.classifier import Classifier
    from mechanisms.model.export import Shapes
    from mechanisms.model.inputs import Inputs
    from mechanisms.model.training import Progress
    from mechanisms.posterior.swag import Normal

ENTRY_POINTS = "autocoder.mechanisms"
"""Entry-point group in which installed packages list modules with their own mechanisms."""


class Task(BaseModel, frozen=True, extra="forbid"):
    """The public numbers on which a plan may depend."""

    records: int
    """Number n of training records."""
    classes: int
    records_per_unit: int = 1
    target_epsilon: float | None = None
    """Target for one privacy unit; None if no method of the run has a target."""
    delta: float = 1e-4
    """Delta of formal claims."""
    features: int | None = None
    """Number of features of a record; None for features of an encoder or for tokens."""


class Plan(BaseModel, frozen=True, extra="forbid"):
    """Settings without unset fields, the noise that they were calibrated to, and the task.

    The event is always derived from these and never stored separately, so that the charge matches
    what the settings do.
    """

    mechanism: AnyMechanism
    task: Task
    noise: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The calibrated number, in the unit that `Mechanism.event` expects. 0 means nothing was
    calibrated.
    """
    noise_factor: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Multiplies all noise of the event, in an audit."""

    @property
    def records(self) -> int:
        """Number n of training records for which noise, sampling and scale were planned."""
        return self.task.records

    @property
    def event(self) -> Event | None:
        """The event that a fit must match; None if the cost is measured and known only after the
        fit.
        """
        return self._event_for(self.task)

    def _event_for(self, task: Task) -> Event | None:
        event = self.mechanism.event(self.noise, task)
        return (
            event
            if event is None or self.noise_factor == 1
            else noise_scaled(event, self.noise_factor)
        )

    def fit(self, records: Records, run: Run) -> Fitted:
        """Fits as planned.

        Raises:
            MechanismError: the records differ from the plan in number or shape, the folder belongs
                to another fit, training diverged, or a different event ran.
        """
        from mechanisms.model import ranks

        if len(records) != self.records and not run.resampled:
            raise MechanismError(
                f"the plan is for {self.records} records, but there are {len(records)}. Plan again",
                kind="other-records",
            )
        event = self.event
        # guard: test_an_event_edited_by_hand
        if self._event_for(self._task(records, run)) != event:
            raise MechanismError(
                "the plan is for other classes or features. Plan again", kind="other-shape"
            )
        if run.folder is not None and not ranks.rank():
            run = _with_identity(run.folder, self, records, run)
        fitted = self.mechanism.fit(self, records, run)
        # guard: test_a_mechanism_from_outside
        if event is not None and fitted.event != event:
            raise MechanismError(
                f"`{self.mechanism.kind}` did not run as planned, so nothing is claimed for it",
                kind="another-event",
            )
        return fitted

    def _task(self, records: Records, run: Run) -> Task:
        from mechanisms.model.inputs import FeatureInputs

        width = (
            records.inputs.features.shape[1] if isinstance(records.inputs, FeatureInputs) else None
        )
        return self.task.model_copy(update={"classes": run.classes, "features": width})


@dataclass(frozen=True)
class Records:
    """Input of a fit: inputs, and labels int64 [n] as indices into the label space."""

    inputs: Inputs
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Run:
    """Where and how a fit runs. `classifier` always builds the same untrained model."""

    classes: int
    seed: int
    classifier: Callable[[], Classifier]
    folder: Path | None = None
    """Folder for checkpoints, which survives an interruption and stores noise keys until the fit
    ends. None keeps no checkpoints.
    """
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    """Least time between two checkpoints; 0 writes one per epoch."""
    progress: Progress | None = None
    key: bytes | None = field(default=None, repr=False)
    """Determines all secret noise of the fit, for tests and examples only. None uses the operating
    system's entropy.
    """
    resampled: bool = False
    """True for an audit's rerun on other records under the plan's noise, sampling and scale."""
    earlier: Path | None = None
    """Where the fit of `Mechanism.continues` was saved. None: this fit runs that one first."""
    map: Map = field(default_factory=lambda: compute_whole)
    """Computes independent units of a fit, such as draws of a posterior."""
    witness: Witness | None = None
    """In an audit, receives every sum of the descent, before and after its noise."""

    def new_key(self) -> bytes:
        """The run's key if it has one, otherwise a fresh key from the operating system's
        entropy.
        """
        from mechanisms.privacy.noise import new_key

        return new_key() if self.key is None else self.key


class Workload(NamedTuple):
    """Cost of one fit in public numbers, for rough estimates of time and disk space."""

    epochs: float
    """Passes over the records in training."""
    draws: int = 0
    """Passes over the records in evaluation only."""
    vectors: int = 1
    """Parameter vectors that the fit stores."""


class Divisible(Protocol):
    """A mechanism that computes independent units inside a fit, so that an engine can distribute
    them.
    """

    def compute(
        self, units: range, folder: Path, records: Records, run: Run
    ) -> Mapping[str, Tensor]:
        """Results of these units, computed from the files in the folder. Units depend on nothing
        else.
        """
        ...


class Map(Protocol):
    """Computes units 0 to `count` of a fit from the files in a folder, in this process or on an
    engine.
    """

    def __call__(
        self,
        mechanism: Divisible,
        count: int,
        folder: Path,
        records: Records,
        run: Run,
    ) -> Sequence[Mapping[str, Tensor]]:
        """The results of consecutive parts, in order."""
        ...


def compute_whole(
    mechanism: Divisible, count: int, folder: Path, records: Records, run: Run
) -> Sequence[Mapping[str, Tensor]]:
    """Computes all units as one part, in this process."""
    return [mechanism.compute(range(count), folder, records, run)]


@runtime_checkable
class Model(Protocol):
    """A fitted model."""

    def log_probabilities(self, inputs: Inputs) -> Tensor:
        """Natural log of the class probabilities, float64 [n, classes], in the order of the
        records.
        """
        ...

    def save(self, folder: Path) -> None:
        """Writes everything that `Mechanism.load` needs to a private folder."""


@runtime_checkable
class Drawable(Protocol):
    """A fitted model with parameters that can be released: either its own, or one draw from a
    posterior.
    """

    def draw(self, normal: Normal) -> Tensor:
        """The parameters to release, float32 [P]. A second draw from a posterior is a different
        model.

        Args:
            normal: fills a tensor with standard normals; not called if nothing is drawn.
        """
        ...

    def could_draw(self, theta: Tensor) -> bool:
        """Whether `draw` could return these parameters at all."""
        ...

    def sensitivity_at(self, theta: Tensor, records: Records) -> float | None:
        """Delta at these parameters over the records of the fit, in nats; None if the claim does
        not depend on it.
        """
        ...


@runtime_checkable
class Releasable(Protocol):
    """A model that can be written as a bundle."""

    def release_to(
        self, folder: Path, *, codes: Sequence[str], precision: Precision
    ) -> Mapping[str, Shapes]:
        """Writes the released files; returns the shape of each weight by file and name."""
        ...


class SearchTrial(BaseModel, frozen=True, extra="forbid"):
    """One fit of a search on the records: its settings, and the event that ran."""

    settings: dict[str, float]
    event: AnyEvent
    kept: bool = False


class Search(BaseModel, frozen=True, extra="forbid"):
    """A fit's search on its records for a target epsilon: every trial in order, and the mechanism
    with the selected settings.
    """

    target_epsilon: float
    settled: AnyMechanism
    trials: tuple[SearchTrial, ...]


@dataclass(frozen=True)
class Fitted:
    """A model, the event that actually ran, and aggregates that may be shown inside the agency."""

    model: Model
    event: Event
    figures: Mapping[str, Any] = field(default_factory=dict)
    search: Search | None = None
    """None if the fit searched nothing on the records."""


@dataclass(frozen=True)
class Reruns:
    """Results of T reruns of a mechanism on an audit's pool of n records.

    Attributes:
        ell: float32 [T, n], log-likelihoods of the records' labels.
        right: bool [T, n], whether the label is the most probable class.
        events: the event of each rerun, from which its claim follows.
    """

    ell: Tensor
    right: Tensor
    events: tuple[Event, ...]


class Mechanism(BaseModel, ABC, frozen=True, extra="forbid"):
    """A method that trains a model on records. Subclasses add settings and a `kind`."""

    reads: ClassVar[frozenset[str]] = frozenset({"features", "head-features", "tokens"})
    """The forms of input (`form_of`) on which it can be fitted."""
    draws: ClassVar[bool] = False
    """Whether a release draws from the fitted posterior, so that each release is a different
    model.
    """
    by_ranks: ClassVar[bool] = False
    """Whether processes can share its fit of an encoder (`mechanisms.model.ranks`)."""
    shared: ClassVar[frozenset[str]] = frozenset()
    """Settings that other mechanisms of its kind adopt in a comparison if they leave them unset."""

    kind: str

    @property
    def needs_target_epsilon(self) -> bool:
        """Whether planning requires a target epsilon."""
        return False

    @property
    def guarantee_kind(self) -> GuaranteeKind:
        """The kind of claim that a release of its model has."""
        return "asymptotic-local" if self.draws else "none"

    def relevant_task(self, task: Task) -> Task:
        """The task without the numbers on which its plan does not depend."""
        delta = float(Task.model_fields["delta"].default)
        return task.model_copy(update={"target_epsilon": None, "delta": delta})

    def without_target(self) -> tuple[Self, float | None, float | None]:
        """The mechanism without the target and delta that its noise is solved for, followed by
        these two.
        """
        return self, None, None

    @property
    def search_text(self) -> str | None:
        """What a fit searches on the records for a target epsilon, for people; None if it searches
        nothing.
        """
        return None

    def batched(self, model: ModelConfig) -> Batched | None:
        """This mechanism if it can rerun many fits of the model in parallel, otherwise None."""
        return self if model.linear_head and isinstance(self, Batched) else None

    @property
    def stage(self) -> str:
        """Name of this fit in a sequence of fits that continue each other; otherwise empty."""
        return ""

    @property
    def workload(self) -> Workload | None:
        """Cost of a fit with all fields set; None means the epochs of the run."""
        return None

    @property
    def continues(self) -> Mechanism | None:
        """The mechanism whose fit this one continues; None if it starts afresh."""
        return None

    def for_start(self, *, at_examples: bool) -> Self:
        """Fills in settings that depend on whether the head starts at public examples."""
        return self

    def with_defaults(self, defaults: Mapping[str, object]) -> Self:
        """Fills in unset fields from the run's defaults, by name. Unknown names are ignored."""
        fields = type(self).model_fields
        values = {n: v for n, v in defaults.items() if n in fields and getattr(self, n) is None}
        return self.model_copy(update=values)

    def check(self, task: Task) -> None:
        """Refuses early what `plan` would refuse, based on public numbers.

        Raises:
            MechanismError: contains the setting at fault.
        """

    def plan(self, task: Task) -> Plan:
        """Fills in unset fields and solves for the noise. The default implementation does nothing.

        Raises:
            MechanismError: the target cannot be met, or a setting contradicts the task.
        """
        return Plan(mechanism=self, task=task)

    def event(self, noise: float, task: Task) -> Event | None:
        """The event of a fit at this noise, which is in the unit that `plan` uses.

        Everything else in the event (sensitivity, clip, sampling probability) follows from settings
        and task. None means the cost is measured and known only after the fit.

        Raises:
            MechanismError: the task lacks a number on which the event depends.
        """
        return None

    def cost(self, plan: Plan, task: Task) -> Mapping[str, float]:
        """Figures of a plan for display: noise, steps, epsilon by several accountants. Only the
        claim is binding.
        """
        return {}

    @abstractmethod
    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Fits this mechanism as planned. Called by `Plan.fit`; a repeated call resumes from
        `run.folder`.

        The noise is that of the plan's event. Implementations that start from `run.classifier` call
        it before anything is drawn.

        Raises:
            MechanismError: training diverged.
        """

    def load(self, folder: Path, run: Run, *, purpose: str = "evaluate") -> Model:
        """Loads what its model saved. If the model is a posterior, returns the repeatable draw for
        this purpose.
        """
        return ClassifierModel.load(folder, run)

    def running_sensitivity(self, folder: Path) -> Sequence[float] | None:
        """Delta of a saved fit after each draw, if it was measured over draws."""
        return None

    def audited_as(self, draws: int, *, batched: bool) -> tuple[Mechanism, str]:
        """The mechanism whose reruns include this one, and the name of this mechanism among them.

        Args:
            draws: number of posterior draws over which a rerun measures, instead of the mechanism's
                own number.
            batched: whether reruns are computed in parallel or one by one.
        """
        return self, self.kind


@runtime_checkable
class Batched(Protocol):
    """A mechanism that can rerun many fits of a linear head in parallel. Other mechanisms are rerun
    one by one.
    """

    def fit_many(
        self, plan: Plan, pool: Pool, initial: Tensor, *, progress: Progress | None = None
    ) -> Mapping[str, Reruns]:
        """Reruns by name (`audited_as`), each trial on its own subset of the pool.

        Args:
            initial: parameters of the untrained head, float32 [classes, width + 1], bias last.
        """
        ...


class CalibratedMechanism(Mechanism, frozen=True):
    """A mechanism with noise that is solved for (target_epsilon, delta). A task fills in unset
    fields.
    """

    target_epsilon: float | None = Field(
        default=None,
        gt=0,
        le=1000,
        allow_inf_nan=False,
        title="Target epsilon",
        description="Empty: the target of the training run.",
    )
    delta: float | None = Field(
        default=None, gt=0, lt=1, title="Delta", description="Empty: the delta of the training run."
    )

    @property
    def needs_target_epsilon(self) -> bool:
        return True

    @property
    def guarantee_kind(self) -> GuaranteeKind:
        return "formal"

    def relevant_task(self, task: Task) -> Task:
        return task

    def without_target(self) -> tuple[Self, float | None, float | None]:
        without = self.model_copy(update={"target_epsilon": None, "delta": None})
        return without, self.target_epsilon, self.delta

    @property
    def calibrated_by(self) -> Literal["pld", "rdp-mironov"]:
        return "pld"

    def with_target(self, task: Task) -> Self:
        """Fills in the task's target and delta if they are unset.

        Raises:
            MechanismError: neither the mechanism nor the task has a target.
        """
        target = self.target_epsilon if self.target_epsilon is not None else task.target_epsilon
        if target is None:
            raise MechanismError(
                f"mechanism `{self.kind}` requires a target epsilon. Set --epsilon to a number",
                kind="no-target-epsilon",
            )
        return self.model_copy(update={"target_epsilon": target, "delta": self.delta or task.delta})

    def plan(self, task: Task) -> Plan:
        settled = self.with_target(task)
        plan = Plan(mechanism=settled, task=task, noise=settled.calibrate(task))
        assert plan.event is not None  # raises here if the task lacks a number
        return plan

    def calibrate(self, task: Task) -> float:
        """The noise at which the cost of a unit meets the target. By default this is a Gaussian
        noise multiplier.
        """
        assert self.target_epsilon is not None
        assert self.delta is not None

        def event_at(noise: float) -> Event:
            event = self.event(noise, task)
            assert event is not None
            return event

        return gaussian_cost.calibrate(
            event_at,
            target_epsilon=self.target_epsilon,
            delta=self.delta,
            records_per_unit=task.records_per_unit,
            by=self.calibrated_by,
        )


class NoisyGradientMechanism(CalibratedMechanism, frozen=True):
    """A mechanism of noisy gradient steps, possibly preceded by other releases."""

    def cost(self, plan: Plan, task: Task) -> Mapping[str, float]:
        assert plan.event is not None
        sgd, delta, unit = descent_of(plan.event), self.delta or task.delta, task.records_per_unit
        cost = asdict(gaussian_cost.cost(plan.event, delta=delta, records_per_unit=unit))
        figures = {"noise_multiplier": sgd.segments[-1].noise_multiplier, "steps": sgd.steps}
        return figures | {name: value for name, value in cost.items() if value is not None}


@dataclass(frozen=True)
class ClassifierModel:
    """A torch classifier with fitted parameters, the model of most mechanisms."""

    FILE: ClassVar[str] = "theta.safetensors"

    classifier: Classifier

    def log_probabilities(self, inputs: Inputs) -> Tensor:
        return self.classifier.predict(inputs).double().log_softmax(-1)

    def save(self, folder: Path) -> None:
        from mechanisms.model import checkpoint

        checkpoint.save(folder / ClassifierModel.FILE, {"theta": self.classifier.flat}, {})

    def release_to(
        self, folder: Path, *, codes: Sequence[str], precision: Precision = "float32"
    ) -> dict[str, Shapes]:
        """Writes a folder that standard libraries can load."""
        from mechanisms.model.export import save as export

        return export(self.classifier, folder, codes=codes, precision=precision)

    def draw(self, normal: Normal) -> Tensor:
        return self.classifier.flat.clone()

    def could_draw(self, theta: Tensor) -> bool:
        import torch

        return torch.equal(self.classifier.flat.cpu(), theta)

    def sensitivity_at(self, theta: Tensor, records: Records) -> float | None:
        return None

    @staticmethod
    def load(folder: Path, run: Run) -> ClassifierModel:
        from mechanisms.model import checkpoint

        classifier = run.classifier()
        classifier.flat.copy_(checkpoint.load(folder / ClassifierModel.FILE)[0]["theta"])
        return ClassifierModel(classifier)


def _with_identity(folder: Path, plan: Plan, records: Records, run: Run) -> Run:
    from mechanisms.model.identity import Identity, contents

    identity = Identity.of(
        folder,
        {
            "plan": [plan.model_dump_json()],
            "records": chain([records.labels], contents(records.inputs)),
            "seed": [str(run.seed)],
            "classes": [str(run.classes)],
        },
    )
    return replace(run, classifier=identity.starting(run.classifier))


M = TypeVar("M", bound=type[Mechanism])
_KINDS: dict[str, type[Mechanism]] = {}


def registered(mechanism: M) -> M:
    """Registers a mechanism by its `kind`, which profiles and reports use. Each kind has one
    class.
    """
    kind = mechanism.model_fields["kind"].default
    if not isinstance(kind, str):
        raise TypeError(
            f"{mechanism.__qualname__}: `kind` needs a default, the tag that profiles name it by"
        )
    existing = _KINDS.setdefault(kind, mechanism)
    if (existing.__module__, existing.__qualname__) != (
        mechanism.__module__,
        mechanism.__qualname__,
    ):
        raise TypeError(
            f"mechanism `{kind}` is {existing.__module__}.{existing.__qualname__} already"
        )
    _KINDS[kind] = mechanism
    return mechanism


_CALLERS = ("comparison", "estimator", "fit_module")
"""Modules that register no mechanism and take a second to import because of scikit-learn."""


@cache
def _import_all() -> None:
    for module in pkgutil.iter_modules(mechanisms.__path__):
        if not module.ispkg and module.name not in _CALLERS:
            importlib.import_module(f"mechanisms.{module.name}")
    for entry in entry_points(group=ENTRY_POINTS):
        entry.load()


def kinds() -> Mapping[str, type[Mechanism]]:
    _import_all()
    return dict(sorted(_KINDS.items()))


def _parse(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    registry = kinds()
    if value.get("kind") not in registry:
        raise ValueError(f"no mechanism `{value.get('kind')}`; there are {', '.join(registry)}")
    return registry[value["kind"]].model_validate(value)


def parsed(settings: Mapping[str, object]) -> Mechanism:
    """The registered mechanism with these settings, selected by `kind`.

    Raises:
        ValueError: no mechanism of this kind, or a setting is out of range.
    """
    return cast("Mechanism", _parse(dict(settings)))


AnyMechanism = Annotated[SerializeAsAny[Mechanism], BeforeValidator(_parse)]
"""Any registered mechanism, selected by `kind`."""
Plan.model_rebuild()
Search.model_rebuild()


def form_of(model: ModelConfig) -> str:
    """The form of input of a model: `features` for a linear layer, `head-features` for a standard
    head, or `tokens`.
    """
    if model.trainable != "head":
        return "tokens"
    return "features" if model.linear_head else "head-features"
