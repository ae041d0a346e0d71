"""One branch of a comparison at one seed, for any worker of the queue. Asked for by a comparison, not by hand."""

from __future__ import annotations

from typing import Annotated

from prefect import flow

from flows.server.form import OnDevice, Workspace, titled
from flows.server.settings import home_of
from storage.artifacts import ArtifactRef
from tasks.comparing import shards
from tasks.comparing.shards import BranchAsked
from tasks.releasing import prefect_page
from tasks.running.failures import private_errors
from tasks.running.progress import listening
from tasks.running.stage import Context
from tasks.running.worker_metrics import MetricsListener


@flow(
    name="branch-shard",
    description="Fit and score one branch of a comparison at one seed. Its outputs are stages of the private store.",
    persist_result=False,
    result_serializer="json",
    log_prints=False,
)
def branch_shard(
    shard: Annotated[BranchAsked, titled("Which branch of what")],
    home: Workspace = None,
    device: OnDevice = "auto",
) -> ArtifactRef:
    """Run the stages of a branch that are not finished. Run again after a crash it goes on where it stopped.

    Args:
        shard: which branch of what; the run that asks for it fills this in.
        home: workspace folder; empty: the worker's own (AUTOCODER_HOME).
        device: `auto`, `cpu` or `cuda`.
    """
    context = Context(home=str(home_of(home)), device=device)
    metrics = MetricsListener(context.workspace.private, "branch-shard")
    with private_errors("branch shard"), listening(prefect_page.PrefectListener(), metrics):
        context.workspace.create()
        return shards.compute(context, shard)
