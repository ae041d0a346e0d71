"""Audits the claim of a plan or of branches by membership tests and reruns of the mechanism.

Nothing is released and nothing is charged. Each audit is a row of the ledger, which the gate of a release reads.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from flows.server.settings import require_same_workspace
from tasks.auditing import run as auditing
from tasks.auditing.audit_result import AuditResult
from tasks.auditing.findings import lines
from tasks.auditing.settings import AuditParameters, choose_branches
from tasks.branches.branch import Terms
from tasks.branches.plan import Origin
from tasks.parameters import RetrainParameters
from tasks.releasing import prefect_page
from tasks.running.failures import private_errors
from tasks.running.progress import listening
from tasks.running.stage import Context, submit
from tasks.running.timings import TimingsListener
from tasks.running.worker_metrics import MetricsListener


def audit_plan(plan: str, settings: AuditParameters, context: Context) -> AuditResult:
    """Audits what a plan releases, with its settings and records.

    Raises:
        InputError: the plan or the trials are invalid, or the fit differs from that of the plan.
    """
    with private_errors("audit"):
        require_same_workspace(Path(plan), Path(context.home))
        planned, origin = Origin.of(Path(plan))
    candidate = planned.candidate.fitted
    result = _audit(context, origin.parameters, origin.terms, settings, origin.branch, candidate=candidate)
    with private_errors("audit"):
        text = [*lines(result), f"All that decides on the plan: `autocoder plan show {plan}`"]
        prefect_page.publish_audit(context.run, text)
    return result


def audit_branches(
    parameters: RetrainParameters,
    terms: Terms,
    settings: AuditParameters,
    context: Context,
    *,
    branches: str = "release",
    seeds: int = 1,
) -> AuditResult:
    """Audits branches at every seed; trials are run once per branch, with the settings of the first seed.

    Args:
        parameters: those of the retrain whose candidate is audited.
        terms: the rivals' target, delta and common settings, and further branches.
        branches: names by comma, `all`, or `release` for what the retrain releases from.
        seeds: candidates of each branch, from the fit's seed on.

    Raises:
        InputError: a branch is unknown, or the trials are invalid.
    """
    return _audit(context, parameters, terms, settings, branches, seeds=seeds)


def _audit(
    context: Context,
    parameters: RetrainParameters,
    terms: Terms,
    settings: AuditParameters,
    branches: str,
    **options: Any,
) -> AuditResult:
    """Run an audit of branches by their names; options are those of `tasks.auditing.run.run`."""
    private = context.workspace.private
    with private_errors("audit"):
        chosen = choose_branches(branches, parameters, terms.all_branches)
        context.workspace.create()
        estimate = auditing.estimate_stages(context, parameters, terms, settings, chosen)
    measured = MetricsListener(private, "audit"), TimingsListener(private, estimate.stages)
    with private_errors("audit"), listening(*context.run.listeners(), *measured):
        how: Any = {"do": partial(submit, context), "prefect_run_id": context.run.id, **options}
        return auditing.run(context, parameters, terms, settings, chosen, **how)
