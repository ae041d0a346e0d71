"""Diagnoses a retrain from its finished stages and refits, and writes one private page. Releases nothing."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

from flows.server.form import DeviceChoice, PlanFile, Workspace, section, with_title
from flows.server.settings import home_of, require_same_workspace
from tasks.branches import search
from tasks.branches.plan import Origin
from tasks.diagnosing import run
from tasks.diagnosing.page import NOTICE, DiagnoseResult
from tasks.diagnosing.stages import DiagnoseParameters
from tasks.parameters import RetrainParameters
from tasks.releasing import prefect_page
from tasks.running.failures import private_errors
from tasks.running.flow_run import job, named_by_plan, publish_markdown, run_id
from tasks.running.progress import listening
from tasks.running.stage import Context, submit
from tasks.running.timings import TimingsListener
from tasks.running.worker_metrics import MetricsListener

DiagnoseSection: Any = section(DiagnoseParameters)
_USUAL = DiagnoseSection()


@job(
    name="diagnose",
    description="Diagnose what a plan releases. Private: nothing is released.",
    flow_run_name=named_by_plan,
)
def diagnose(
    plan: PlanFile,
    settings: Annotated[DiagnoseSection, with_title("Studies")] = _USUAL,
    home: Workspace = None,
    device: DeviceChoice = "auto",
) -> DiagnoseResult:
    """Diagnose the retrain of a plan, with its settings and records.

    Args:
        plan: path of the plan that `retrain` wrote.
        settings: effort of the studies.
        home: workspace folder; empty: that of the worker (AUTOCODER_HOME).
        device: `auto`, `cpu` or `cuda`.

    Raises:
        InputError: the plan is missing, or is one of a formal fit or a comparison.
    """
    with private_errors("diagnose"):
        require_same_workspace(Path(plan), home_of(home))
        origin = Origin.of(Path(plan))[1]
        origin.require_retrain(Path(plan))
    studies = DiagnoseParameters.model_validate(settings.model_dump())
    return _diagnose(origin.parameters, studies, home=home, device=device)


@job(
    name="diagnose-retrain", description="Diagnose a retrain. Private: nothing is released.", validate_parameters=False
)
def diagnose_retrain(
    parameters: RetrainParameters, settings: DiagnoseParameters, home: str = "workspace", device: str = "auto"
) -> DiagnoseResult:
    """Reuse or run the retrain of these parameters, diagnose it, and write the page.

    Raises:
        InputError: records cannot be left out of this kind of model.
    """
    return _diagnose(parameters, settings, home=home, device=device)


def _diagnose(
    parameters: RetrainParameters, settings: DiagnoseParameters, *, home: str | None, device: str
) -> DiagnoseResult:
    context = Context(home=str(home_of(home)), device=device)
    with private_errors("diagnose"):
        estimate = run.refuse_early(context, parameters, settings)
    private = context.workspace.private
    listeners = MetricsListener(private, "diagnose"), TimingsListener(private, estimate.stages)
    with private_errors("diagnose"), listening(prefect_page.PrefectListener(), *listeners):
        context.workspace.create()
        number, do = run_id(), partial(submit, context)
        parameters = search.meet_target(context, parameters, do, prefect_run_id=number)
        result = run.diagnose(context, parameters, settings, do, prefect_run_id=number)
        publish_markdown(
            key="diagnostics",
            markdown=f"{NOTICE}\n\nThe page: `{result.report}`",
            description="Path of the diagnostics page.",
        )
        return result
