"""Runs experiments: one mechanism on one model and one data set, at a seed and a target.

A training run is one experiment, a comparison many, an audit attacks one. Most mechanisms are one
fit: plan its noise, fit, score on the test half. SWAG-PPM is a chain of fits, and one repeatable
draw is scored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from mechanisms.mechanism import Mechanism, Task
from mechanisms.model.config import ModelConfig
from mechanisms.posterior.rounds import ROUNDS
from mechanisms.privacy import claims
from mechanisms.privacy.events import Claim, Event
from mechanisms.swag_ppm import SwagPpm
from storage.artifacts import ArtifactRef
from tasks.branches.branch import Branch, Terms
from tasks.branches.swag_chain import Chain, prepare, run_chain
from tasks.fitting import fits, scores
from tasks.parameters import FitParameters, RetrainParameters
from tasks.releasing import ledger_access
from tasks.releasing.claims import claim_on, privacy_unit
from tasks.running.stage import Context, Step

Do = Callable[[Step], ArtifactRef]
SMALLEST_EPSILON = 1e-4
"""Stated instead of less: at a delta near 1 epsilon 0 suffices, and a ledger's amount is above
zero. A claim with a larger epsilon holds as well.
"""


@dataclass(frozen=True)
class Study:
    """Holds what experiments share: records, terms, target, and how a stage is run."""

    context: Context
    parameters: RetrainParameters
    terms: Terms
    dataset: ArtifactRef
    prepared: ArtifactRef
    facts: Mapping[str, Any]
    """Figures of the ingest."""
    do: Do

    @staticmethod
    def of(
        context: Context,
        parameters: RetrainParameters,
        terms: Terms,
        chosen: Sequence[Branch],
        do: Do,
    ) -> Study:
        """Prepares the records for these branches; refuses a branch that cannot be fitted on them."""
        dataset, prepared = prepare(parameters, (branch.model(parameters) for branch in chosen), do)
        facts = context.store.figures(dataset)
        study = Study(context, parameters, terms, dataset, prepared, facts, do)
        for branch in chosen:
            experiment = study.experiment(branch)
            experiment.mechanism.check(experiment.task)
        return study

    def experiment(self, branch: Branch, seed: int | None = None) -> Experiment:
        """The experiment of a branch at a seed; the run's, if none is given."""
        return Experiment(self, branch, self.parameters.fit.seed if seed is None else seed)

    def retargeted(self, epsilon: float) -> Study:
        return replace(self, terms=self.terms.model_copy(update={"target_epsilon": epsilon}))

    @property
    def records(self) -> Any:
        return {"dataset": self.dataset, "prepared": self.prepared}

    @cached_property
    def default_delta(self) -> float:
        """Delta of branches that set none: the run's, or what number of records and policy allow."""
        formal, records = self.parameters.formal, self.facts["train"]
        stated = self.terms.delta or (None if formal is None else formal.delta)
        return stated or ledger_access.default_delta(self.context, self.parameters, records=records)


@dataclass(frozen=True)
class Experiment:
    """Holds one mechanism on the records of a study, at a seed and the study's target."""

    study: Study
    branch: Branch
    seed: int

    @property
    def model(self) -> ModelConfig:
        return self.branch.model(self.study.parameters)

    @property
    def mechanism(self) -> Mechanism:
        return self.branch.mechanism_for(self.study.parameters, self.study.terms)

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

    @cached_property
    def swag_ppm(self) -> SwagPpm | None:
        """SWAG-PPM as planned; None where the mechanism is another."""
        planned = (
            self.mechanism.plan(self.task).mechanism
            if isinstance(self.mechanism, SwagPpm)
            else None
        )
        return planned if isinstance(planned, SwagPpm) else None

    @cached_property
    def parameters(self) -> RetrainParameters:
        """The parameters of this experiment: its seed, and where it is SWAG-PPM the mechanism's
        settings.
        """
        run = self.study.parameters
        if self.swag_ppm is None:
            return run.model_copy(update={"fit": run.fit.model_copy(update={"seed": self.seed})})
        (tune, collect), (moments, config) = self.swag_ppm.phases, self.swag_ppm.settings
        fit = FitParameters(adamw=tune, sgd=collect, swag=moments, seed=self.seed)
        return run.model_copy(update={"model": self.model, "fit": fit, "pseudo_posterior": config})

    def claim(self, event: Event) -> Claim:
        study = self.study
        claim = claim_on(
            study.facts,
            study.parameters.data.ingest,
            self.model,
            event,
            delta=self.delta if claims.formal(event) else None,
            also_unprotected=self.branch.unprotected,
        )
        if claim.epsilon is not None and claim.epsilon < SMALLEST_EPSILON:
            raised = {"epsilon": SMALLEST_EPSILON, "epsilon_add_remove": SMALLEST_EPSILON}
            claim = claim.model_copy(update=raised)
        return claim

    def plan(self) -> Step:
        return fits.plan(self.branch.name, self.mechanism, self.task)

    def fit(self, *, planned: ArtifactRef) -> Step:
        name, mechanism = self.branch.name, self.branch.mechanism
        return fits.fit(
            name, mechanism, self.model, seed=self.seed, planned=planned, **self.study.records
        )

    def predict(self, mechanism: Mechanism, fitted: ArtifactRef, **options: Any) -> ArtifactRef:
        """Predicts at a fit, or at one repeatable draw of a posterior; options are those of
        `fits.predict`.
        """
        where: Any = {"seed": self.seed, "fitted": fitted, **self.study.records, **options}
        return self.study.do(fits.predict(self.branch.name, mechanism, self.model, **where))

    def run(self) -> Outcome:
        if self.swag_ppm is not None:
            chain, event = self.fit_rounds()
            name = self.swag_ppm.round
            return self._outcome(
                self.swag_ppm, event, chain.posteriors[name], sensitivity=chain.measured[name]
            )
        study, store = self.study, self.study.context.store
        planned = study.do(self.plan())
        fitted = study.do(self.fit(planned=planned))
        mechanism, event = (
            fits.plan_of(store.open(planned)).mechanism,
            fits.event_of(store.open(fitted)),
        )
        return self._outcome(mechanism, event, fitted)

    def fit_rounds(self) -> tuple[Chain[ArtifactRef], Event]:
        """Runs SWAG-PPM's chain up to the branch's round, and returns that round's event.

        A comparison and a training run reuse each other's finished stages.
        """
        assert self.swag_ppm is not None
        study, parameters, name = self.study, self.parameters, self.swag_ppm.round
        chain = run_chain(parameters, study.do, rounds=ROUNDS[name], ingested=study.dataset)
        return chain, chain.event(study.context.store, parameters, name)

    def _outcome(
        self,
        mechanism: Mechanism,
        event: Event,
        fitted: ArtifactRef,
        *,
        sensitivity: ArtifactRef | None = None,
    ) -> Outcome:
        study, store = self.study, self.study.context.store
        predictions = self.predict(mechanism, fitted)
        measured = study.do(
            scores.score(self.branch.name, seed=self.seed, predictions=predictions, **study.records)
        )
        return Outcome(
            branch=self.branch,
            seed=self.seed,
            mechanism=mechanism,
            event=event,
            claim=self.claim(event),
            fitted=fitted,
            measured=measured,
            figures=store.figures(measured),
            sensitivity=sensitivity,
        )


@dataclass(frozen=True)
class Outcome:
    """Holds one branch at one seed, fitted and scored on the test half."""

    branch: Branch
    seed: int
    mechanism: Mechanism
    """As it ran, with every setting filled in."""
    event: Event
    claim: Claim
    fitted: ArtifactRef
    measured: ArtifactRef
    """The stage of its scores."""
    figures: Mapping[str, Any]
    sensitivity: ArtifactRef | None = None
    """The stage that measured risks or Delta over draws of a posterior; None where the fit itself
    is the candidate.
    """
