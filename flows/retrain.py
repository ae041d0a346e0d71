"""Runs the main job: from a file of records to the plan of one release, or on request to the
release itself.

ingest -> features or tokens -> plan the noise -> fit -> predictions -> scores -> plan [-> release]

Every mechanism takes this path (`tasks.branches.experiment`). SWAG-PPM fits three rounds in order,
each continuing the previous one.
"""

from functools import partial

from pydantic import BaseModel, ConfigDict, Field

from flows.release import request
from flows.server.form import RecordsForm, parameters_of_run
from storage.ledger.fold import Sought
from storage.ledger.registry import (
    other_population_names,
    population_name_warning,
)
from tasks.branches.plan import Origin
from tasks.fitting.ingest import ingest_figures
from tasks.parameters import RetrainParameters
from tasks.releasing import plan_page, prefect_page, publish
from tasks.releasing.publish import Released
from tasks.releasing.surroundings import Surroundings
from tasks.retraining import run as retraining
from tasks.running.failures import private_errors
from tasks.running.progress import listening
from tasks.running.run import Run
from tasks.running.stage import Context, submit
from tasks.running.timings import TimingsListener
from tasks.running.worker_metrics import MetricsListener


class RetrainResult(BaseModel):
    model_config = ConfigDict(frozen=True)

    plan: str = Field(description="path of the release plan")
    release: Released | None
    release_run: str | None = Field(default=None, description="run that releases the plan")
    warnings: tuple[str, ...] = Field(default=(), description="for those who decide on the plan")


def retrain_form(form: RecordsForm, run: Run) -> RetrainResult:
    context = form.run().context(run)
    with private_errors("retrain"):
        parameters = parameters_of_run(form, run)
    return retrain(parameters, context)


def retrain(parameters: RetrainParameters, context: Context) -> RetrainResult:
    """Runs the whole method. Finished stages with the same inputs and code are reused."""
    private = context.workspace.private
    with private_errors("retrain"):
        context.workspace.create()
        estimate = retraining.refuse_early(context, parameters)
    heard = MetricsListener(private, "retrain"), TimingsListener(private, estimate.stages)
    with private_errors("retrain"), listening(*context.run.listeners(), *heard):
        done = retraining.run(context, parameters, partial(submit, context))
        return _release(context, done, Origin(parameters=parameters))


def _release(context: Context, done: retraining.RetrainResult, origin: Origin) -> RetrainResult:
    parameters, settings = done.parameters, done.parameters.release
    case = publish.save_plan(context, done.planned, settings)
    planned, ledger, plan_file = case.planned, case.ledger, case.file
    origin.save(plan_file)
    here = Surroundings.of(context, case)
    if context.run.shows:
        page = plan_page.page_of(case, here)
        prefect_page.publish_plan(context.run, plan_page.markdown(page))
    names = other_population_names(
        planned.plan.population,
        ledger.overlaps(Sought.of(planned.plan), records=here.records),
    )
    released, release_run = None, None
    if settings.enabled and settings.deployment:
        release_run = request(context, planned, plan_file, settings, settings.deployment)
    elif settings.enabled:
        # published before the release too, because it is needed most after a refusal
        prefect_page.publish_budget(context.run, ledger)
        released = context.run.call("release", "release", publish.release, context, case, settings)
    if context.run.shows:
        prefect_page.publish_artifacts(
            context,
            parameters,
            planned.plan,
            released,
            ledger=ledger,
            plan_file=plan_file,
            scores=done.scores,
            running=done.running,
        )
    warned = (population_name_warning(names, planned.plan.population),) if names else ()
    warned += tuple(word.warning for word in here.lists or () if word.warning is not None)
    facts = ingest_figures(context.store, planned.candidate.dataset)
    sizes = {"train": facts["train"], "test": facts["test"], "codes": facts["codes_observed"]}
    warned += tuple(retraining.warnings_of(parameters.data, **sizes))
    return RetrainResult(
        plan=str(plan_file),
        release=released,
        release_run=release_run,
        warnings=() if released else warned,
    )
