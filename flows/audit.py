"""What is measured beside what is claimed: membership tests and reruns of the mechanism, for a plan or for any branch.

Nothing leaves and nothing is charged. Each audit is a row of the ledger, which the gate of a release reads.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from prefect.runtime import flow_run

from flows.server.form import OnDevice, PlanFile, Workspace, section, titled
from flows.server.settings import home_of, same_house
from tasks.auditing import run as auditing
from tasks.auditing.audited import AuditResult
from tasks.auditing.findings import lines
from tasks.auditing.settings import AuditParameters, choose_branches
from tasks.branches.branch import CompareParameters
from tasks.branches.origin import Origin
from tasks.parameters import FanOut, RetrainParameters
from tasks.releasing import prefect_page
from tasks.running.failures import private_errors
from tasks.running.progress import listening
from tasks.running.stage import Context, submit
from tasks.running.timings import TimingsListener
from tasks.running.worker_metrics import MetricsListener

AuditSection: Any = section(AuditParameters)
_USUAL = AuditSection()


@flow(
    name="audit",
    description="Measure what the release of a plan would leak, beside what it claims. Nothing is released.",
    persist_result=False,
    result_serializer="json",
    log_prints=False,
)
def audit(
    plan: PlanFile,
    settings: Annotated[AuditSection, titled("Effort")] = _USUAL,  # type: ignore[valid-type]
    home: Workspace = None,
    device: OnDevice = "auto",
    fan_out: Annotated[FanOut | None, titled("Shards")] = None,
) -> AuditResult:
    """Audit what a plan releases, with the settings and records that it was made with.

    Args:
        plan: path of the plan that `retrain` or `compare` wrote.
        settings: how much is spent on measuring.
        home: workspace folder; empty: the worker's own (AUTOCODER_HOME).
        device: `auto`, `cpu` or `cuda`.
        fan_out: whether reruns are spread over workers; it does not change what comes out.

    Raises:
        InputError: no plan, trials that cannot be, or the fit comes out otherwise than the plan's.
    """
    context = Context(home=str(home_of(home)), device=device, fan_out=fan_out or FanOut())
    private, chosen_settings = context.workspace.private, AuditParameters.model_validate(settings.model_dump())
    with private_errors("audit"):
        same_house(Path(plan), Path(context.home))
        planned, origin = Origin.of(Path(plan))
        compare = origin.compare.model_copy(update={"seeds": 1})  # a plan is of the first
        chosen = choose_branches(origin.branch, origin.parameters, compare.known)
        estimate = auditing.expected(context, origin.parameters, compare, chosen_settings, chosen)
    heard = MetricsListener(private, "audit"), TimingsListener(private, estimate.stages)
    with private_errors("audit"), listening(prefect_page.PrefectListener(), *heard):
        result = auditing.run(
            context,
            origin.parameters,
            compare,
            chosen_settings,
            chosen,
            do=partial(submit, context),
            prefect_run_id=str(flow_run.get_id() or "") or None,
            candidate=planned.candidate.fitted,
        )
        prefect_page.publish_audit([*lines(result), f"Beside all else that decides: `autocoder plan show {plan}`"])
        return result


@flow(
    name="audit-branches",
    description="Measure what branches would leak, beside what they claim. Internal: nothing is released.",
    persist_result=False,
    result_serializer="json",
    log_prints=False,
    validate_parameters=False,
)
def audit_branches(
    parameters: RetrainParameters,
    compare: CompareParameters,
    settings: AuditParameters,
    branches: str = "release",
    home: str = "workspace",
    device: str = "auto",
    fan_out: FanOut | None = None,
) -> AuditResult:
    """Audit branches at every seed; trials are run once a branch, at the first seed's settings.

    Args:
        parameters: those of the retrain whose candidate is audited.
        compare: seeds, the rivals' target, delta and common settings, and branches of one's own.
        branches: names by comma, `all`, or `release` for what the retrain releases from.
        fan_out: whether reruns, and passes over draws, are spread over workers.

    Raises:
        InputError: an unknown branch, or trials that cannot be.
    """
    context = Context(home=str(Path(home).expanduser().resolve()), device=device, fan_out=fan_out or FanOut())
    private = context.workspace.private
    with private_errors("audit"):
        chosen = choose_branches(branches, parameters, compare.known)
        context.workspace.create()
        estimate = auditing.expected(context, parameters, compare, settings, chosen)
    heard = MetricsListener(private, "audit"), TimingsListener(private, estimate.stages)
    with private_errors("audit"), listening(*heard):
        return auditing.run(
            context,
            parameters,
            compare,
            settings,
            chosen,
            do=partial(submit, context),
            prefect_run_id=str(flow_run.get_id() or "") or None,
        )
