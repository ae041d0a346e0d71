"""The main job: from a file of records to one released draw.

ingest -> features or tokens -> fine-tune -> SWAG -> risk weights
       -> fine-tune (weighted) -> SWAG (weighted) -> sensitivity
       -> reweight -> fine-tune (reweighted) -> SWAG (reweighted) -> sensitivity
       -> evaluate -> release

That is mechanism `weighted`. `both` bounds the likelihood in the weighted fit and ends there; `censored` has one fit.
With `formal` set, one formally private fit is released instead (`tasks.branches.formal`), by the same path.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from prefect import flow
from prefect.runtime import flow_run
from pydantic import BaseModel, ConfigDict, Field

from flows.release import request
from flows.server.settings import home_of
from storage.artifacts import ArtifactRef
from storage.ledger import Row
from tasks.branches import formal, search
from tasks.branches.swag_chain import Chain, chain
from tasks.comparing import summary
from tasks.fitting.risks import running_maximum
from tasks.parameters import FanOut, RetrainParameters
from tasks.releasing import approval, plan_page, prefect_page, preflight, publish
from tasks.releasing.plan import PlannedRelease
from tasks.releasing.publish import Released
from tasks.releasing.records import record_set
from tasks.running.failures import private_errors
from tasks.running.progress import listening
from tasks.running.stage import Context, Device, Step, submit
from tasks.running.worker_metrics import MetricsListener


class RetrainResult(BaseModel):
    """What a retrain returns: references and the figures of the release, nothing of a record."""

    model_config = ConfigDict(frozen=True)

    plan: str = Field(description="path of the release plan")
    release: Released | None
    release_run: str | None = Field(default=None, description="run that was asked to release the plan")


@flow(
    name="retrain",
    description="Train an autocoder on confidential narratives and release it once: one private draw (SWAG-PPM), or, "
    "with `formal`, one fit with a formal guarantee.",
    persist_result=False,
    result_serializer="json",
    log_prints=False,
)
def retrain(
    parameters: RetrainParameters, home: str | None = None, device: Device = "auto", fan_out: FanOut | None = None
) -> RetrainResult:
    """Run the whole method; stages that are finished for the same inputs, parameters and code are reused.

    Args:
        parameters: data, model, fit, pseudo posterior or formal release, and release.
        home: workspace folder, which holds the private files, the bundles and the ledger; empty: the worker's own
            (AUTOCODER_HOME).
        device: `auto`, `cpu` or `cuda`.
        fan_out: whether passes over draws are spread over workers; it does not change what comes out.
    """
    context = Context(home=str(home_of(Path(home) if home else None)), device=device, fan_out=fan_out or FanOut())
    measured = MetricsListener(context.workspace.private, "retrain")
    with private_errors("retrain"), listening(prefect_page.PrefectListener(), measured):
        context.workspace.create()
        refuse_early(context, parameters)
        if parameters.formal is not None:
            return _formal(context, parameters)
        parameters = settled(context, parameters)
        made = chain(parameters, lambda step: submit(context, step))
        return _finish(context, parameters, made)


def refuse_early(context: Context, parameters: RetrainParameters) -> preflight.Estimate:
    """Refuse what cannot work; the command asks it before Prefect's server starts.

    Raises:
        InputError, MechanismError, StorageError: name the option, file or column and what to do.
    """
    if parameters.formal is not None:
        formal.branch_of(parameters)
    return preflight.check(context, parameters)


def settled(context: Context, parameters: RetrainParameters) -> RetrainParameters:
    """The parameters with what a target epsilon leaves open found, fit by fit; the fits stay for the chain to reuse."""
    return search.settle(
        context,
        parameters,
        lambda tried, rounds: chain(tried, lambda step: submit(context, step), rounds=rounds),
        prefect_run_id=str(flow_run.get_id() or "") or None,
    )


def _formal(context: Context, parameters: RetrainParameters) -> RetrainResult:
    """Fit one formal branch, plan, record its scores and release it."""
    run_id = str(flow_run.get_id() or "") or None
    study, outcome = formal.run(context, parameters, lambda step: submit(context, step))
    summary.record(study, [outcome], prefect_run_id=run_id)
    planned = formal.planned(study, outcome, prefect_run_id=run_id)
    scores = {outcome.branch.title: outcome.figures}
    return _release(
        context,
        parameters,
        planned,
        lambda released: prefect_page.publish_artifacts(context, parameters, planned.plan, released, scores=scores),
    )


def _finish(context: Context, parameters: RetrainParameters, made: Chain) -> RetrainResult:
    """Plan, record what was measured, release, and lay the figures out in the UI."""
    last = parameters.rounds[-1]
    drawn_from, measured = made.posteriors[last], made.measured[last]
    if not (made.dataset and made.prepared and measured and made.evaluated and drawn_from):
        raise RuntimeError("a stage left no output")  # submit returns a reference or raises
    planned = PlannedRelease.of_posterior(
        context,
        parameters,
        dataset=made.dataset,
        prepared=made.prepared,
        posterior=drawn_from,
        measured=measured,
        prefect_run_id=str(flow_run.get_id() or "") or None,
    )
    publish.record_internal(context, parameters, planned.plan, evaluated=made.evaluated, measured=made.measured)
    figures = context.store.figures(made.evaluated)
    names = ("weighted_f1", "macro_f1", "accuracy")
    scores = {name: {key: figures[f"{name}_{key}"] for key in names} for name in parameters.rounds}
    return _release(
        context,
        parameters,
        planned,
        lambda released: prefect_page.publish_artifacts(
            context, parameters, planned.plan, released, scores=scores, running=running_maximum(measured.path)
        ),
    )


def _release(
    context: Context,
    parameters: RetrainParameters,
    planned: PlannedRelease,
    lay_out: Callable[[Released | None], None],
) -> RetrainResult:
    """Keep the plan, show it, release it or hand it on; `lay_out` shows the figures in the UI at the end."""
    planned, plan_file = publish.keep_plan(context, planned, parameters.release)
    ledger = publish.open_ledger(context, parameters.release)
    stands, records = approval.standing(context, ledger, planned), record_set(context, planned.candidate.dataset)
    prefect_page.publish_plan(plan_page.plan_markdown(planned, ledger, stands, file=str(plan_file), records=records))
    released, asked = None, None
    if parameters.release.enabled and parameters.release.deployment:
        asked = request(context, planned, plan_file, parameters.release, parameters.release.deployment)
    elif parameters.release.enabled:
        prefect_page.publish_budget(context, parameters.release)  # before too: a refusal is when it is wanted
        released = publish.release(context, planned, parameters.release)
    lay_out(released)
    return RetrainResult(plan=str(plan_file), release=released, release_run=asked)


def dry_run(parameters: RetrainParameters, context: Context) -> tuple[list[tuple[Step, bool]], Row | None]:
    """The steps a retrain would take, each with whether its output is there already, and the row of its release.

    Runs nothing. Where c and k are still to be searched for a target epsilon (`search.searches`) the steps end with
    the weights: which fits follow is known fit by fit. The row is None where nothing was reserved for this release yet.
    """
    steps: list[tuple[Step, bool]] = []

    def look(step: Step) -> ArtifactRef | None:
        found = step.find(context.store)
        steps.append((step, found is not None))
        return found

    with private_errors("dry run"):
        refuse_early(context, parameters)
        if parameters.formal is not None:
            dataset = formal.look(context, parameters, look)
            return steps, publish.standing(context, parameters, dataset)
        made = chain(parameters, look, rounds=("base",) if search.searches(parameters) else None)
        return steps, publish.standing(context, parameters, made.dataset)
