"""Audits a plan's claim with reruns of the mechanism and gradient canaries.

Nothing is released or charged. Each audit is a row of the ledger, which the gate of a release
reads.
"""

from functools import partial
from pathlib import Path

from flows.server.settings import require_same_workspace
from tasks.auditing import run as auditing
from tasks.auditing.result import AuditResult
from tasks.auditing.settings import AuditParameters, choose_branches
from tasks.branches.plan import Origin
from tasks.releasing import prefect_page
from tasks.running.failures import private_errors
from tasks.running.progress import listening
from tasks.running.stage import Context, submit
from tasks.running.timings import TimingsListener
from tasks.running.worker_metrics import MetricsListener


def audit_plan(plan: str, settings: AuditParameters, context: Context) -> AuditResult:
    with private_errors("audit"):
        require_same_workspace(Path(plan), Path(context.home))
        planned, origin = Origin.of(Path(plan))
        chosen = choose_branches(origin.branch, origin.parameters, origin.terms.all_branches)
        context.workspace.create()
        estimate = auditing.estimate_stages(
            context, origin.parameters, origin.terms, settings, chosen
        )
    private = context.workspace.private
    measured = MetricsListener(private, "audit"), TimingsListener(private, estimate.stages)
    with private_errors("audit"), listening(*context.run.listeners(), *measured):
        result = auditing.run(
            context,
            origin.parameters,
            origin.terms,
            settings,
            chosen,
            candidate=planned.candidate.fitted,
            run_step=partial(submit, context),
        )
        text = [*result.lines, f"Everything for the decision on the plan: `autocoder plan {plan}`"]
        prefect_page.publish_audit(context.run, text)
    return result
