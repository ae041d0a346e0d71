"""The stages of SWAG-PPM in order, from a file of records to a measured posterior of each round.

ingest -> features or tokens -> fine-tune -> SWAG -> risk weights
       -> fine-tune (weighted) -> SWAG (weighted) -> sensitivity
       -> reweight -> fine-tune (reweighted) -> SWAG (reweighted) -> sensitivity
       -> evaluate

That is mechanism `weighted`. `both` bounds the likelihood in the weighted fit and ends there; `censored` has one fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mechanisms.privacy.events import Claim, Event
from mechanisms.swag_ppm import ROUNDS, WEIGHTED, SwagPpm
from storage.artifacts import ArtifactRef
from tasks.branches import one_fit
from tasks.branches.branch import Branch
from tasks.branches.outcome import Outcome, Study, runs
from tasks.fitting import data, evaluate, prior, risks, train
from tasks.parameters import FitParameters, RetrainParameters
from tasks.releasing.claims import swag_event
from tasks.running.stage import Step


@dataclass(frozen=True)
class Chain:
    """References of what a retrain made; None where a dry run found nothing."""

    dataset: ArtifactRef | None
    prepared: ArtifactRef | None
    posteriors: dict[str, ArtifactRef | None]
    weights: ArtifactRef | None
    measured: dict[str, ArtifactRef | None]
    evaluated: ArtifactRef | None


def chain(
    parameters: RetrainParameters,
    do: Callable[[Step], ArtifactRef | None],
    *,
    rounds: tuple[str, ...] | None = None,
    ingested: ArtifactRef | None = None,
) -> Chain:
    """The stages in order. `do` runs a step, or, in a dry run, looks whether it is finished already.

    Args:
        rounds: only these are fitted, and nothing is scored on the test half.
        ingested: the data set, where it is there: the records' file and the code list are not read then.
    """
    model, fit, config = parameters.model, parameters.fit, parameters.pseudo_posterior
    dataset = ingested
    if dataset is None:
        dataset = do(data.ingest(parameters.data))
        for step in prior.stages(model, parameters.data.whole_codelists):
            do(step)
    prepared = do(data.prepare(model, dataset, seed=fit.seed))

    posteriors: dict[str, ArtifactRef | None] = {}
    measured: dict[str, ArtifactRef | None] = {}
    weights: ArtifactRef | None = None
    for name in rounds or parameters.rounds:
        if name == "reweighted":
            weights = do(risks.reweight(config, measured=measured["weighted"]))
        common: Any = {"dataset": dataset, "prepared": prepared, "weights": weights}
        how: Any = {"weighted": name in WEIGHTED, "bounded": parameters.bounded(name)}
        tuned = do(train.fine_tune(name, model, fit, **how, **common))
        posteriors[name] = drawn_from = do(train.collect_swag(name, model, fit, tuned=tuned, **how, **common))
        if name == "base":
            measured[name] = do(
                risks.risks(model, fit, config, dataset=dataset, prepared=prepared, posterior=drawn_from)
            )
            weights = do(risks.weights(config, risks=measured[name]))
        else:
            step = risks.sensitivity(name, model, fit, config, posterior=drawn_from, **how, **common)
            measured[name] = do(step)
    evaluated = None
    if rounds is None:
        evaluated = do(evaluate.evaluate(model, fit, dataset=dataset, prepared=prepared, posteriors=posteriors))
    return Chain(dataset, prepared, posteriors, weights, measured, evaluated)


def parameters_of(study: Study, branch: Branch, seed: int) -> RetrainParameters:
    """The retrain whose chain holds the branch's round; a bound is chosen so that a unit's epsilon is the target."""
    mechanism = study.mechanism(branch).plan(study.task(branch)).mechanism
    assert isinstance(mechanism, SwagPpm)
    (tune, collect), (moments, config) = mechanism.phases, mechanism.settings
    if config.target_epsilon is not None:  # a mechanism has a record's share of it, a retrain names the unit's
        config = config.model_copy(update={"target_epsilon": study.target})
    fit = FitParameters(adamw=tune, sgd=collect, swag=moments, seed=seed)
    model = branch.model(study.parameters)
    return study.parameters.model_copy(update={"model": model, "fit": fit, "pseudo_posterior": config})


@dataclass(frozen=True)
class Round:
    """A branch's round, fitted and measured: the posterior, its sensitivity, and what is claimed of a draw."""

    mechanism: SwagPpm
    posterior: ArtifactRef
    sensitivity: ArtifactRef
    event: Event
    claim: Claim


def fitted(study: Study, branch: Branch, seed: int) -> Round:
    """The chain as far as the branch's round; what a retrain has finished is reused, and the other way round."""
    store, parameters = study.context.store, parameters_of(study, branch, seed)
    mechanism = study.mechanism(branch).plan(study.task(branch)).mechanism
    assert isinstance(mechanism, SwagPpm)
    rounds = chain(parameters, study.do, rounds=ROUNDS[mechanism.round], ingested=study.dataset)
    posterior, sensitivity = rounds.posteriors[mechanism.round], rounds.measured[mechanism.round]
    assert posterior is not None
    assert sensitivity is not None
    moments, figures = store.figures(posterior), store.figures(sensitivity)
    event = swag_event(
        parameters, mechanism.round, snapshots=moments["snapshots"], rank=moments["rank"], figures=figures
    )
    return Round(mechanism, posterior, sensitivity, event, study.claim(branch, event))


def reweights(branch: Branch) -> bool:
    """Whether a branch is drawn from a reweighted round, which equation 7 has to be on for."""
    return isinstance(branch.mechanism, SwagPpm) and branch.mechanism.round == "reweighted"


@runs(SwagPpm)
def run(study: Study, branch: Branch, seed: int) -> Outcome:
    """Fit, measure, score one repeatable draw."""
    store, this = study.context.store, fitted(study, branch, seed)
    measured = one_fit.score(study, branch, this.mechanism, seed=seed, fitted=this.posterior)
    return Outcome(
        branch=branch,
        seed=seed,
        mechanism=this.mechanism,
        event=this.event,
        claim=this.claim,
        fitted=this.posterior,
        measured=measured,
        figures=store.figures(measured),
        losses=store.figures(this.posterior)["losses"],
        cost={},
        sensitivity=this.sensitivity,
    )
