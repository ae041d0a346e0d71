"""A closer look at a retrain: its finished stages, refits of it, and one private page. Releases nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.runtime import flow_run

from flows.server.form import OnDevice, PlanFile, Workspace, section, titled
from flows.server.settings import home_of, same_house
from storage.artifacts import ArtifactRef
from tasks.branches.origin import Origin
from tasks.diagnosing import run
from tasks.diagnosing.page import NOTICE
from tasks.diagnosing.run import DiagnoseResult
from tasks.diagnosing.stages import DiagnoseParameters
from tasks.parameters import RetrainParameters
from tasks.releasing import prefect_page
from tasks.retraining.run import settled
from tasks.running.failures import private_errors
from tasks.running.progress import listening
from tasks.running.stage import Context, Step, submit
from tasks.running.timings import TimingsListener
from tasks.running.worker_metrics import MetricsListener

DiagnoseSection: Any = section(DiagnoseParameters)
_USUAL = DiagnoseSection()


@flow(
    name="diagnose",
    description="Look closely at what a plan releases. Private: nothing is released.",
    persist_result=False,
    result_serializer="json",
    log_prints=False,
)
def diagnose(
    plan: PlanFile,
    settings: Annotated[DiagnoseSection, titled("Studies")] = _USUAL,  # type: ignore[valid-type]
    home: Workspace = None,
    device: OnDevice = "auto",
) -> DiagnoseResult:
    """Look at the retrain of a plan, with the settings and records that it was made with.

    Args:
        plan: path of the plan that `retrain` wrote.
        settings: how closely to look.
        home: workspace folder; empty: the worker's own (AUTOCODER_HOME).
        device: `auto`, `cpu` or `cuda`.

    Raises:
        InputError: no plan, one of a formal fit, or of a comparison.
    """
    with private_errors("diagnose"):
        same_house(Path(plan), home_of(home))
        origin = Origin.of(Path(plan))[1]
        origin.require_retrain(Path(plan))
    studies = DiagnoseParameters.model_validate(settings.model_dump())
    return _diagnose(origin.parameters, studies, home=home, device=device)


@flow(
    name="diagnose-retrain",
    description="Look closely at a retrain. Private: nothing is released.",
    persist_result=False,
    result_serializer="json",
    log_prints=False,
    validate_parameters=False,
)
def diagnose_retrain(
    parameters: RetrainParameters, settings: DiagnoseParameters, home: str = "workspace", device: str = "auto"
) -> DiagnoseResult:
    """Reuse what the retrain of these parameters finished (or run it), look at it, and write the page.

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
    heard = MetricsListener(private, "diagnose"), TimingsListener(private, estimate.stages)
    with private_errors("diagnose"), listening(prefect_page.PrefectListener(), *heard):
        context.workspace.create()
        run_id = str(flow_run.get_id() or "") or None

        def do(step: Step) -> ArtifactRef:
            return submit(context, step)

        parameters = settled(context, parameters, do, prefect_run_id=run_id)
        result = run.diagnose(context, parameters, settings, do, prefect_run_id=run_id)
        create_markdown_artifact(
            key="diagnostics",
            markdown=f"{NOTICE}\n\nThe page: `{result.report}`",
            description="Where the diagnostics page lies.",
        )
        return result
