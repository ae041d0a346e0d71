"""Defines a mechanism: one frozen config that plans, fits and loads, in one file, registered by its
`kind`.

    plan(task) -> Plan                fill in unset fields and solve the noise, before any record
    event(noise, task) -> Event       what a fit at this noise does to the records
    plan.fit(records, run) -> Fitted  do it; resumes from `run.folder`
    load(folder, run) -> Model        the model that `Fitted.model.save(folder)` wrote

A model answers `log_probabilities`, and saves and loads itself; anyone who can also write a bundle
has `release_to`. The event that ran, and nothing else, says what is claimed
(`mechanisms.privacy.claims`). `docs/how-to/add-a-mechanism.md` walks one through.
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
"""Group in which an installed package names modules with mechanisms of its own."""


class Task(BaseModel, frozen=True, extra="forbid"):
    """Holds what a plan may depend on: public numbers alone."""

    records: int
    """Training records n."""
    classes: int
    records_per_unit: int = 1
    target_epsilon: float | None = None
    """Of one privacy unit; None where no branch of the run aims at one."""
    delta: float = 1e-4
    """Of formal claims."""
    features: int | None = None
    """Numbers that a record has as features; None where they are an encoder's or tokens."""


class Plan(BaseModel, frozen=True, extra="forbid"):
    """Holds settings with nothing left open, the noise that they were calibrated to, and the task
    that they are for.

    The event follows from these and stands nowhere else, so that what is paid for is what the
    settings do.
    """

    mechanism: AnyMechanism
    task: Task
    noise: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The number that a target sets, in the measure of `Mechanism.event`. 0: nothing was
    calibrated.
    """
    noise_factor: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Multiplies all noise of the event, in an audit."""

    @property
    def records(self) -> int:
        """Returns the training records n that noise, sampling and scale were planned for."""
        return self.task.records

    @property
    def event(self) -> Event | None:
        """Returns the event that a fit has to match; None where the cost is measured, and known
        after the fit.
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
        """Do what is planned, with the settled mechanism.

        Raises:
            MechanismError: other records than planned, or of another shape, a folder of another
                fit, training diverged, or another event ran.
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
    """Holds what a fit reads: inputs, and labels int64 [n], indices into the label space."""

    inputs: Inputs
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Run:
    """Holds where and how a fit runs. `classifier` always builds the same untrained model."""

    classes: int
    seed: int
    classifier: Callable[[], Classifier]
    folder: Path | None = None
    """For checkpoints: survives a kill, and holds noise keys until the fit ends. None keeps none.
    """
    progress: Progress | None = None
    key: bytes | None = field(default=None, repr=False)
    """That all secret noise of the fit follows from, only for tests and examples. None: the
    system's entropy.
    """
    resampled: bool = False
    """An audit's rerun: other records than planned, under the plan's noise, sampling and scale."""
    earlier: Path | None = None
    """Where the fit of `Mechanism.continues` was saved. None: this fit makes that one too."""
    map: Map = field(default_factory=lambda: compute_whole)
    """Computes what a fit does over independent units, such as draws of a posterior."""
    witness: Witness | None = None
    """Of an audit: what a descent shows every sum to, before and after its noise."""

    def new_key(self) -> bytes:
        """Returns the given key, or a fresh one of the operating system's entropy."""
        from mechanisms.privacy.noise import new_key

        return new_key() if self.key is None else self.key


class Workload(NamedTuple):
    """What one fit costs, by public numbers: for estimates of time and disk, which may be rough."""

    epochs: float
    """Passes over the records that train."""
    draws: int = 0
    """Passes over the records that only measure."""
    vectors: int = 1
    """Parameter vectors that the fit keeps."""


class Divisible(Protocol):
    """A mechanism that computes over independent units inside a fit, so that an engine may share
    them out.
    """

    def compute(
        self, units: range, folder: Path, records: Records, run: Run
    ) -> Mapping[str, Tensor]:
        """What these units come to, by the files in the folder. Units depend on nothing else."""
        ...


class Map(Protocol):
    """Computes units 0 to `count` of a fit with the files of a folder: here, or on an engine."""

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
    """Compute all units as one part, in this process."""
    return [mechanism.compute(range(count), folder, records, run)]


@runtime_checkable
class Model(Protocol):
    """A fitted model."""

    def log_probabilities(self, inputs: Inputs) -> Tensor:
        """Natural log of the class probabilities, float64 [n, classes], in the records' order."""
        ...

    def save(self, folder: Path) -> None:
        """Write everything that `Mechanism.load` needs into a private folder."""


@runtime_checkable
class Drawable(Protocol):
    """A fitted model that parameters are released of: its own, or one draw of a posterior."""

    def draw(self, normal: Normal) -> Tensor:
        """The parameters to release, float32 [P]; a posterior's second draw is another model.

        Args:
            normal: fills a tensor with standard normals; where nothing is drawn it is not asked.
        """
        ...

    def could_draw(self, theta: Tensor) -> bool:
        """Whether `draw` could return these parameters at all."""
        ...

    def sensitivity_at(self, theta: Tensor, records: Records) -> float | None:
        """Delta at these parameters over the records of the fit, in nats; None where the claim
        depends on no such figure.
        """
        ...


@runtime_checkable
class Releasable(Protocol):
    """A model that knows how to become a bundle."""

    def release_to(
        self, folder: Path, *, codes: Sequence[str], precision: Precision
    ) -> Mapping[str, Shapes]:
        """Write the released files; return the shape of each weight by file and name."""
        ...


class SearchTrial(BaseModel, frozen=True, extra="forbid"):
    """One fit of a search on the records: the settings that it tried, and what ran with them."""

    settings: dict[str, float]
    event: AnyEvent
    kept: bool = False


class Search(BaseModel, frozen=True, extra="forbid"):
    """What a fit searched on its records for a target epsilon: every trial in order, and the
    mechanism with the settings of the one that was kept.
    """

    target_epsilon: float
    settled: AnyMechanism
    trials: tuple[SearchTrial, ...]


@dataclass(frozen=True)
class Fitted:
    """A model, the event that really ran, and aggregates that may be shown inside the agency."""

    model: Model
    event: Event
    figures: Mapping[str, Any] = field(default_factory=dict)
    search: Search | None = None
    """None: the fit searched nothing on the records."""


@dataclass(frozen=True)
class Reruns:
    """Holds the results of T reruns of a mechanism on an audit's pool of n records.

    ell float32 [T, n]: log-likelihoods of the records' own labels. right bool [T, n]: whether the
    label is the most probable. events: what each rerun claims for itself, by its accountant.
    """

    ell: Tensor
    right: Tensor
    events: tuple[Event, ...]


class Mechanism(BaseModel, ABC, frozen=True, extra="forbid"):
    """A way to get a model from records. Subclasses add their settings, and a
    `kind` of their own.
    """

    reads: ClassVar[frozenset[str]] = frozenset({"features", "head-features", "tokens"})
    """Forms of input (`form_of`) that it fits on."""
    draws: ClassVar[bool] = False
    """Whether a release draws from what a fit leaves, so that each release is another model."""
    by_ranks: ClassVar[bool] = False
    """Whether its fit of an encoder can be shared among processes (`mechanisms.model.ranks`)."""
    shared: ClassVar[frozenset[str]] = frozenset()
    """Settings that others of its kind take over in a comparison, where they leave them open."""

    kind: str

    @property
    def needs_target_epsilon(self) -> bool:
        """Tells whether it needs a target epsilon to plan."""
        return False

    @property
    def guarantee_kind(self) -> GuaranteeKind:
        """Returns the kind of claim that a release of its model has."""
        return "asymptotic-local" if self.draws else "none"

    def relevant_task(self, task: Task) -> Task:
        """Returns the task without the numbers that its plan does not depend on."""
        delta = float(Task.model_fields["delta"].default)
        return task.model_copy(update={"target_epsilon": None, "delta": delta})

    def without_target(self) -> tuple[Self, float | None, float | None]:
        """Returns the same without the target and delta that its noise is solved for, and these."""
        return self, None, None

    @property
    def searches(self) -> bool:
        """Tells whether a fit searches settings on the records, for a target epsilon."""
        return False

    @property
    def stage(self) -> str:
        """Names the fit among those that it goes on from; empty where there are none."""
        return ""

    @property
    def workload(self) -> Workload | None:
        """What a settled fit costs; None: the epochs of the run."""
        return None

    @property
    def continues(self) -> Mechanism | None:
        """The mechanism whose fit this one's goes on from; None where a fit starts afresh."""
        return None

    def for_start(self, *, at_examples: bool) -> Self:
        """Fills in the settings that depend on where the head starts: at public examples or not."""
        return self

    def with_defaults(self, defaults: Mapping[str, Any]) -> Self:
        """Settings that are None taken from a run's own, by name; what it has no field for is not
        taken.
        """
        fields = type(self).model_fields
        taken = {n: v for n, v in defaults.items() if n in fields and getattr(self, n) is None}
        return self.model_copy(update=taken)

    def check(self, task: Task) -> None:
        """Refuse early what `plan` would refuse by public numbers.

        Raises:
            MechanismError: names the setting.
        """

    def plan(self, task: Task) -> Plan:
        """Fill in unset fields, and solve the noise for the target; here there is
        nothing to do.

        Raises:
            MechanismError: the target cannot be met, or a setting contradicts the task.
        """
        return Plan(mechanism=self, task=task)

    def event(self, noise: float, task: Task) -> Event | None:
        """Returns the event of a fit at this noise, whose number has the measure that `plan` sets
        it in.

        Everything else in it (a sensitivity, a clip, how often a record is sampled) follows from
        settings and task. None: the cost is measured, and known after the fit.

        Raises:
            MechanismError: the task lacks a number that the event depends on.
        """
        return None

    def cost(self, plan: Plan, task: Task) -> Mapping[str, float]:
        """Figures of a plan for people: noise, steps, epsilon by several accountants. Only the
        claim counts.
        """
        return {}

    @abstractmethod
    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Fit this mechanism's own plan (`Plan.fit` calls it); the same call continues from
        `run.folder`.

        Noise is that of the plan's event. Anyone who starts from `run.classifier` calls it before
        anything is drawn.

        Raises:
            MechanismError: training diverged.
        """

    def load(self, folder: Path, run: Run, *, purpose: str = "evaluate") -> Model:
        """Read back what its model saved. Where that is a posterior: its repeatable draw of this
        purpose.
        """
        return ClassifierModel.load(folder, run)

    def running_sensitivity(self, folder: Path) -> Sequence[float] | None:
        """Delta of a saved fit after each draw, where it was measured over draws."""
        return None

    def audited_as(self, draws: int, *, batched: bool) -> tuple[Mechanism, str]:
        """The mechanism whose reruns also hold this one's, and the name that they have there.

        Args:
            draws: for what a rerun measures over draws of a posterior, in place of the mechanism's
                own number.
            batched: whether reruns are made side by side, or one by one.
        """
        return self, self.kind


@runtime_checkable
class Batched(Protocol):
    """A mechanism that reruns many fits of a linear head side by side; others are
    rerun one by one.
    """

    def fit_many(
        self, plan: Plan, pool: Pool, initial: Tensor, *, progress: Progress | None = None
    ) -> Mapping[str, Reruns]:
        """Reruns by name (`audited_as`), each trial on its own records of the pool.

        Args:
            initial: parameters of the untrained head, float32 [classes, width + 1], the bias last.
        """
        ...


class CalibratedMechanism(Mechanism, frozen=True):
    """A mechanism whose noise is solved for (target_epsilon, delta); a task fills in what is left
    open.
    """

    target_epsilon: float | None = Field(
        default=None,
        gt=0,
        le=1000,
        allow_inf_nan=False,
        title="Target epsilon",
        description="Empty: the task's.",
    )
    delta: float | None = Field(
        default=None, gt=0, lt=1, title="Delta", description="Empty: the task's."
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
        """Returns the settings with the task's target and delta in place of what is open; one of
        them has a target.
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
        assert plan.event is not None  # refuses here what the task lacks
        return plan

    def calibrate(self, task: Task) -> float:
        """Returns the noise at which a unit's cost meets the settled target: here a Gaussian noise
        multiplier.
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
    """A mechanism of noisy steps, after releases or without."""

    def cost(self, plan: Plan, task: Task) -> Mapping[str, float]:
        assert plan.event is not None
        sgd, delta, unit = descent_of(plan.event), self.delta or task.delta, task.records_per_unit
        cost = asdict(gaussian_cost.cost(plan.event, delta=delta, records_per_unit=unit))
        figures = {"noise_multiplier": sgd.segments[-1].noise_multiplier, "steps": sgd.steps}
        return figures | {name: value for name, value in cost.items() if value is not None}


@dataclass(frozen=True)
class ClassifierModel:
    """Holds a torch classifier with its fitted parameters; most mechanisms leave one."""

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
        """A folder that plain libraries load."""
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
    """Registers a mechanism by its `kind`, which profiles and reports know it by; one kind has one
    class.
    """
    kind = mechanism.model_fields["kind"].default
    if not isinstance(kind, str):
        raise TypeError(
            f"{mechanism.__qualname__}: `kind` needs a default, the tag that profiles name it by"
        )
    other = _KINDS.setdefault(kind, mechanism)
    if (other.__module__, other.__qualname__) != (mechanism.__module__, mechanism.__qualname__):
        raise TypeError(f"mechanism `{kind}` is {other.__module__}.{other.__qualname__} already")
    _KINDS[kind] = mechanism
    return mechanism


_CALLERS = ("comparison", "estimator", "fit_module")
"""Modules that register no mechanism, and take a second with scikit-learn."""


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
    known = kinds()
    if value.get("kind") not in known:
        raise ValueError(f"no mechanism `{value.get('kind')}`; there are {', '.join(known)}")
    return known[value["kind"]].model_validate(value)


def parsed(settings: Mapping[str, Any]) -> Mechanism:
    """Returns the registered mechanism of these settings, by its `kind`.

    Raises:
        ValueError: no mechanism of this kind, or a setting is out of range.
    """
    return cast("Mechanism", _parse(dict(settings)))


AnyMechanism = Annotated[SerializeAsAny[Mechanism], BeforeValidator(_parse)]
"""Any registered mechanism, by its `kind`."""
Plan.model_rebuild()
Search.model_rebuild()


def form_of(model: ModelConfig) -> str:
    """Returns the form: `features` under a linear layer, `head-features` under a standard head, or
    `tokens`.
    """
    if model.trainable != "head":
        return "tokens"
    return "features" if model.linear_head else "head-features"
