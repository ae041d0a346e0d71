"""Diagnoses a retrain from its finished stages and refits, and writes one private page. Releases nothing."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from flows.server.settings import require_same_workspace
from tasks.branches import search
from tasks.branches.plan import Origin
from tasks.diagnosing import run
from tasks.diagnosing.page import NOTICE, DiagnoseResult
from tasks.diagnosing.stages import DiagnoseParameters
from tasks.parameters import RetrainParameters
from tasks.running.failures import private_errors
from tasks.running.progress import listening
from tasks.running.stage import Context, submit
from tasks.running.timings import TimingsListener
from tasks.running.worker_metrics import MetricsListener


def diagnose_plan(plan: str, settings: DiagnoseParameters, context: Context) -> DiagnoseResult:
    """Diagnoses the retrain of a plan, with its settings and records.

    Raises:
        InputError: the plan is missing, or is one of a formal fit or a comparison.
    """
    with private_errors("diagnose"):
        require_same_workspace(Path(plan), Path(context.home))
        origin = Origin.of(Path(plan))[1]
        origin.require_retrain(Path(plan))
    return diagnose(origin.parameters, settings, context)


def diagnose(parameters: RetrainParameters, settings: DiagnoseParameters, context: Context) -> DiagnoseResult:
    """Reuses or runs the retrain of these parameters, diagnoses it, and writes the page.

    Raises:
        InputError: records cannot be left out of this kind of model.
    """
    with private_errors("diagnose"):
        estimate = run.refuse_early(context, parameters, settings)
    private = context.workspace.private
    listeners = MetricsListener(private, "diagnose"), TimingsListener(private, estimate.stages)
    with private_errors("diagnose"), listening(*context.run.listeners(), *listeners):
        context.workspace.create()
        number, do = context.run.id, partial(submit, context)
        parameters = search.meet_target(context, parameters, do, prefect_run_id=number)
        result = run.diagnose(context, parameters, settings, do, prefect_run_id=number)
        context.run.publish_markdown(
            key="diagnostics",
            markdown=f"{NOTICE}\n\nThe page: `{result.report}`",
            description="Path of the diagnostics page.",
        )
        return result
