"""A pass over draws in shards, each a run of the deployment `risk-shard` on whichever worker is free.

Shards are stages: found by their keys, resumed from their own checkpoints, computed once (tasks/running/shards.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from mechanisms.posterior import risks
from mechanisms.posterior.risks import RiskPass
from storage.artifacts import ArtifactRef
from storage.errors import StorageError
from tasks.fitting import draws as passes
from tasks.fitting.draws import Draws
from tasks.running import shards as spread
from tasks.running.shards import StageAsked, StageShard
from tasks.running.stage import Context, Work


class ShardParameters(StageAsked, frozen=True, extra="forbid", title="Shard"):
    """One shard: which draws, and the digests of what they are evaluated on. Nothing of a record."""

    draws: Draws = Field(title="Draws")


def passed(work: Work, whole: Draws) -> RiskPass:
    """The pass, in this process or in shards, as the context says. Both give the same, bit for bit, on like devices.

    Raises:
        MechanismError: a log-likelihood is not finite.
        StorageError: a shard was lost too often, or the server does not answer.
    """
    parts = whole.split(work.context.fan_out.shards)
    if len(parts) == 1:
        return passes.run(work, whole)
    settings, context = work.context.fan_out, spread.alone(work.context)
    asked = [_shard(context, part, work.refs) for part in parts]
    spread.finish(asked, settings, settings.deployment, spread.place_of(context), work.progress)
    store = context.store
    found = [(shard.label, shard.step.find(store)) for shard in asked]
    for label, ref in found:
        if ref is None:  # a maximum over fewer draws would understate Delta
            raise StorageError(f"{label}: its output was removed before it was merged; run again")
    return risks.merge([passes.load(store.open(ref)) for _, ref in found if ref is not None])


def compute(context: Context, asked: ShardParameters) -> ArtifactRef:
    """Do what was asked for, on a worker.

    Raises:
        StorageError: an input is nowhere to be had, or this worker's code is another version.
    """
    return spread.compute(context, asked, lambda inputs: passes.shard(asked.draws, inputs))


def _shard(context: Context, part: Draws, inputs: Mapping[str, ArtifactRef]) -> StageShard:
    step = passes.shard(part, inputs)
    asked = ShardParameters(draws=part, **StageAsked.told(step, context))
    return StageShard(context, step, asked, size=part.end - part.first)
