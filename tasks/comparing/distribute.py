"""Distributes a comparison's branches at each seed over the workers of an engine.

A worker runs every stage of its branch. Afterwards the comparison runs all branches in order, as it
would without workers, and finds their stages finished. A request contains digests, a branch's name,
the seed and the target. The settings are an artifact, like the records. A worker needs neither the
file of records nor the ledger.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial

from pydantic import BaseModel, Field

from storage.artifacts import ArtifactRef, Store
from storage.json_values import Figures
from tasks.branches.branch import ComparisonSettings
from tasks.branches.experiment import Experiment, Study
from tasks.fitting.ingest import ingest_figures
from tasks.method import Method
from tasks.parameters import ReleaseParameters, RetrainParameters
from tasks.running import progress
from tasks.running.parts import compute_part, run_parts
from tasks.running.stage import Step, Work, run_step

_SETTINGS, _STAGES = "settings.json", "stages.json"


class Fit(BaseModel, frozen=True, extra="forbid"):
    branch: str
    seed: int = Field(ge=0, lt=2**53)


class _Settings(BaseModel, frozen=True, extra="forbid"):
    branches: dict[str, Method]
    parameters: RetrainParameters
    terms: ComparisonSettings


def finish_on_workers(experiments: Sequence[Experiment]) -> None:
    """Runs these experiments of one study on workers until all their stages are finished."""
    study = experiments[0].study
    settings = run_step(
        study.context, _settings_step(study, [experiment.branch for experiment in experiments])
    )
    fits = [Fit(branch=experiment.branch.name, seed=experiment.seed) for experiment in experiments]
    inputs = {**study.records, "settings": settings}
    run_parts(study.context, compute, fits, inputs, part_step, report=progress.reporter("branches"))


def _settings_step(study: Study, branches: Sequence[Method]) -> Step:
    terms = ComparisonSettings.model_validate(
        study.terms.model_dump(include=set(ComparisonSettings.model_fields))
    )
    content = _Settings(
        branches={branch.name: branch for branch in branches},
        parameters=study.parameters.model_copy(update={"release": ReleaseParameters()}),
        terms=terms.model_copy(update={"delta": study.default_delta}),
    ).model_dump(mode="json")

    def body(work: Work) -> Figures:
        (work.out / _SETTINGS).write_text(json.dumps(content))
        return {}

    return Step(
        name="branch-settings",
        label="settings of the branches",
        config=content,
        inputs={},
        body=body,
        modules=(__name__,),
    )


def _read(store: Store, settings: ArtifactRef) -> _Settings:
    return _Settings.model_validate_json((store.open(settings) / _SETTINGS).read_text())


def compute(request: str) -> str:
    return compute_part(request, Fit, part_step)


def part_step(store: Store, fit: Fit, inputs: Mapping[str, ArtifactRef]) -> Step:
    """Returns a branch at a seed as one stage. Its output lists the stages that it ran."""
    branch = _read(store, inputs["settings"]).branches[fit.branch]
    return Step(
        name="branch-part",
        label=f"{branch.name}, seed {fit.seed}",
        config=fit.model_dump(mode="json"),
        inputs=dict(inputs),
        body=partial(_run, fit=fit),
        modules=(__name__, type(branch.mechanism).__module__),
    )


def _run(work: Work, *, fit: Fit) -> Figures:
    context, settings = work.context, _read(work.context.store, work.refs["settings"])
    digests: dict[str, str] = {}

    def run_and_note(step: Step) -> ArtifactRef:
        ref = run_step(context, step)
        digests[f"{ref.kind}/{ref.path.name}"] = ref.sha256
        return ref

    study = Study(
        context,
        settings.parameters,
        settings.terms,
        work.refs["dataset"],
        work.refs["prepared"],
        ingest_figures(context.store, work.refs["dataset"]),
        run_and_note,
    )
    study.experiment(settings.branches[fit.branch], fit.seed).run()
    (work.out / _STAGES).write_text(json.dumps(digests, sort_keys=True))
    return {"stages": len(digests)}
