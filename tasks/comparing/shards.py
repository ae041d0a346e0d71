"""Spreads a comparison's branches at each seed over workers, as runs of the deployment `shard`.

A worker runs every stage of its branch; afterwards the comparison takes all branches in order, as without workers,
and their stages are finished. Prefect gets digests, the seed and the target: the settings are an artifact, as records
are. A worker needs neither the records' file nor the ledger.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import BaseModel, Field

from mechanisms.model.training import Progress
from storage.artifacts import ArtifactRef, Store
from storage.errors import InputError
from tasks.branches.branch import Branch, Terms
from tasks.branches.experiment import Experiment, Study
from tasks.parameters import ReleaseParameters, RetrainParameters, ShardSettings
from tasks.running import shards as spreading
from tasks.running.shard_runs import ShardRuns
from tasks.running.shards import DEPLOYMENT, StageShard
from tasks.running.stage import Context, Step, Work, run_step

_SETTINGS, _STAGES = "settings.json", "stages.json"


class SeedAndTarget(BaseModel, frozen=True, extra="forbid", title="Branch at a seed"):
    """Holds what differs between the runs of one branch."""

    seed: int = Field(ge=0, lt=2**53, title="Seed", description="Of the fit.")
    target: float | None = Field(
        default=None, gt=0, title="Target epsilon", description="Of a branch that aims at one; otherwise empty."
    )


class _Settings(BaseModel, frozen=True, extra="forbid"):
    """Holds the other settings of a branch."""

    branch: Branch
    parameters: RetrainParameters
    terms: Terms


def preflight(context: Context, *, slots: int = 1) -> None:
    """Refuses what cannot be spread, before any work."""
    if slots > 1:
        raise InputError("slots must be 1 when branches go to workers. Leave it at 1")
    with ShardRuns.connect(DEPLOYMENT, spreading.place_of(context)):
        pass


def finish(settings: ShardSettings, progress: Progress, experiments: Sequence[Experiment]) -> None:
    """Runs these experiments of one study on workers, until all their stages are finished.

    Raises:
        StorageError: a run was lost too often, its output does not arrive, or the server does not answer.
    """
    study = experiments[0].study
    context = spreading.without_shards(study.context)
    refs = {one.branch.name: run_step(context, _settings_step(study, one.branch)) for one in experiments}
    shards = []
    for one in experiments:
        at = SeedAndTarget(seed=one.seed, target=study.target if one.mechanism.has_target else None)
        step = shard(context.store, at, {**study.records, "settings": refs[one.branch.name]})
        shards.append(StageShard(context, step, at))
    spreading.finish(shards, settings, progress, spreading.place_of(context))


def _settings_step(study: Study, branch: Branch) -> Step:
    """Returns the stage that holds a branch's settings, with the delta filled in and without the ledger's address."""
    content = _Settings(
        branch=branch,
        parameters=study.parameters.model_copy(update={"release": ReleaseParameters()}),
        terms=Terms.model_validate(study.terms.model_dump(include=set(Terms.model_fields))).model_copy(
            update={"delta": study.default_delta}
        ),
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


def _read(store: Store, settings: ArtifactRef) -> _Settings:
    return _Settings.model_validate_json((store.open(settings) / _SETTINGS).read_text())


def shard(store: Store, at: SeedAndTarget, inputs: Mapping[str, ArtifactRef]) -> Step:
    """Returns a branch at a seed as one stage, whose output names the stages that it ran."""
    branch = _read(store, inputs["settings"]).branch
    return Step(
        name="branch-shard",
        label=f"{branch.name}, seed {at.seed}",
        config=at.model_dump(mode="json"),
        inputs=dict(inputs),
        body=partial(_run, at=at),
        modules=(__name__, type(branch.mechanism).__module__),
    )


def _run(work: Work, *, at: SeedAndTarget) -> Mapping[str, Any]:
    context, settings = work.context, _read(work.context.store, work.refs["settings"])
    digests: dict[str, str] = {}

    def do(step: Step) -> ArtifactRef:
        ref = run_step(context, step)
        digests[f"{ref.kind}/{ref.path.name}"] = ref.sha256
        return ref

    study = Study(
        context,
        settings.parameters,
        settings.terms,
        work.refs["dataset"],
        work.refs["prepared"],
        context.store.figures(work.refs["dataset"]),
        do,
        target=at.target,
    )
    study.at(settings.branch, at.seed).run()
    (work.out / _STAGES).write_text(json.dumps(digests, sort_keys=True))
    return {"stages": len(digests)}
