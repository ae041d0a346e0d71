"""A closer look at a retrain: its finished stages, refits of it, and one private page. Releases nothing."""

from __future__ import annotations

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.runtime import flow_run

from flows.server.settings import home_of
from storage.artifacts import ArtifactRef
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


@flow(
    name="diagnose",
    description="Look closely at a retrain. Private: nothing is released.",
    persist_result=False,
    result_serializer="json",
    log_prints=False,
)
def diagnose(
    parameters: RetrainParameters, settings: DiagnoseParameters, home: str = "workspace", device: str = "auto"
) -> DiagnoseResult:
    """Reuse what the retrain of these parameters finished (or run it), look at it, and write the page.

    Raises:
        InputError: records cannot be left out of this kind of model.
    """
    context = Context(home=str(home_of(home)), device=device)
    with private_errors("diagnose"), listening(prefect_page.PrefectListener()):
        run.refuse_early(context, parameters, settings)
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
