"""A comparison's branches at each seed, a run of the deployment `branch-shard` each, on whichever worker is free.

A worker runs every stage of its branch; afterwards the comparison goes through all branches in its own order, as
without workers, and finds the stages finished. Through Prefect go digests, the seed and the target: the settings are
an artifact, as records are. A worker needs neither the records' file nor the ledger.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from pydantic import BaseModel, Field

from mechanisms.errors import DrawsRefused
from mechanisms.model.training import Progress
from storage.artifacts import ArtifactRef
from storage.errors import InputError
from tasks.branches import one_fit
from tasks.branches.branch import Branch, CompareParameters
from tasks.branches.outcome import Study, runner_of
from tasks.parameters import ReleaseParameters, RetrainParameters, Spread
from tasks.running import shards as spreading
from tasks.running.shard_runs import ShardRuns
from tasks.running.shards import StageAsked, StageShard
from tasks.running.stage import Context, Step, Work, run_step

DEPLOYMENT = "branch-shard/branch-shard"
_SETTINGS, _STAGES = "settings.json", "stages.json"


class SeedAndTarget(BaseModel, frozen=True, extra="forbid", title="Branch at a seed"):
    """What differs between the runs of one branch."""

    seed: int = Field(ge=0, lt=2**53, title="Seed", description="Of the fit.")
    target: float | None = Field(
        default=None, gt=0, title="Target epsilon", description="Of a branch that aims at one; empty: it does not."
    )


class BranchAsked(StageAsked, frozen=True, extra="forbid", title="Shard"):
    """One branch at one seed: the digests of its settings and records. Nothing of a record."""

    at: SeedAndTarget = Field(title="Seed and target")


class _Settings(BaseModel, frozen=True, extra="forbid"):
    """All else that a branch is run with."""

    branch: Branch
    parameters: RetrainParameters
    compare: CompareParameters


def preflight(context: Context, settings: CompareParameters) -> None:
    """Refuse before there is work what could not be spread.

    Raises:
        InputError: no server is named, it has not the deployment, or branches are to run side by side as well.
    """
    if settings.slots > 1:
        raise InputError("slots: branches that go to workers do not run side by side here too; leave it at 1")
    with ShardRuns.at(DEPLOYMENT, spreading.place_of(context)):
        pass


def finish(settings: Spread, progress: Progress, study: Study, pairs: Sequence[tuple[Branch, int]]) -> None:
    """Have workers run these branches at these seeds; return when every stage of theirs is finished.

    Raises:
        StorageError: a run was lost too often, its output does not arrive, or the server does not answer.
    """
    context = spreading.alone(study.context)
    told = {branch.name: run_step(context, _told(study, branch)) for branch, _ in pairs}
    shards = []
    for branch, seed in pairs:
        at = SeedAndTarget(seed=seed, target=study.target if study.mechanism(branch).aims else None)
        step = _step(at, {**study.records, "settings": told[branch.name]}, branch)
        shards.append(StageShard(context, step, BranchAsked(at=at, **StageAsked.told(step, context))))
    spreading.finish(shards, settings, DEPLOYMENT, spreading.place_of(context), progress)


def compute(context: Context, asked: BranchAsked) -> ArtifactRef:
    """Do what was asked for, on a worker.

    Raises:
        StorageError: an input is nowhere to be had, or this worker's code is another version.
    """

    def step_of(inputs: Mapping[str, ArtifactRef]) -> Step:
        return _step(asked.at, inputs, _read(context, inputs["settings"]).branch)

    return spreading.compute(context, asked, step_of)


def _told(study: Study, branch: Branch) -> Step:
    """The stage that holds a branch's settings: without the ledger's place, since the delta it allows is settled."""
    content = _Settings(
        branch=branch,
        parameters=study.parameters.model_copy(update={"release": ReleaseParameters()}),
        compare=study.settings.model_copy(update={"delta": study.usual_delta}),
    ).model_dump(mode="json")

    def body(work: Work) -> Mapping[str, Any]:
        (work.out / _SETTINGS).write_text(json.dumps(content))
        return {}

    return Step(
        name="branch-settings",
        label=f"settings ({branch.name})",
        config=content,
        inputs={},
        body=body,
        modules=(__name__,),
    )


def _read(context: Context, settings: ArtifactRef) -> _Settings:
    return _Settings.model_validate_json((context.store.open(settings) / _SETTINGS).read_text())


def _step(at: SeedAndTarget, inputs: Mapping[str, ArtifactRef], branch: Branch) -> Step:
    """A branch at a seed as one stage: its output names the stages that were run for it."""
    return Step(
        name="branch-shard",
        label=f"{branch.name}, seed {at.seed}",
        config=at.model_dump(mode="json"),
        inputs=dict(inputs),
        body=partial(_run, at=at),
        modules=(__name__, type(branch.mechanism).__module__),
    )


def _run(work: Work, *, at: SeedAndTarget) -> Mapping[str, Any]:
    context, told = work.context, _read(work.context, work.refs["settings"])
    made: dict[str, str] = {}

    def do(step: Step) -> ArtifactRef:
        ref = run_step(context, step)
        made[f"{ref.kind}/{ref.path.name}"] = ref.sha256
        return ref

    study = Study(
        context,
        told.parameters,
        told.compare,
        work.refs["dataset"],
        work.refs["prepared"],
        context.store.figures(work.refs["dataset"]),
        do,
        target=at.target,
    )
    with suppress(DrawsRefused):  # whoever asked fits what is missing, is refused too, and has a page to say so on
        runner_of(told.branch.mechanism, one_fit.run)(study, told.branch, at.seed)
    (work.out / _STAGES).write_text(json.dumps(made, sort_keys=True))
    return {"stages": len(made)}
