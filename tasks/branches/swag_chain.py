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

from storage.artifacts import ArtifactRef
from tasks.fitting import data, evaluate, risks, train
from tasks.parameters import RetrainParameters
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
    parameters: RetrainParameters, do: Callable[[Step], ArtifactRef | None], *, rounds: tuple[str, ...] | None = None
) -> Chain:
    """The stages in order. `do` runs a step, or, in a dry run, looks whether it is finished already.

    With `rounds` only these are fitted, and nothing is scored on the test half.
    """
    model, fit, config = parameters.model, parameters.fit, parameters.pseudo_posterior
    dataset = do(data.ingest(parameters.data))
    prepared = do(data.prepare(model, dataset, seed=fit.seed))

    posteriors: dict[str, ArtifactRef | None] = {}
    measured: dict[str, ArtifactRef | None] = {}
    weights: ArtifactRef | None = None
    for name in rounds or parameters.rounds:
        if name == "reweighted":
            weights = do(risks.reweight(config, measured=measured["weighted"]))
        common: Any = {"dataset": dataset, "prepared": prepared, "weights": weights}
        how: Any = {"weighted": name not in ("base", "censored"), "bounded": parameters.bounded(name)}
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
