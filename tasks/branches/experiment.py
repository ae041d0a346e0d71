"""Runs experiments: one mechanism on one model and one data set, at a seed and a target.

A training run is one experiment, a comparison is many, and an audit attacks one. Every mechanism
has the same stages: plan the noise, fit, predict, and score on the held-out records. If a fit
continues another fit (`Mechanism.continues`), the stages of the other fit come first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

from mechanisms.mechanism import Mechanism, Search, Task
from mechanisms.model.config import ModelConfig
from mechanisms.privacy import claims
from mechanisms.privacy.events import Claim, Event
from storage.artifacts import ArtifactRef
from storage.json_values import Config
from tasks.branches import branch as branches
from tasks.branches.branch import ComparisonSettings
from tasks.fitting import data, fits, prior, scores
from tasks.fitting.ingest import IngestFigures, ingest_figures, ingest_records
from tasks.method import Method
from tasks.parameters import RetrainParameters
from tasks.releasing import ledger_access
from tasks.releasing.claims import SEARCHED, claim_on, method_of, privacy_unit
from tasks.running.stage import Context, Step

RunStep = Callable[[Step], ArtifactRef]
Ref = TypeVar("Ref", ArtifactRef, ArtifactRef | None)
"""A step's output. In a dry run it is None if there is no output yet.
"""
SMALLEST_EPSILON = 1e-4
"""Smallest epsilon that is stated. At a delta near 1, epsilon 0 would suffice, but amounts in a
ledger are positive. A claim with a larger epsilon is also valid.
"""


def prepare(
    parameters: RetrainParameters,
    dataset: Ref,
    models: Iterable[ModelConfig],
    run_step: Callable[[Step], Ref],
) -> Ref:
    """Returns the features or tokens of the records. The titles that these models start from are
    encoded first.
    """
    for model in dict.fromkeys(models):
        for step in prior.stages(model, parameters.data):
            run_step(step)
    model, labels = parameters.model, parameters.data.labels
    if not labels or model.trainable != "head":
        return run_step(data.prepare(model, dataset))
    ingested = [run_step(ingest_records(parameters.data.of_label(column))) for column in labels]
    texts = run_step(data.distinct_texts(ingested))
    encoding = {"texts": texts, "encoding": run_step(data.encoding_of(model, texts))}
    return run_step(data.prepare(model, dataset, encoding=encoding))


@dataclass(frozen=True)
class Study:
    """What experiments have in common: records, settings, target, and how stages are run."""

    context: Context
    parameters: RetrainParameters
    terms: ComparisonSettings
    dataset: ArtifactRef
    prepared: ArtifactRef
    facts: IngestFigures
    """Figures of the ingest."""
    run_step: RunStep

    @staticmethod
    def of(
        context: Context,
        parameters: RetrainParameters,
        terms: ComparisonSettings,
        chosen: Sequence[Method],
        run_step: RunStep,
    ) -> Study:
        """Prepares the records for these branches. Refuses a branch that cannot be fitted."""
        models = [branches.model_for(branch, parameters) for branch in chosen]
        dataset = run_step(ingest_records(parameters.data))
        facts = ingest_figures(context.store, dataset)
        counted = Study(context, parameters, terms, dataset, dataset, facts, run_step)
        for branch in chosen:
            experiment = counted.experiment(branch)
            experiment.mechanism.check(experiment.task)
        return replace(counted, prepared=prepare(parameters, dataset, models, run_step))

    def experiment(self, branch: Method, seed: int | None = None) -> Experiment:
        """Returns the experiment of a branch at a seed, by default the run's seed."""
        return Experiment(self, branch, self.parameters.seed if seed is None else seed)

    def retargeted(self, epsilon: float) -> Study:
        return replace(self, terms=self.terms.model_copy(update={"target_epsilon": epsilon}))

    @property
    def records(self) -> Any:
        return {"dataset": self.dataset, "prepared": self.prepared}

    @cached_property
    def default_delta(self) -> float:
        """Delta for branches that set none: the run's, or a default from the number of records and
        the policy.
        """
        delta = self.terms.delta or self.parameters.method.delta
        records = self.facts["train"]
        return delta or ledger_access.default_delta(self.context, self.parameters, records=records)


@dataclass(frozen=True)
class Stages(Generic[Ref]):
    """The stages of one mechanism at a seed."""

    name: str
    mechanism: Mechanism
    """The mechanism with the run's settings, before its noise is calibrated."""
    planned: Ref
    fitted: Ref
    predictions: Ref
    measured: Ref
    """Its scores."""


@dataclass(frozen=True)
class Experiment:
    """One mechanism on the records of a study, at a seed and the study's target."""

    study: Study
    branch: Method
    seed: int

    @property
    def model(self) -> ModelConfig:
        return branches.model_for(self.branch, self.study.parameters)

    @property
    def mechanism(self) -> Mechanism:
        return branches.mechanism_for(self.branch, self.study.parameters, self.study.terms)

    @property
    def delta(self) -> float:
        return self.branch.delta or self.study.default_delta

    @property
    def task(self) -> Task:
        facts = self.study.facts
        return Task(
            records=facts["train"],
            classes=facts["label_space"],
            records_per_unit=privacy_unit(self.study.parameters.data.ingest)[1],
            target_epsilon=self.study.terms.target_epsilon,
            delta=self.delta,
        )

    @property
    def method(self) -> Config:
        """Settings of which a release's key contains a digest. `method_of` reads the same settings
        back from a fit.
        """
        ingest = self.study.parameters.data.ingest.model_dump(mode="json")
        step = self.fit(self.branch.name, self.mechanism, planned=None)
        task = self.mechanism.relevant_task(self.task).model_dump(mode="json")
        population = self.study.parameters.data.population
        return method_of(step.config, task, population=population, ingest=ingest)

    def claim(self, event: Event, search: Search | None = None) -> Claim:
        study = self.study
        claim = claim_on(
            study.facts,
            study.parameters.data.ingest,
            self.model,
            event,
            delta=self.delta if claims.formal(event) else None,
            also_unprotected=(*self.branch.unprotected, *(() if search is None else (SEARCHED,))),
        )
        if claim.epsilon is not None and claim.epsilon < SMALLEST_EPSILON:
            raised = {"epsilon": SMALLEST_EPSILON, "epsilon_add_remove": SMALLEST_EPSILON}
            claim = claim.model_copy(update=raised)
        return claim

    def plan(self) -> Step:
        return fits.plan(self.branch.name, self.mechanism, self.task)

    def fit(self, name: str, mechanism: Mechanism, *, planned: Any, earlier: Any = None) -> Step:
        where = {"planned": planned, "earlier": earlier, **self.study.records}
        return fits.fit(name, mechanism, self.model, seed=self.seed, **where)

    def predict(self, mechanism: Mechanism, fitted: ArtifactRef, **options: Any) -> ArtifactRef:
        """Predicts with a fit, or with one repeatable draw of a posterior. The options are those of
        `fits.predict`.
        """
        where: Any = {"seed": self.seed, "fitted": fitted, **self.study.records, **options}
        return self.study.run_step(fits.predict(self.branch.name, mechanism, self.model, **where))

    def stages(
        self, run_step: Callable[[Step], Ref], *, score_all: bool = False
    ) -> list[Stages[Ref]]:
        """Runs the stages in order, starting with the fits that this one continues.

        Args:
            score_all: whether those fits are scored as well.
        """
        made: list[Stages[Ref]] = []
        where: Any = {"seed": self.seed, **self.study.records}
        parts = branches.parts(self.branch, self.study.parameters, self.study.terms)
        task = self.task if self.study.facts else None
        earlier: Ref | None = None
        for name, mechanism in parts.items():
            planned: Any = run_step(fits.plan(name, mechanism, task))
            fitted: Any = run_step(self.fit(name, mechanism, planned=planned, earlier=earlier))
            earlier = fitted
            if not score_all and name != self.branch.name:
                continue
            settled = mechanism
            if planned is not None:
                settled = fits.plan_of(self.study.context.store.open(planned)).mechanism
            predictions: Any = run_step(
                fits.predict(name, settled, self.model, fitted=fitted, **where)
            )
            measured = run_step(scores.score(name, predictions=predictions, **where))
            made.append(Stages(name, mechanism, planned, fitted, predictions, measured))
        return made

    def run(self) -> Outcome:
        return self._outcome(self.stages(self.study.run_step)[-1])

    def run_all(self) -> list[Outcome]:
        """Runs all stages and also scores the fits that this one continues, which come first."""
        return [
            self._outcome(stages) for stages in self.stages(self.study.run_step, score_all=True)
        ]

    def _outcome(self, stages: Stages[ArtifactRef]) -> Outcome:
        store = self.study.context.store
        folder = store.open(stages.fitted)
        event, search = fits.event_of(folder), fits.search_of(folder)
        return Outcome(
            branch=self.branch,
            seed=self.seed,
            asked=stages.mechanism,
            mechanism=fits.plan_of(folder).mechanism,
            search=search,
            event=event,
            claim=self.claim(event, search),
            fitted=stages.fitted,
            measured=stages.measured,
            figures=scores.figures_of(store, stages.measured),
        )


@dataclass(frozen=True)
class Outcome:
    """One branch at one seed, fitted and scored on the held-out records."""

    branch: Method
    seed: int
    asked: Mechanism
    """The mechanism with the run's settings, before planning."""
    mechanism: Mechanism
    """The mechanism as planned, with every setting filled in."""
    search: Search | None
    """Settings that the fit searched for on the records."""
    event: Event
    claim: Claim
    fitted: ArtifactRef
    measured: ArtifactRef
    """The stage with its scores."""
    figures: Mapping[str, float | None]
    """Its scores."""

    @property
    def rerun(self) -> Mechanism:
        """The mechanism for reruns, with the settings that were found by search, because a rerun
        does not search.
        """
        return self.asked if self.search is None else self.search.settled
