"""Computes one shard of a large stage on any worker of a queue; a retrain, audit, comparison or coding requests it."""

from __future__ import annotations

from typing import Annotated

from prefect import flow

from flows.server.form import DeviceChoice, Workspace, with_title
from flows.server.prefect_run import NOTHING_STORED, PrefectRun
from flows.server.settings import home_of
from storage.artifacts import ArtifactRef
from tasks.auditing import trials
from tasks.auditing.trials import TrialRange
from tasks.coding import shards as coding
from tasks.coding.shards import Pieces
from tasks.comparing import shards as comparing
from tasks.comparing.shards import SeedAndTarget
from tasks.fitting import risks
from tasks.fitting.risks import Draws
from tasks.running import shards
from tasks.running.failures import private_errors
from tasks.running.progress import listening
from tasks.running.shard_runs import StageRequest
from tasks.running.stage import Context, Step
from tasks.running.worker_metrics import MetricsListener

ShardRequest = StageRequest[Draws | TrialRange | SeedAndTarget | Pieces]


@flow(
    name="shard",
    description="Compute a shard: draws of a pass, reruns of an audit, a branch of a comparison, or pieces of a table. "
    "Its output is a stage of the private store; answers go next to the table's output.",
    **NOTHING_STORED,
)
def shard(
    shard: Annotated[ShardRequest, with_title("Which part of what")],
    home: Workspace = None,
    device: DeviceChoice = "auto",
) -> ArtifactRef | int:
    """Compute a shard, or reuse it; return its stage, or the number of pieces. After a crash a rerun resumes.

    Args:
        shard: which part of what; filled in by the run that requests it.
        home: workspace folder; empty: that of the worker (AUTOCODER_HOME).
        device: `auto`, `cpu` or `cuda`.
    """
    settings = shard.settings
    if isinstance(settings, Pieces):  # a worker that codes needs no workspace
        with private_errors("shard"):
            return coding.compute(settings, shard.key)
    context = Context(home=str(home_of(home)), device=device)
    metrics = MetricsListener(context.workspace.private, "shard")
    with private_errors("shard"), listening(*PrefectRun().listeners(), metrics):
        context.workspace.create()
        return shards.compute(context, shard, step_of)


def step_of(context: Context, settings: object, inputs: dict[str, ArtifactRef]) -> Step:
    """Declares the stage of a shard with these settings."""
    if isinstance(settings, Draws):
        return risks.shard(settings, inputs)
    if isinstance(settings, TrialRange):
        return trials.shard(context.store, settings, inputs)
    assert isinstance(settings, SeedAndTarget)
    return comparing.shard(context.store, settings, inputs)
