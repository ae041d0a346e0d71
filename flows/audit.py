"""Audits the claim of a plan or of branches by membership tests and reruns of the mechanism.

Nothing is released and nothing is charged. Each audit is a row of the ledger, which the gate of a release reads.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

from flows.server.form import DeviceChoice, PlanFile, Workspace, section, with_title
from flows.server.settings import home_of, require_same_workspace
from tasks.auditing import run as auditing
from tasks.auditing.audit_result import AuditResult
from tasks.auditing.findings import lines
from tasks.auditing.settings import AuditParameters, choose_branches
from tasks.branches.branch import Terms
from tasks.branches.plan import Origin
from tasks.parameters import FanOut, RetrainParameters
from tasks.releasing import prefect_page
from tasks.running.failures import private_errors
from tasks.running.flow_run import job, named_by_plan, run_id
from tasks.running.progress import Listener, listening
from tasks.running.stage import Context, submit
from tasks.running.timings import TimingsListener
from tasks.running.worker_metrics import MetricsListener

AuditSection: Any = section(AuditParameters)
_USUAL = AuditSection()


@job(
    name="audit",
    description="Measure what the release of a plan would leak, and compare it with the claim. Nothing is released.",
    flow_run_name=named_by_plan,
)
def audit(
    plan: PlanFile,
    settings: Annotated[AuditSection, with_title("Effort")] = _USUAL,
    home: Workspace = None,
    device: DeviceChoice = "auto",
    fan_out: Annotated[FanOut | None, with_title("Shards")] = None,
) -> AuditResult:
    """Audit what a plan releases, with its settings and records.

    Args:
        plan: path of the plan that `retrain` or `compare` wrote.
        settings: how much is spent on measuring.
        home: workspace folder; empty: that of the worker (AUTOCODER_HOME).
        device: `auto`, `cpu` or `cuda`.
        fan_out: whether reruns are spread over workers; it does not change what comes out.

    Raises:
        InputError: the plan or the trials are invalid, or the fit differs from that of the plan.
    """
    context = Context(home=str(home_of(home)), device=device, fan_out=fan_out or FanOut())
    with private_errors("audit"):
        require_same_workspace(Path(plan), Path(context.home))
        planned, origin = Origin.of(Path(plan))
    result = _audit(
        context,
        origin.parameters,
        origin.terms,
        AuditParameters.model_validate(settings.model_dump()),
        origin.branch,
        prefect_page.PrefectListener(),
        candidate=planned.candidate.fitted,
    )
    with private_errors("audit"):
        prefect_page.publish_audit([*lines(result), f"All that decides on the plan: `autocoder plan show {plan}`"])
    return result


def _audit(
    context: Context,
    parameters: RetrainParameters,
    terms: Terms,
    settings: AuditParameters,
    branches: str,
    *listeners: Listener,
    **options: Any,
) -> AuditResult:
    """Run an audit of branches by their names; options are those of `tasks.auditing.run.run`."""
    private = context.workspace.private
    with private_errors("audit"):
        chosen = choose_branches(branches, parameters, terms.all_branches)
        context.workspace.create()
        estimate = auditing.estimate_stages(context, parameters, terms, settings, chosen)
    measured = MetricsListener(private, "audit"), TimingsListener(private, estimate.stages)
    with private_errors("audit"), listening(*listeners, *measured):
        how: Any = {"do": partial(submit, context), "prefect_run_id": run_id(), **options}
        return auditing.run(context, parameters, terms, settings, chosen, **how)


@job(
    name="audit-branches",
    description="Measure what branches would leak, and compare it with their claims. Internal: nothing is released.",
    validate_parameters=False,
)
def audit_branches(
    parameters: RetrainParameters,
    terms: Terms,
    settings: AuditParameters,
    branches: str = "release",
    seeds: int = 1,
    home: str = "workspace",
    device: str = "auto",
    fan_out: FanOut | None = None,
) -> AuditResult:
    """Audit branches at every seed; trials are run once per branch, with the settings of the first seed.

    Args:
        parameters: those of the retrain whose candidate is audited.
        terms: the rivals' target, delta and common settings, and further branches.
        branches: names by comma, `all`, or `release` for what the retrain releases from.
        seeds: candidates of each branch, from the fit's seed on.
        fan_out: whether reruns, and passes over draws, are spread over workers.

    Raises:
        InputError: a branch is unknown, or the trials are invalid.
    """
    context = Context(home=str(Path(home).expanduser().resolve()), device=device, fan_out=fan_out or FanOut())
    return _audit(context, parameters, terms, settings, branches, seeds=seeds)
