"""Logistic regression by objective perturbation, without weights or weighted by the classes' inverse frequencies.

    beta = argmin (1/n) sum_i w_i l(y_i, x_i beta) + (1/n) b beta + (lambda + Delta)/2 |beta|^2

with b of density proportional to exp(-r |b|). Without weights this is Chaudhuri et al. 2011, algorithm 2; with weights
w_i = n_other/n of two classes, Rosenblatt et al. 2025, algorithm 1. What it costs, with the paper's constants and with
tight ones, stands in `mechanisms.privacy.replaced`. Corrected against the paper: lambda is in the objective (its line 6
leaves it out), and the fallback's Delta is solved so that the Jacobian costs half of epsilon.

More than two classes: each against the rest, epsilon in equal parts. Their weights come from Laplace counts, since the
proof for true frequencies is of two classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from mechanisms.descent.keyed_state import KeyedState, fit_or_load
from mechanisms.errors import MechanismError
from mechanisms.mechanism import Aimed, Fitted, Plan, Records, Run, Task, registered
from mechanisms.privacy import replaced
from mechanisms.privacy.events import Event, LaplaceReleaseEvent, ObjectivePerturbationEvent, ReplacedComposedEvent
from mechanisms.privacy.noise import SecretStream
from mechanisms.tabular import linear
from mechanisms.tabular.columns import Columns, OfTables, TableModel, features_of
from mechanisms.tabular.linear import UnitLinear

SMALLEST_COUNT = 5.0
"""Noisy counts below this are raised to it before they become weights."""


@registered
class ObjectivePerturbation(OfTables, Aimed, frozen=True, title="Objective perturbation"):
    """Weights, constants, regularisation."""

    leaves: ClassVar[type[TableModel]] = UnitLinear

    kind: Literal["objective-perturbation"] = "objective-perturbation"
    weights: Literal["none", "frequencies"] = Field(default="none", title="Class weights")
    constants: Literal["paper", "tight"] = Field(
        default="tight", title="Constants", description="`paper`: those of the published proofs, which noise more."
    )
    regularisation: float | None = Field(
        default=None,
        gt=0,
        le=1e3,
        allow_inf_nan=False,
        title="Lambda",
        description="Empty: d / (8 n epsilon) of d coordinates, n records and a problem's epsilon. Raised where "
        "epsilon asks for it.",
    )
    counts_share: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        title="Share of the counts",
        description="Of epsilon; weights of three classes or more.",
    )

    def calibrate(self, task: Task) -> float:
        """Returns the epsilon of a record, of which `event` makes noise and regularisation."""
        assert self.target_epsilon is not None
        return self.target_epsilon / task.records_per_unit * (1 - 1e-9)

    def _counted(self, task: Task) -> bool:
        """Checks whether weights come from noisy counts."""
        return self.weights == "frequencies" and task.classes != 2

    def event(self, noise: float, task: Task) -> Event:
        """Returns the event that costs a record this epsilon, split between counts, problems, Jacobian and noise.

        It refuses records that are no table's.
        """
        epsilon = noise
        if task.features is None:
            raise MechanismError(
                "this mechanism is for tables (data.ingest.kind `table`): its noise depends on their width"
            )
        problems = 1 if task.classes == 2 else task.classes
        counted = self._counted(task)
        share = self.counts_share if counted else 0.0
        weights: Literal["none", "fixed", "frequencies"] = (
            "none" if self.weights == "none" else "fixed" if counted else "frequencies"
        )
        how = {
            "records": task.records,
            "features": task.features + 1,
            "curvature": linear.CURVATURE,
            "weights": weights,
            "constants": self.constants,
        }
        each = epsilon * (1 - share) / problems
        chosen = self.regularisation or usual_regularisation(how["records"], how["features"], each)
        regularisation = max(chosen, replaced.smallest_regularisation(each, **how))
        left = each - replaced.jacobian_cost(regularisation, **how)
        event = ObjectivePerturbationEvent(
            problems=problems,
            regularisation=regularisation,
            noise_rate=1.0,
            gradient_tolerance=linear.GRADIENT_TOLERANCE,
            **how,
        )
        event = event.model_copy(update={"noise_rate": left / replaced.distance(event)})
        if not counted:
            return event
        counts = LaplaceReleaseEvent(what="class counts", noise_multiplier=1 / (epsilon * share), l1_sensitivity=2.0)
        return ReplacedComposedEvent(events=(counts, event))

    def cost(self, plan: Plan, task: Task) -> Mapping[str, float]:
        """Noise and regularisation."""
        event = _perturbation(plan.event)
        return {"noise_rate": event.noise_rate, "regularisation": event.regularisation}

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Draw b and minimise, for every problem; refuses a minimiser that was not reached."""
        assert plan.event is not None
        event, features = plan.event, features_of(records.inputs)
        columns = Columns.of(run.schema, features.shape[1], bins=1)

        def make(state: KeyedState) -> UnitLinear:
            return UnitLinear(
                perturbed(event, columns.unit(features), records.labels, run.classes, state.stream), columns
            )

        model = fit_or_load(run.folder, linear.FILE, new_key=run.new_key, load=UnitLinear.load, fit=make)
        norms = model.coefficients.norm(dim=1)
        return Fitted(model, event, {"largest_coefficient_norm": float(norms.max())})


def usual_regularisation(records: int, features: int, epsilon: float) -> float:
    """Returns lambda by a rule that reads no record: the one that balances noise and shrinkage, up to constants.

    A perturbation of norm 2 d / epsilon costs (2 d / epsilon)^2 / (2 n^2 lambda) of the objective at most, and
    shrinkage lambda B^2 / 2 for coefficients of norm B. Their sum is least at 2 d / (epsilon n B), here for B = 16:
    records have a norm of at most 1, so that scores of a few nats need coefficients of that size.
    """
    return min(features / (8 * records * epsilon), 1e3)


def perturbed(event: Event, x: Tensor, labels: Tensor, classes: int, stream: SecretStream) -> Tensor:
    """Coefficients float64 [problems, d] of records x [n, d] of norm at most 1, as the event says."""
    how = _perturbation(event)
    n = torch.bincount(labels, minlength=classes).double()
    if how.weights == "fixed":
        assert isinstance(event, ReplacedComposedEvent)
        counts = event.events[0]
        assert isinstance(counts, LaplaceReleaseEvent)
        scale = counts.noise_multiplier * counts.l1_sensitivity
        noisy = (n + stream.laplace(classes, scale=scale, purpose="class counts", step=0)).clamp(min=SMALLEST_COUNT)
        by_class = noisy.min() / noisy
    elif how.weights == "frequencies":
        by_class = n.flip(0) / len(labels)
    else:
        by_class = torch.ones(classes, dtype=torch.float64)
    fitted = []
    for problem in range(how.problems):
        positive = labels == (1 if how.problems == 1 else problem)
        b = drawn(how, x.shape[1], stream, step=problem)
        y = torch.where(positive, 1.0, -1.0).double()
        fitted.append(linear.minimise(x, y, by_class[labels], regularisation=how.regularisation, linear=b))
    return torch.stack(fitted)


def drawn(event: ObjectivePerturbationEvent, size: int, stream: SecretStream, *, step: int) -> Tensor:
    """b float64 [size] of density proportional to exp(-noise_rate |b|): any direction, a norm that is Gamma(size)."""
    direction = stream.normal_(torch.empty(size, dtype=torch.float64), purpose="perturbation", step=step)
    steps = -(1 - stream.uniform(size, purpose="norm of the perturbation", step=step)).log()
    return direction / direction.norm() * steps.sum() / event.noise_rate


def _perturbation(event: Event | None) -> ObjectivePerturbationEvent:
    parts = event.events if isinstance(event, ReplacedComposedEvent) else (event,)
    return next(part for part in parts if isinstance(part, ObjectivePerturbationEvent))
