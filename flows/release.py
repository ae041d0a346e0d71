"""Releases the plan of a training run or a comparison once it is approved: one draw, bundled and
recorded.

A run of the deployment is suspended until it has the approvals that the policy requires. Meanwhile
it occupies no worker, and it starts from the top after each answer, which Prefect stores. A run
without a deployment is refused instead.
"""

from pathlib import Path
from typing import Any

from flows.server.settings import require_same_workspace
from storage.errors import Missing, Unknown
from tasks.parameters import BundleParameters
from tasks.releasing import approval, prefect_page, preflight, publish
from tasks.releasing.case import ReleaseCase
from tasks.releasing.plan import PlannedRelease
from tasks.releasing.publish import Released
from tasks.running.failures import private_errors
from tasks.running.progress import listening
from tasks.running.stage import Context
from tasks.running.worker_metrics import MetricsListener

WAIT_DAYS = 30
"""Days that a run of the deployment waits for approvals."""


def release_plan(
    plan: str,
    context: Context,
    *,
    settings: BundleParameters,
    wait_days: int = WAIT_DAYS,
) -> Released:
    """Releases the plan in a file, like `release`.

    Args:
        plan: path of the plan that `retrain` or `compare` wrote.
        settings: which ledger, under which policy, and how the bundle is signed.
        wait_days: days that the run of a deployment waits for approvals before it fails.
    """
    with private_errors("release"):
        require_same_workspace(Path(plan), Path(context.home))
        case = publish.open_case(context, Path(plan), settings)
    return release(case, context, settings=settings, wait_days=wait_days)


def release(
    case: ReleaseCase,
    context: Context,
    *,
    settings: BundleParameters,
    wait_days: int = WAIT_DAYS,
) -> Released:
    """Releases a plan. If it was released before, returns that release; if a run
    died, resumes it.
    """
    metrics = MetricsListener(context.workspace.private, "release")
    with private_errors("release"), listening(*context.run.listeners(), metrics):
        preflight.check_device(context)
        publish.check_signing(context, settings)
        context.workspace.require_bundles()
        if context.run.deployment:
            from flows.server import approvals

            case = approvals.wait(context, case, days=wait_days)
        else:
            approval.require_unrefused(case)
            approval.may_release(case, deployed=False)
        prefect_page.publish_budget(context.run, case.ledger)
        return context.run.call("release", "release", publish.release, context, case, settings)


def request(
    context: Context,
    planned: PlannedRelease,
    plan_file: Path,
    settings: BundleParameters,
    name: str,
) -> str:
    """Starts the release deployment on a plan and returns its run's id, without waiting for it."""
    if not context.run.shows:
        raise Missing(
            "release.deployment: a deployment needs a server. Set "
            "PREFECT_API_URL, or leave it out.",
            kind="deployment-needs-server",
        )
    from prefect.deployments import run_deployment
    from prefect.exceptions import ObjectNotFound

    try:
        run: Any = run_deployment(
            name,
            # no device: the releasing worker may not have the training run's device
            parameters={
                "plan": str(plan_file),
                "home": context.home,
                "ledger": settings.model_dump(
                    mode="json", include=set(BundleParameters.model_fields)
                ),
            },
            timeout=0,
            as_subflow=False,
            # a training run that died after the request does not request again
            idempotency_key=f"{planned.digest}-{context.run.id}",
        )
    except ObjectNotFound:
        raise Unknown(
            f"release.deployment: the server has no deployment {name}. Run `autocoder deploy`.",
            kind="no-deployment",
        ) from None
    return str(run.id)
