"""Runs the stages of SWAG-PPM in order, from a file of records to a measured posterior of each round.

ingest -> features or tokens -> fine-tune -> SWAG -> risk weights
       -> fine-tune (weighted) -> SWAG (weighted) -> sensitivity
       -> reweight -> fine-tune (reweighted) -> SWAG (reweighted) -> sensitivity
       -> evaluate

That is mechanism `weighted`. `both` bounds the likelihood in the weighted fit and ends there; `censored` has one fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mechanisms.posterior.rounds import ROUNDS, RoundName
from mechanisms.posterior.rounds import run as run_rounds
from mechanisms.privacy.events import BoundedSwagEvent, Claim, Event, SwagPpmEvent
from mechanisms.swag_ppm import SwagPpm
from storage.artifacts import ArtifactRef, Store
from tasks.branches.branch import Branch
from tasks.branches.experiment import Experiment, Outcome, prepare, register_runner
from tasks.fitting import data, evaluate, risks, train
from tasks.fitting.train import Round
from tasks.parameters import RetrainParameters
from tasks.releasing.claims import claim, swag_event
from tasks.running.stage import Step


@dataclass(frozen=True)
class Chain:
    """Holds the references of a chain's outputs; None where a dry run finds no output."""

    dataset: ArtifactRef | None
    prepared: ArtifactRef | None
    posteriors: Mapping[str, ArtifactRef | None]
    measured: Mapping[str, ArtifactRef | None]
    evaluated: ArtifactRef | None

    def event(self, store: Store, parameters: RetrainParameters, name: RoundName) -> SwagPpmEvent | BoundedSwagEvent:
        """Returns the event of a round that was fitted with these parameters."""
        posterior, measured = self.posteriors[name], self.measured[name]
        assert posterior is not None
        assert measured is not None
        moments, figures = store.figures(posterior), store.figures(measured)
        return swag_event(parameters, name, snapshots=moments["snapshots"], rank=moments["rank"], figures=figures)

    def claim(self, store: Store, parameters: RetrainParameters, name: RoundName) -> tuple[Event, Claim]:
        """Returns the event of a round, and its claim for a unit of these records."""
        event = self.event(store, parameters, name)
        assert self.dataset is not None
        return event, claim(parameters, event, store.figures(self.dataset))


def run_chain(
    parameters: RetrainParameters,
    do: Callable[[Step], ArtifactRef | None],
    *,
    rounds: Sequence[RoundName] | None = None,
    ingested: ArtifactRef | None = None,
) -> Chain:
    """Takes the stages in order. `do` runs a step, or, in a dry run, looks for its output.

    Args:
        rounds: only these are fitted, and nothing is scored on the test half.
        ingested: the data set, if it exists already: the records' file and the code list are not read then.
    """
    model, fit, config = parameters.model, parameters.fit, parameters.pseudo_posterior
    if ingested is None:
        dataset, prepared = prepare(parameters, [model], do)
    else:
        dataset, prepared = ingested, do(data.prepare(model, ingested, seed=fit.seed))
    posteriors: dict[str, ArtifactRef | None] = {}

    def fit_round(name: RoundName, weights: ArtifactRef | None) -> ArtifactRef | None:
        this = Round(name, model, fit, dataset, prepared, weights, parameters.bounded(name))
        tuned = do(train.fine_tune(this))
        posteriors[name] = do(train.collect_swag(this, tuned=tuned))
        return do(risks.measure(this, config, posterior=posteriors[name]))

    def weigh(name: RoundName, weights: ArtifactRef | None, measured: ArtifactRef | None) -> ArtifactRef | None:
        return do(risks.weigh(config, name, measured=measured))

    measured: Mapping[str, ArtifactRef | None] = {**run_rounds(rounds or parameters.rounds, fit_round, weigh)}
    evaluated = None
    if rounds is None:
        evaluated = do(evaluate.evaluate(model, fit, dataset=dataset, prepared=prepared, posteriors=posteriors))
    return Chain(dataset, prepared, posteriors, measured, evaluated)


@dataclass(frozen=True)
class FittedRound:
    """Holds a fitted and measured round: its posterior, its sensitivity, and the claim of a draw."""

    posterior: ArtifactRef
    sensitivity: ArtifactRef
    event: Event
    claim: Claim


def fit_round(experiment: Experiment) -> FittedRound:
    """Runs the chain as far as the branch's round. A comparison and a retrain reuse each other's finished stages."""
    study, parameters, mechanism = experiment.study, experiment.parameters, experiment.swag_ppm
    assert mechanism is not None
    chain = run_chain(parameters, study.do, rounds=ROUNDS[mechanism.round], ingested=study.dataset)
    posterior, sensitivity = chain.posteriors[mechanism.round], chain.measured[mechanism.round]
    assert posterior is not None
    assert sensitivity is not None
    event = chain.event(study.context.store, parameters, mechanism.round)
    return FittedRound(posterior, sensitivity, event, experiment.claim(event))


def draws_from_reweighted(branch: Branch) -> bool:
    """Checks whether a branch is drawn from a reweighted round, which needs equation 7."""
    return isinstance(branch.mechanism, SwagPpm) and branch.mechanism.round == "reweighted"


@register_runner(SwagPpm)
def run(experiment: Experiment) -> Outcome:
    """Fits, measures and scores one repeatable draw."""
    store, fitted, mechanism = experiment.study.context.store, fit_round(experiment), experiment.swag_ppm
    assert mechanism is not None
    measured = experiment.score(mechanism, fitted.posterior)
    return Outcome(
        branch=experiment.branch,
        seed=experiment.seed,
        mechanism=mechanism,
        event=fitted.event,
        claim=fitted.claim,
        fitted=fitted.posterior,
        measured=measured,
        figures=store.figures(measured),
        losses=store.figures(fitted.posterior)["losses"],
        cost={},
        sensitivity=fitted.sensitivity,
    )
