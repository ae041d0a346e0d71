"""Turns records into a release plan; every mechanism takes the same path."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mechanisms.mechanism import Task
from storage.artifacts import ArtifactRef
from storage.errors import InputError
from storage.ingest import SourcePreview, preview
from storage.ledger import ReleaseRow
from tasks.branches.branch import mechanism_for, workloads
from tasks.branches.experiment import Study
from tasks.branches.plan import plan_release
from tasks.branches.released import find_stages, released_branch
from tasks.comparing import summary
from tasks.fitting import fits
from tasks.parameters import DataParameters, RetrainParameters
from tasks.releasing import code_lists, ledger_access, preflight, publish
from tasks.releasing.budgets import ExpectedCharge
from tasks.releasing.code_lists import CodeListVerdict
from tasks.releasing.plan import PlannedRelease
from tasks.releasing.preflight import Estimate
from tasks.running import progress
from tasks.running.failures import private_errors
from tasks.running.stage import Context, Step


@dataclass(frozen=True)
class RetrainResult:
    parameters: RetrainParameters
    planned: PlannedRelease
    scores: Mapping[str, Mapping[str, float | None]]
    """Scores on the held-out records, by model."""
    running: Sequence[float] | None = None
    """Delta after each draw, if it was measured over draws."""


def refuse_early(context: Context, parameters: RetrainParameters) -> Estimate:
    branch, terms = released_branch(parameters)
    loads = workloads(branch, parameters, terms)
    return preflight.check(context, parameters, loads, to_release=True)


_FEWEST = 2
"""Training records per code below which a model is hardly better than guessing."""


def warnings_of(data: DataParameters, *, train: int, test: int, codes: int) -> Iterator[str]:
    """Yields warnings about settings that make a run useless or leave its budget unclear."""
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
            "size. Use more records"
        )
    if data.population == "default":
        yield (
            "no population is named. Name the dataset with --population, because each population "
            "has its own budget"
        )


def run(
    context: Context, parameters: RetrainParameters, run_step: Callable[[Step], ArtifactRef]
) -> RetrainResult:
    """Runs every unfinished stage, plans the release, and writes the scores to the ledger."""
    run_step = _with_code_list_check(context, parameters, run_step)
    branch, terms = released_branch(parameters)
    study = Study.of(context, parameters, terms, [branch], run_step)
    *earlier, outcome = study.experiment(branch).run_all()
    summary.record_claims(study, [outcome], earlier=earlier)
    scores = {
        scored.mechanism.stage or branch.shown: scored.figures for scored in (*earlier, outcome)
    }
    running = outcome.mechanism.running_sensitivity(context.store.open(outcome.fitted))
    return RetrainResult(parameters, plan_release(study, outcome), scores, running)


def _with_code_list_check(
    context: Context, parameters: RetrainParameters, run_step: Callable[[Step], ArtifactRef]
) -> Callable[[Step], ArtifactRef]:
    checked: list[ArtifactRef] = []

    def do_and_check(step: Step) -> ArtifactRef:
        ref = run_step(step)
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
                f"--codelist: the bundle would contain {texts} titles of no "
                "published list that nobody has reviewed. Train without --release. "
                "`autocoder plan PLAN` then prints them with their digest, and "
                "`autocoder release PLAN --accept-texts DIGEST` releases",
                kind="unreviewed-titles",
            )


def unfinished_stages(context: Context, parameters: RetrainParameters) -> list[str]:
    labels: list[str] = []

    def find_step(step: Step) -> ArtifactRef | None:
        output = step.find(context.store)
        if output is None:
            labels.append(step.label)
        return output

    find_stages(context, parameters, find_step)
    return labels


@dataclass(frozen=True)
class Preview:
    steps: Sequence[tuple[Step, bool]]
    """The stages, each with a flag: whether its output already exists."""
    row: ReleaseRow | None
    """Ledger row of the release, or None if nothing is reserved for it yet."""
    source: SourcePreview
    estimate: Estimate
    charge: ExpectedCharge
    code_list: CodeListVerdict | None = None
    """The gate's verdict on the code list."""


def dry_run(parameters: RetrainParameters, context: Context) -> Preview:
    """Reads the records against the code list, and reports the stages and the charge of a run.

    The only thing that it computes and writes is the gate's filter of ingested records, which a
    release also needs.
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
        branch, terms = released_branch(parameters)
        counted = Task(records=source.sampled["train"], classes=max(source.codes, 1))
        mechanism_for(branch, parameters, terms).check(counted)
        loads = workloads(branch, parameters, terms)
        estimate = preflight.estimate_retrain(
            context, parameters, loads, device=device, sampled=source.sampled
        )
        experiment, fitted = find_stages(context, parameters, find_step)
        dataset = experiment.study.dataset
        method = experiment.method if dataset is not None else None
        row = publish.existing_release(context, parameters, dataset, method)
        claim = None
        if fitted is not None:
            folder = context.store.open(fitted)
            claim = experiment.claim(fits.event_of(folder), fits.search_of(folder))
        charge = ExpectedCharge.of(
            context, parameters, source.cohorts, train=estimate.train, claim=claim, dataset=dataset
        )
        code_list = code_lists.assess_parameters(context, parameters)
        return Preview(steps, row, source, estimate, charge, code_list)
