"""A posterior draw of a head under a bounded likelihood: pure epsilon, delta 0, at every number of records.

    theta drawn from density proportional to exp( sum_i u(l_i(theta)) ) N(theta; theta_0, tau^2 I),    u in [-B, 0]

with the bounded likelihood u of `mechanisms.model.bounded`, where the proof stands: one exact draw is B-private when a
record is added or removed and 2B-private when one is replaced, the exponential mechanism with scores u. It needs no
convexity, no norm of the features and no clipping. theta_0 is the untrained head. Of several fields l_i is a record's
log-likelihood over all of its fields (`mechanisms.model.fields`), and B bounds that sum, whatever their number.

u is not concave in theta: where a record is badly predicted it stops pulling, so that the density may have several
modes, and chains may stay in one. Half of the chains therefore start at draws of the prior, the others around a mode,
and the draw is refused unless all of them agree (`mechanisms.posterior.convergence`). That they all missed the same
mode is assumed not to be the case.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from mechanisms.audit import posterior_trials, trials
from mechanisms.errors import MechanismError
from mechanisms.mechanism import ClassifierModel, Fitted, Mechanism, Plan, Records, Reruns, Run, Task, registered
from mechanisms.model.bounded import BoundedLikelihood
from mechanisms.model.config import Positive
from mechanisms.model.fields import Fields
from mechanisms.model.linear_head import features_of, load_parameters, parameters_of, with_bias
from mechanisms.model.training import Progress
from mechanisms.posterior.convergence import SAMPLED, draws_of
from mechanisms.posterior.gibbs import SoftmaxPosterior
from mechanisms.posterior.hmc import SamplerConfig
from mechanisms.privacy.claims import EXACT_DRAW, claims
from mechanisms.privacy.events import Claim, Event


class BoundedPosteriorEvent(Event, frozen=True):
    """One draw from the posterior of a likelihood whose logarithm is bounded for every record and parameter."""

    mechanism: Literal["bounded-posterior"] = "bounded-posterior"
    bound: float = Field(gt=0, allow_inf_nan=False)
    """B: largest absolute score of any record at any parameters, in nats."""
    prior_std: float = Field(gt=0, allow_inf_nan=False)


@claims(BoundedPosteriorEvent, formal=True)
def _claim(event: BoundedPosteriorEvent, *, delta: float | None, unit: dict[str, Any]) -> Claim:
    """Claims 2B for replacing one record, B for adding or removing one, delta 0 whatever was asked for.

    A unit of m records adds scores in [-m B, 0], so both are multiplied by m.
    """
    m, bound = int(unit["max_records_per_unit"]), event.bound
    by_unit = "" if m == 1 else f", times the {m} records that a unit may own"
    return Claim(
        guarantee_kind="formal",
        epsilon=2 * m * bound,
        delta=0.0,
        delta_text="0 by proof, of an exact draw",
        sensitivity=bound,
        epsilon_add_remove=m * bound,
        neighbouring_relation="replace-one",
        accountant="2 B, bounded likelihood (exponential mechanism; after Hu et al. 2022, arXiv 2205.05003)",
        assumptions=(
            f"every record's score is within {bound:.4g} nats at all parameters, by construction{by_unit}: epsilon "
            "bounds replacing one unit, half of it adding or removing one; for every data set, with delta 0",
            f"conditional on exact sampling: {SAMPLED}; the density may have several modes, and chains from prior and "
            "mode have to agree",
            *EXACT_DRAW,
        ),
        **unit,
    )


@registered
class BoundedPosterior(Mechanism, frozen=True, title="Bounded posterior"):
    """The target sets the bound: epsilon of replacing one unit is 2B."""

    reads: ClassVar[frozenset[str]] = frozenset({"features"})
    several: ClassVar[bool] = True

    kind: Literal["bounded-posterior"] = "bounded-posterior"
    target_epsilon: float | None = Field(
        default=None,
        gt=0,
        le=1000,
        allow_inf_nan=False,
        title="Target epsilon",
        description="Of replacing one unit; of adding or removing one it is half. Empty: the task's.",
    )
    prior_std: Positive = Field(
        default=0.3,
        title="Standard deviation of the prior",
        description="Of each weight and bias, around the untrained head. At 1 chains did not agree: docs/posterior.md.",
    )
    draws: int = Field(
        default=1600,
        ge=1,
        le=1_000_000,
        title="Draws",
        description="That the chains' agreement is judged on, 100 a chain at least; one more is released. Chains move "
        "slowly here: with 400, one of two fits of 2,357 reports was refused.",
    )
    sampler: SamplerConfig = Field(default=SamplerConfig(chains=8), title="Sampler")

    @property
    def has_target(self) -> bool:
        """The bound is half of a target."""
        return True

    def plan(self, task: Task) -> Plan:
        """Sets the bound by the target, so that replacing a unit costs it; refuses a task without a target."""
        target = self.target_epsilon or task.target_epsilon
        if target is None:
            raise MechanismError(f"mechanism `{self.kind}` needs a target epsilon: give --target-epsilon a number")
        bound = BoundedLikelihood.for_epsilon(target / task.records_per_unit).bound
        return Plan(mechanism=self.model_copy(update={"target_epsilon": target}), task=task, noise=bound)

    def event(self, noise: float, task: Task) -> BoundedPosteriorEvent:
        """Returns a draw under this bound."""
        return BoundedPosteriorEvent(bound=noise, prior_std=self.prior_std)

    def fit(self, plan: Plan, records: Records, run: Run) -> Fitted:
        """Sample, and keep one draw; refuses draws that are not to be trusted."""
        event, classifier = plan.event, run.classifier()
        assert isinstance(event, BoundedPosteriorEvent)
        run.layout.check(records.labels)
        start = parameters_of(classifier, run.classes)
        target = self._posterior(event, with_bias(features_of(records.inputs)), records.labels, start, run.fields)
        drawn, figures = draws_of(
            target,
            start,
            self.sampler,
            self.draws,
            purpose="bounded posterior",
            folder=run.folder,
            key=run.key,
            progress=run.progress,
        )
        load_parameters(classifier, drawn.theta[0])
        return Fitted(ClassifierModel(classifier), event, figures | {"step_size": drawn.step_size})

    def fit_many(
        self, plan: Plan, pool: trials.Records, initial: Tensor, *, progress: Progress | None = None
    ) -> Mapping[str, Reruns]:
        """A chain a trial, from its mode (`mechanisms.audit.posterior_trials`)."""
        event = plan.event
        assert isinstance(event, BoundedPosteriorEvent)
        posteriors = [
            self._posterior(event, pool.with_bias[own], pool.labels[own], initial, pool.fields) for own in pool.included
        ]
        theta, _ = posterior_trials.sample(posteriors, initial, progress=progress)
        ell, right = trials.log_likelihood(theta, pool.with_bias, pool.labels, pool.fields)
        return {self.kind: Reruns(ell, right, (event,) * len(theta))}

    def _posterior(
        self, event: BoundedPosteriorEvent, features: Tensor, labels: Tensor, start: Tensor, fields: Fields | None
    ) -> SoftmaxPosterior:
        bounded = BoundedLikelihood(bound=event.bound)
        return SoftmaxPosterior(features, labels, start, self.prior_std, bounded=bounded, fields=fields)
