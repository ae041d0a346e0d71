"""Runs the stages of SWAG-PPM in order, from a file of records to a measured posterior of each
round.

ingest -> features or tokens -> fine-tune -> SWAG -> risk weights
       -> fine-tune (weighted) -> SWAG (weighted) -> sensitivity
       -> reweight -> fine-tune (reweighted) -> SWAG (reweighted) -> sensitivity
       -> evaluate
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from mechanisms.model.config import ModelConfig
from mechanisms.posterior.rounds import RoundName
from mechanisms.posterior.rounds import run as run_rounds
from mechanisms.privacy.events import Claim, Event, SwagPpmEvent
from storage.artifacts import ArtifactRef, Store
from tasks.fitting import data, evaluate, prior, risks, train
from tasks.fitting.ingest import ingest_records
from tasks.fitting.train import Round
from tasks.parameters import RetrainParameters
from tasks.releasing.claims import claim, swag_event
from tasks.running.stage import Step

Ref = TypeVar("Ref", ArtifactRef, ArtifactRef | None)
"""A step's output: a reference where steps are run; in a dry run None where there is no output yet.
"""


def prepare(
    parameters: RetrainParameters, models: Iterable[ModelConfig], do: Callable[[Step], Ref]
) -> tuple[Ref, Ref]:
    """Returns the records and their features or tokens, after the titles that these models start
    from.
    """
    dataset = do(ingest_records(parameters.data))
    for model in dict.fromkeys(models):
        for step in prior.stages(
            model, parameters.data.complete_codelist, parameters.data.ingest.codelist_columns
        ):
            do(step)
    return dataset, _prepare(parameters, dataset, do)


def _prepare(parameters: RetrainParameters, dataset: Ref, do: Callable[[Step], Ref]) -> Ref:
    model, labels = parameters.model, parameters.data.labels
    if not labels or model.trainable != "head":
        return do(data.prepare(model, dataset))
    texts = do(
        data.distinct_texts(
            [do(ingest_records(parameters.data.of_label(column))) for column in labels]
        )
    )
    encoding = {"texts": texts, "encoding": do(data.encoding_of(model, texts))}
    return do(data.prepare(model, dataset, encoding=encoding))


@dataclass(frozen=True)
class Chain(Generic[Ref]):
    dataset: Ref
    prepared: Ref
    posteriors: Mapping[str, Ref]
    measured: Mapping[str, Ref]
    evaluated: ArtifactRef | None

    def event(
        self: Chain[ArtifactRef], store: Store, parameters: RetrainParameters, name: RoundName
    ) -> SwagPpmEvent:
        return swag_event(
            parameters,
            name,
            store.figures(self.posteriors[name]),
            store.figures(self.measured[name]),
        )

    def claim(
        self: Chain[ArtifactRef], store: Store, parameters: RetrainParameters, name: RoundName
    ) -> tuple[Event, Claim]:
        event = self.event(store, parameters, name)
        return event, claim(parameters, event, store.figures(self.dataset))


def run_chain(
    parameters: RetrainParameters,
    do: Callable[[Step], Ref],
    *,
    rounds: Sequence[RoundName] | None = None,
    ingested: Ref | None = None,
) -> Chain[Ref]:
    """Takes the stages in order. `do` runs a step, or, in a dry run, looks for its output.

    Args:
        rounds: only these are fitted, and nothing is scored on the test half.
        ingested: the data set, if it exists already: the records' file and the code list are not
            read then.
    """
    model, fit, config = parameters.model, parameters.fit, parameters.pseudo_posterior
    if ingested is None:
        dataset, prepared = prepare(parameters, [model], do)
    else:
        dataset, prepared = ingested, _prepare(parameters, ingested, do)
    posteriors: dict[str, Ref] = {}

    def fit_round(name: RoundName, weights: Ref | None) -> Ref:
        this = Round(name, model, fit, dataset, prepared, weights)
        tuned = do(train.fine_tune(this))
        posteriors[name] = do(train.collect_swag(this, tuned=tuned))
        return do(risks.measure(this, config, posterior=posteriors[name]))

    def weigh(name: RoundName, weights: Ref | None, measured: Ref) -> Ref:
        return do(risks.weigh(config, name, measured=measured))

    measured: Mapping[str, Ref] = {**run_rounds(rounds or parameters.rounds, fit_round, weigh)}
    evaluated = None
    if rounds is None:
        evaluated = do(
            evaluate.evaluate(model, fit, dataset=dataset, prepared=prepared, posteriors=posteriors)
        )
    return Chain(dataset, prepared, posteriors, measured, evaluated)
