"""From records to a release plan: the last round of SWAG-PPM's chain, or one formally private fit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mechanisms.privacy.separately import Separately
from storage.artifacts import ArtifactRef
from storage.ingest import Looked, look
from storage.ledger import Row
from tasks.branches import formal, search
from tasks.branches.swag_chain import Chain, chain
from tasks.comparing import summary
from tasks.fitting.risks import running_maximum
from tasks.parameters import RetrainParameters
from tasks.releasing import code_lists, preflight, publish
from tasks.releasing.charge import Charge
from tasks.releasing.code_lists import Word
from tasks.releasing.estimate import Estimate
from tasks.releasing.plan import PlannedRelease
from tasks.running import progress
from tasks.running.failures import private_errors
from tasks.running.stage import Context, Step

_SCORES = ("weighted_f1", "macro_f1", "accuracy")


@dataclass(frozen=True)
class Retrained:
    """What a retrain is about to release, and what is shown of it inside the house."""

    parameters: RetrainParameters
    planned: PlannedRelease
    scores: Mapping[str, Mapping[str, Any]]
    """On the test half, by model."""
    running: Sequence[float] | None = None
    """Delta after each draw, where it was measured over draws."""


def refuse_early(context: Context, parameters: RetrainParameters, *, to_release: bool = True) -> Estimate:
    """Refuse what cannot work; the command asks it before Prefect's server starts.

    Raises:
        InputError, MechanismError, StorageError: name the option, file or column and what to do.
    """
    if parameters.formal is not None:
        formal.branch_of(parameters)
    return _with_its_fit(preflight.check(context, parameters, to_release=to_release), parameters)


def _with_its_fit(estimate: Estimate, parameters: RetrainParameters) -> Estimate:
    """With the one fit of a formal release."""
    if parameters.formal is None:
        return estimate
    branch, settings = formal.branch_of(parameters)
    made = estimate.with_fits({branch.name: branch.passes(parameters, settings)})
    return replace(made, counts=dict(made.counts) | {branch.name: 1})


def settled(
    context: Context, parameters: RetrainParameters, do: Callable[[Step], ArtifactRef], *, prefect_run_id: str | None
) -> RetrainParameters:
    """The parameters with what a target epsilon leaves open found, fit by fit; the fits stay for the chain to reuse."""
    return search.settle(
        context, parameters, lambda tried, rounds: chain(tried, do, rounds=rounds), prefect_run_id=prefect_run_id
    )


def run(
    context: Context, parameters: RetrainParameters, do: Callable[[Step], ArtifactRef], *, prefect_run_id: str | None
) -> Retrained:
    """Take every stage that is not finished, plan the release, and write the scores to the ledger.

    Raises:
        InputError: it goes on to a release whose code list the gate would refuse, which is known after ingest.
    """
    do = _lists_asked_about(context, parameters, do)
    if parameters.formal is not None:
        study, outcome = formal.run(context, parameters, do)
        summary.record(study, [outcome], prefect_run_id=prefect_run_id)
        planned = formal.planned(study, outcome, prefect_run_id=prefect_run_id)
        return Retrained(parameters, planned, {outcome.branch.title: outcome.figures})
    parameters = settled(context, parameters, do, prefect_run_id=prefect_run_id)
    made, last = chain(parameters, do), parameters.rounds[-1]
    posterior, measured = made.posteriors[last], made.measured[last]
    if not (made.dataset and made.prepared and measured and made.evaluated and posterior):
        raise RuntimeError("a stage left no output")  # `do` returns a reference or raises
    planned = PlannedRelease.of_posterior(
        context,
        parameters,
        dataset=made.dataset,
        prepared=made.prepared,
        posterior=posterior,
        measured=measured,
        prefect_run_id=prefect_run_id,
    )
    publish.record_internal(
        context, parameters, planned.plan, dataset=made.dataset, evaluated=made.evaluated, measured=made.measured
    )
    figures = context.store.figures(made.evaluated)
    scores = {name: {key: figures[f"{name}_{key}"] for key in _SCORES} for name in parameters.rounds}
    return Retrained(parameters, planned, scores, running_maximum(measured.path))


def _lists_asked_about(
    context: Context, parameters: RetrainParameters, do: Callable[[Step], ArtifactRef]
) -> Callable[[Step], ArtifactRef]:
    """`do`, which asks the gate about the code lists as soon as it can tell: before anything is trained."""
    asked: list[ArtifactRef] = []

    def done(step: Step) -> ArtifactRef:
        ref = do(step)
        if step.name == "ingest" and not asked and parameters.data.ingest.kind == "text":
            asked.append(ref)
            _ask_about_lists(context, parameters, ref)
        return ref

    return done


def _ask_about_lists(context: Context, parameters: RetrainParameters, dataset: ArtifactRef) -> None:
    label, started = "code list", time.monotonic()
    with progress.failures_told(label):
        progress.started(label)
        words = code_lists.of_dataset(context, dataset, parameters)
        if parameters.release.enabled and publish.standing(context, parameters, dataset) is None:
            code_lists.require(parameters, words)
        said = {word.field or "titles": word.said for word in words}
        progress.finished(label, said, reused=False, seconds=time.monotonic() - started)


def to_compute(context: Context, parameters: RetrainParameters) -> list[str]:
    """Labels of the stages that are not finished; with a search, of the first fit and one more."""
    labels: list[str] = []

    def look_at(step: Step) -> ArtifactRef | None:
        found = step.find(context.store)
        if found is None:
            labels.append(step.label)
        return found

    if parameters.formal is not None:
        formal.look(context, parameters, look_at)
    else:
        chain(parameters, look_at)
    return labels


@dataclass(frozen=True)
class Preview:
    """What a retrain would do and cost, before it does anything."""

    steps: Sequence[tuple[Step, bool]]
    """Each with whether its output is there already."""
    row: Row | None
    """Of its release; None where nothing was reserved for it yet."""
    looked: Looked
    estimate: Estimate
    charge: Charge
    lists: Sequence[Word] = ()
    """What the gate will say of each field's code list."""
    separately: Separately | None = None
    """Of several fields in one formal release: what one release a field would cost in its place."""


def dry_run(parameters: RetrainParameters, context: Context) -> Preview:
    """Read the records against the code list, and look at what a retrain of them would take and be charged.

    Computes and writes nothing, but, of records that are ingested, the gate's filter, which a release needs too. Where
    c and k are still to be searched for a target epsilon (`search.searches`) the steps end with the weights: which fits
    follow is known fit by fit.

    Raises:
        InputError, MechanismError, StorageError: what the retrain would refuse.
    """
    steps: list[tuple[Step, bool]] = []

    def look_at(step: Step) -> ArtifactRef | None:
        found = step.find(context.store)
        steps.append((step, found is not None))
        return found

    with private_errors("dry run"):
        several = bool(parameters.data.ingest.fields)
        refuse_early(context, parameters)
        looked = look(parameters.source_path, parameters.data.ingest, parameters.codelist_path)
        device = preflight.check_device(context)
        estimate = preflight.estimated(context, parameters, device=device, sampled=looked.sampled)
        estimate = _with_its_fit(estimate, parameters)
        planned = None
        if parameters.formal is not None:
            dataset = formal.look(context, parameters, look_at)
        else:
            made = chain(parameters, look_at, rounds=("base",) if search.searches(parameters) else None)
            dataset, planned = made.dataset, _measured_already(context, parameters, made)
        row = publish.standing(context, parameters, dataset)
        claim = None if planned is None else planned.plan.claim
        charge = Charge.of(context, parameters, looked.cohorts, claim=claim, dataset=dataset)
        formally = several and parameters.formal is not None
        apart = formal.separately(context, parameters, records=estimate.train) if formally else None
        lists = code_lists.of_parameters(context, parameters)
        return Preview(steps, row, looked, estimate, charge, lists, apart)


def _measured_already(context: Context, parameters: RetrainParameters, made: Chain) -> PlannedRelease | None:
    """The plan, where every stage that its claim rests on is finished."""
    last = parameters.rounds[-1]
    posterior, measured = made.posteriors.get(last), made.measured.get(last)
    if search.searches(parameters) or not (made.dataset and made.prepared and posterior and measured):
        return None
    refs = {"dataset": made.dataset, "prepared": made.prepared, "posterior": posterior, "measured": measured}
    return PlannedRelease.of_posterior(context, parameters, **refs, prefect_run_id=None)
