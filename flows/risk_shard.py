"""One shard of a risk or sensitivity pass, for any worker of the GPU pool. Asked for by a retrain, not by hand."""

from __future__ import annotations

from typing import Annotated

from prefect import flow

from flows.server.form import OnDevice, Workspace, titled
from flows.server.settings import home_of
from storage.artifacts import ArtifactRef
from tasks.fitting import fan_out
from tasks.fitting.fan_out import ShardParameters
from tasks.releasing import prefect_page
from tasks.running.failures import private_errors
from tasks.running.progress import listening
from tasks.running.stage import Context
from tasks.running.worker_metrics import MetricsListener


@flow(
    name="risk-shard",
    description="Evaluate some of a pass's posterior draws. Its output is a stage of the private store.",
    persist_result=False,
    result_serializer="json",
    log_prints=False,
)
def risk_shard(
    shard: Annotated[ShardParameters, titled("Draws of which pass")], home: Workspace = None, device: OnDevice = "auto"
) -> ArtifactRef:
    """Compute a shard, or find it finished. Run again after a crash it goes on from its checkpoint.

    Args:
        shard: which draws of what; the run that asks for it fills this in.
        home: workspace folder; empty: the worker's own (AUTOCODER_HOME).
        device: `auto`, `cpu` or `cuda`.
    """
    context = Context(home=str(home_of(home)), device=device)
    metrics = MetricsListener(context.workspace.private, "risk-shard")
    with private_errors("risk shard"), listening(prefect_page.PrefectListener(), metrics):
        context.workspace.create()
        return fan_out.compute(context, shard)
