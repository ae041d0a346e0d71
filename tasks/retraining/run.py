"""Takes records to a release plan: the last round of SWAG-PPM's chain, or one formally private fit."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from storage.artifacts import ArtifactRef
from storage.errors import InputError
from storage.ingest import SourcePreview, preview
from storage.ledger import Row
from tasks.branches import formal, search
from tasks.branches.plan import plan_formal
from tasks.branches.swag_chain import Chain, run_chain
from tasks.comparing import summary
from tasks.fitting.risks import running_maximum
from tasks.parameters import DataParameters, RetrainParameters
from tasks.releasing import code_lists, ledger_access, ledger_records, preflight, publish
from tasks.releasing.budgets import ExpectedCharge
from tasks.releasing.code_lists import CodeListVerdict
from tasks.releasing.plan import PlannedRelease
from tasks.releasing.preflight import Estimate
from tasks.running import progress
from tasks.running.failures import private_errors
from tasks.running.stage import Context, Step

_SCORES = ("weighted_f1", "macro_f1", "accuracy")


@dataclass(frozen=True)
class RetrainResult:
    parameters: RetrainParameters
    planned: PlannedRelease
    scores: Mapping[str, Mapping[str, Any]]
    """On the test half, by model."""
    running: Sequence[float] | None = None
    """Delta after each draw, where it was measured over draws."""


def refuse_early(context: Context, parameters: RetrainParameters) -> Estimate:
    if parameters.formal is not None:
        formal.formal_branch(parameters)
    return _with_its_fit(preflight.check(context, parameters, to_release=True), parameters)


def _with_its_fit(estimate: Estimate, parameters: RetrainParameters) -> Estimate:
    if parameters.formal is None:
        return estimate
    branch, terms = formal.formal_branch(parameters)
    extended = estimate.with_fits({branch.name: branch.epochs_for(parameters, terms)})
    return replace(extended, counts=dict(extended.counts) | {branch.name: 1})


_FEWEST = 2
"""Training records per code below which a model is hardly better than a guess."""


def warnings_of(data: DataParameters, *, train: int, test: int, codes: int) -> Iterator[str]:
    """Yields what makes a training run useless, or hides whose budget it would spend."""
    day = data.ingest.train_before
    if day is not None and 5 * train < train + test:
        yield (
            f"training has {train:,} of {train + test:,} records, those dated before {day}. Set "
            "data.ingest.train_before to a later day, or to null for a random split"
        )
    if train < max(100, _FEWEST * codes):
        yield (
            f"{train:,} training records for {codes:,} codes: the model will be useless, and ε "
            "protects little at this "
            "size. Give more records"
        )
    if data.population == "default":
        yield (
            "no population is named. Name whose records these are by --population: budgets "
            "belong to it"
        )


def run(
    context: Context, parameters: RetrainParameters, do: Callable[[Step], ArtifactRef]
) -> RetrainResult:
    """Runs every unfinished stage, plans the release, and writes the scores to the ledger."""
    do = _with_code_list_check(context, parameters, do)
    if parameters.formal is not None:
        study, outcome = formal.run(context, parameters, do)
        summary.record_claims(study, [outcome])
        planned = plan_formal(study, outcome)
        return RetrainResult(parameters, planned, {outcome.branch.title: outcome.figures})
    parameters = search.meet_target(context, parameters, do)
    outputs, last = run_chain(parameters, do), parameters.rounds[-1]
    assert outputs.evaluated is not None
    planned = PlannedRelease.of_posterior(
        context,
        parameters,
        dataset=outputs.dataset,
        prepared=outputs.prepared,
        posterior=outputs.posteriors[last],
        measured=outputs.measured[last],
        prefect_run_id=context.run.id,
    )
    ledger_records.record_retrain(
        context,
        parameters,
        planned.plan,
        dataset=outputs.dataset,
        evaluated=outputs.evaluated,
        measured=outputs.measured,
    )
    figures = context.store.figures(outputs.evaluated)
    scores: dict[str, dict[str, Any]] = {
        name: {key: figures[f"{name}_{key}"] for key in _SCORES} for name in parameters.rounds
    }
    return RetrainResult(parameters, planned, scores, running_maximum(outputs.measured[last].path))


def _with_code_list_check(
    context: Context, parameters: RetrainParameters, do: Callable[[Step], ArtifactRef]
) -> Callable[[Step], ArtifactRef]:
    checked: list[ArtifactRef] = []

    def do_and_check(step: Step) -> ArtifactRef:
        ref = do(step)
        if step.name == "ingest" and not checked:
            checked.append(ref)
            _check_code_lists(context, parameters, ref)
        return ref

    return do_and_check


def _check_code_lists(
    context: Context, parameters: RetrainParameters, dataset: ArtifactRef
) -> None:
    label, started = "code list", time.monotonic()
    with progress.report_failures(label):
        progress.started(label)
        verdict = code_lists.assess_dataset(context, dataset)
        facts = {"titles": verdict.description}
        progress.finished(label, facts, reused=False, seconds=time.monotonic() - started)
        texts, settings = verdict.texts, parameters.release
        signed = ledger_access.current_policy(context, settings).approvals.minimum > 0
        if settings.enabled and texts and not (signed or settings.accept_texts):
            raise InputError(
                f"--codelist: the bundle would contain {texts} titles of no published list that "
                "no one has reviewed. "
                "Train without --release. `autocoder plan PLAN` then prints them with their "
                "digest, and "
                "`autocoder release PLAN --accept-texts DIGEST` releases"
            )


def unfinished_stages(context: Context, parameters: RetrainParameters) -> list[str]:
    labels: list[str] = []

    def find_step(step: Step) -> ArtifactRef | None:
        output = step.find(context.store)
        if output is None:
            labels.append(step.label)
        return output

    if parameters.formal is not None:
        formal.find_stages(context, parameters, find_step)
    else:
        run_chain(parameters, find_step)
    return labels


@dataclass(frozen=True)
class Preview:
    steps: Sequence[tuple[Step, bool]]
    """Each with a flag: its output exists already."""
    row: Row | None
    """The ledger row of its release; None if nothing is reserved for it yet."""
    source: SourcePreview
    estimate: Estimate
    charge: ExpectedCharge
    code_list: CodeListVerdict | None = None
    """The gate's verdict on the code list."""


def dry_run(parameters: RetrainParameters, context: Context) -> Preview:
    """Reads the records against the code list, and reports the stages and the charge of a retrain.

    It computes and writes nothing but the gate's filter of ingested records, which a release needs
    too. If c is still to be searched for a target epsilon, the steps end with the risks.
    """
    steps: list[tuple[Step, bool]] = []

    def find_step(step: Step) -> ArtifactRef | None:
        output = step.find(context.store)
        steps.append((step, output is not None))
        return output

    with private_errors("dry run"):
        refuse_early(context, parameters)
        source = preview(parameters.data.sources, parameters.data.ingest, parameters.codelist_path)
        device = preflight.check_device(context)
        estimate = preflight.estimate_retrain(
            context, parameters, device=device, sampled=source.sampled
        )
        estimate = _with_its_fit(estimate, parameters)
        planned = None
        if parameters.formal is not None:
            dataset = formal.find_stages(context, parameters, find_step)
        else:
            outputs = run_chain(
                parameters, find_step, rounds=("base",) if parameters.needs_search else None
            )
            dataset, planned = outputs.dataset, _plan_if_measured(context, parameters, outputs)
        row = publish.existing_release(context, parameters, dataset)
        claim = None if planned is None else planned.plan.claim
        charge = ExpectedCharge.of(
            context, parameters, source.cohorts, train=estimate.train, claim=claim, dataset=dataset
        )
        code_list = code_lists.assess_parameters(context, parameters)
        return Preview(steps, row, source, estimate, charge, code_list)


def _plan_if_measured(
    context: Context, parameters: RetrainParameters, outputs: Chain[ArtifactRef | None]
) -> PlannedRelease | None:
    last = parameters.rounds[-1]
    posterior, measured = outputs.posteriors.get(last), outputs.measured.get(last)
    if parameters.needs_search or not (
        outputs.dataset and outputs.prepared and posterior and measured
    ):
        return None
    refs = {
        "dataset": outputs.dataset,
        "prepared": outputs.prepared,
        "posterior": posterior,
        "measured": measured,
    }
    return PlannedRelease.of_posterior(context, parameters, **refs, prefect_run_id=None)
