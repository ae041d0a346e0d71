"""Releasing what a retrain or a comparison has planned: one draw, bundled, recorded, once those who must have approved.

As a deployment the run suspends until the approvals that the policy asks for are there: it holds no worker meanwhile,
and starts from the top at each answer, which Prefect keeps. Called without a deployment it refuses instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, cast

from prefect import flow
from prefect.client.schemas.objects import FlowRun
from prefect.runtime import deployment, flow_run
from pydantic import Field

from flows.server import approvals
from flows.server.form import OnDevice, PlanFile, Workspace, titled
from flows.server.settings import home_of, same_house
from storage.errors import InputError
from storage.ledger import Ledger
from tasks.parameters import BundleParameters
from tasks.releasing import prefect_page, preflight, publish, selection
from tasks.releasing.plan import PlannedRelease
from tasks.releasing.publish import Released
from tasks.running.failures import private_errors
from tasks.running.progress import listening
from tasks.running.stage import Context
from tasks.running.worker_metrics import MetricsListener


@flow(
    name="release",
    description="Release what is planned: wait for approvals, reserve the budget, draw once, bundle, commit.",
    persist_result=False,
    result_serializer="json",
    log_prints=False,
)
def release(
    plan: PlanFile,
    home: Workspace = None,
    device: OnDevice = "auto",
    ledger: Annotated[BundleParameters | None, titled("Ledger and bundle")] = None,
    wait_days: Annotated[int, Field(ge=1, le=365), titled("Days to wait for approvals")] = 30,
) -> Released:
    """Release a plan; one that is released already returns its release, one that died goes on.

    Args:
        plan: path of the plan that `retrain` or `compare` wrote.
        home: workspace folder; empty: the worker's own (AUTOCODER_HOME).
        device: `auto`, `cpu` or `cuda`.
        ledger: which ledger, under which policy.
        wait_days: how long a run waits for approvals before it fails.
    """
    context = Context(home=str(home_of(home)), device=device)
    settings = ledger or BundleParameters()
    metrics = MetricsListener(context.workspace.private, "release")
    with private_errors("release"), listening(prefect_page.PrefectListener(), metrics):
        same_house(Path(plan), Path(context.home))
        preflight.check_device(context)
        publish.check(context, settings)
        planned = PlannedRelease.load(Path(plan).expanduser())
        opened = publish.open_ledger(context, settings)
        if opened.release_of(planned.plan) is None:
            opened.require_here(planned.plan)  # before anybody is asked
            selection.check(opened, context, planned)
        _wait_for_approvals(context, planned, opened, plan=plan, days=wait_days)
        prefect_page.publish_budget(context, settings)
        return publish.release(context, planned, settings)


def _wait_for_approvals(context: Context, planned: PlannedRelease, ledger: Ledger, *, plan: str, days: int) -> None:
    """A run of a deployment may wait for them, any other has to have them."""
    approvals.wait(context, planned, ledger, plan=plan, days=days, suspends=bool(deployment.id))


def request(context: Context, planned: PlannedRelease, plan_file: Path, settings: BundleParameters, name: str) -> str:
    """Start the release deployment on a plan and return its run's id; the caller does not wait for it.

    Raises:
        InputError: there is no such deployment, or no server.
    """
    from prefect.deployments import run_deployment
    from prefect.exceptions import ObjectNotFound

    try:
        run = cast(
            FlowRun,
            run_deployment(
                name,
                # no device: that of the retrain need not be one that the release's worker has
                parameters={
                    "plan": str(plan_file),
                    "home": context.home,
                    "ledger": settings.model_dump(mode="json", include=set(BundleParameters.model_fields)),
                },
                timeout=0,
                as_subflow=False,
                # a retrain that died after asking does not ask twice
                idempotency_key=f"{planned.digest}-{flow_run.get_id()}",
            ),
        )
    except ObjectNotFound:
        raise InputError(
            f"release.deployment: the server knows no deployment {name}; apply deployments/prefect.yaml"
        ) from None
    return str(run.id)
