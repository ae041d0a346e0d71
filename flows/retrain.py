"""The main job: from a file of records to the plan of one release; to the release itself where that is asked for.

ingest -> features or tokens -> fine-tune -> SWAG -> risk weights
       -> fine-tune (weighted) -> SWAG (weighted) -> sensitivity
       -> reweight -> fine-tune (reweighted) -> SWAG (reweighted) -> sensitivity
       -> evaluate -> plan [-> release]

That is mechanism `weighted`. `both` bounds the likelihood in the weighted fit and ends there; `censored` has one fit.
With `formal` set, one formally private fit is released instead (`tasks.branches.formal`), by the same path.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from prefect import flow
from prefect.runtime import flow_run
from pydantic import BaseModel, ConfigDict, Field

from flows.release import request
from flows.server.form import OnDevice, RetrainForm, Workspace, refuse_borrowed_names, titled
from flows.server.settings import home_of
from storage.ledger.siblings import other_names, others_names, siblings
from tasks.branches.origin import Origin
from tasks.parameters import FanOut
from tasks.releasing import approval, plan_page, prefect_page, publish
from tasks.releasing.at_hand import AtHand
from tasks.releasing.publish import Released
from tasks.retraining import run as retraining
from tasks.running.failures import private_errors
from tasks.running.progress import listening
from tasks.running.stage import Context, submit
from tasks.running.timings import TimingsListener
from tasks.running.worker_metrics import MetricsListener


class RetrainResult(BaseModel):
    """What a retrain returns: references and the figures of the release, nothing of a record."""

    model_config = ConfigDict(frozen=True)

    plan: str = Field(description="path of the release plan")
    release: Released | None
    release_run: str | None = Field(default=None, description="run that was asked to release the plan")
    warnings: tuple[str, ...] = Field(default=(), description="what whoever decides on the plan has to know")


@flow(
    name="retrain",
    description="Train an autocoder on confidential narratives and plan its release: one private draw (SWAG-PPM), or, "
    "with `formal`, one fit with a formal guarantee. The plan is audited, then released.",
    persist_result=False,
    result_serializer="json",
    log_prints=False,
)
def retrain(
    parameters: Annotated[RetrainForm, titled("What to train on, and how")],
    home: Workspace = None,
    device: OnDevice = "auto",
    fan_out: Annotated[FanOut | None, titled("Shards")] = None,
) -> RetrainResult:
    """Run the whole method; stages that are finished for the same inputs, parameters and code are reused.

    Args:
        parameters: data, columns, population, mechanism and epsilon; all else under `advanced`.
        home: workspace folder, which holds the private files, the bundles and the ledger; empty: the worker's own
            (AUTOCODER_HOME).
        device: `auto`, `cpu` or `cuda`.
        fan_out: whether passes over draws are spread over workers; it does not change what comes out.
    """
    context = Context(home=str(home_of(Path(home) if home else None)), device=device, fan_out=fan_out or FanOut())
    measured = MetricsListener(context.workspace.private, "retrain")
    with private_errors("retrain"):
        context.workspace.create()
        wanted = parameters.parameters()
        refuse_borrowed_names(wanted)
        estimate = retraining.refuse_early(context, wanted)
    timed = TimingsListener(context.workspace.private, estimate.stages)
    with private_errors("retrain"), listening(prefect_page.PrefectListener(), measured, timed):
        run_id = str(flow_run.get_id() or "") or None
        made = retraining.run(context, wanted, lambda step: submit(context, step), prefect_run_id=run_id)
        return _release(context, made, Origin(parameters=wanted))


def _release(context: Context, made: retraining.Retrained, origin: Origin) -> RetrainResult:
    """Keep the plan and what it was made with, show it, release it or hand it on where that is asked for."""
    parameters, settings = made.parameters, made.parameters.release
    planned, plan_file = publish.keep_plan(context, made.planned, settings)
    origin.save(plan_file)
    ledger = publish.open_ledger(context, settings)
    stands, found = approval.standing(context, ledger, planned), AtHand.of(context, ledger, planned)
    page = plan_page.page_of(planned, ledger, stands, file=str(plan_file), found=found)
    prefect_page.publish_plan(plan_page.markdown(page))
    names = others_names(planned.plan, siblings(ledger, planned.plan, records=found.records))
    released, asked = None, None
    if settings.enabled and settings.deployment:
        asked = request(context, planned, plan_file, settings, settings.deployment)
    elif settings.enabled:
        prefect_page.publish_budget(context, settings)  # before too: a refusal is when it is wanted
        released = publish.release(context, planned, settings)
    prefect_page.publish_artifacts(
        context,
        parameters,
        planned.plan,
        released,
        plan_file=plan_file,
        scores=made.scores,
        running=made.running,
    )
    warned = (other_names(names, planned.plan.population),) if names else ()
    warned += tuple(word.warning for word in found.lists or () if word.warning is not None)
    return RetrainResult(plan=str(plan_file), release=released, release_run=asked, warnings=() if released else warned)
