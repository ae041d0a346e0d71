"""Some reruns of an audit, for any worker of the queue. Asked for by an audit, not by hand."""

from __future__ import annotations

from typing import Annotated

from prefect import flow

from flows.server.form import OnDevice, Workspace, titled
from flows.server.settings import home_of
from storage.artifacts import ArtifactRef
from tasks.auditing import trials
from tasks.auditing.trials import TrialsAsked
from tasks.releasing import prefect_page
from tasks.running.failures import private_errors
from tasks.running.progress import listening
from tasks.running.stage import Context
from tasks.running.worker_metrics import MetricsListener


@flow(
    name="trials-shard",
    description="Rerun a mechanism on records that took part by the toss of a coin. Its output is a private stage.",
    persist_result=False,
    result_serializer="json",
    log_prints=False,
)
def trials_shard(
    shard: Annotated[TrialsAsked, titled("Which trials of what")], home: Workspace = None, device: OnDevice = "auto"
) -> ArtifactRef:
    """Run a shard of an audit's trials, or find it finished. Run again after a crash it goes on at its next chunk.

    Args:
        shard: which trials of what; the run that asks for it fills this in.
        home: workspace folder; empty: the worker's own (AUTOCODER_HOME).
        device: `auto`, `cpu` or `cuda`.
    """
    context = Context(home=str(home_of(home)), device=device)
    metrics = MetricsListener(context.workspace.private, "trials-shard")
    with private_errors("trials shard"), listening(prefect_page.PrefectListener(), metrics):
        context.workspace.create()
        return trials.compute(context, shard)
