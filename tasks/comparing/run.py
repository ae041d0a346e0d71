"""Runs all branches on the same records: one ingest, one preparation, then every
branch at every seed and target.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mechanisms.mechanism import Workload
from storage.artifacts import ArtifactRef
from storage.durable import write_atomically
from storage.errors import Missing
from tasks.branches.branch import ComparisonSettings, workloads
from tasks.branches.experiment import Experiment, Outcome, RunStep, Study
from tasks.branches.plan import Origin, plan_release
from tasks.method import Method
from tasks.parameters import RetrainParameters
from tasks.releasing import preflight, publish
from tasks.releasing.preflight import Estimate
from tasks.running.stage import Context, Step

RunOnWorkers = Callable[[Sequence[Experiment]], object]
"""Runs experiments on workers. Their stages are finished when it returns."""


@dataclass(frozen=True)
class Group:
    """One branch at one target, fitted at every seed. `seconds` is the time of its
    stages if all were timed here.
    """

    study: Study
    outcomes: tuple[Outcome, ...]
    seconds: float | None

    @property
    def name(self) -> str:
        return self.outcomes[0].branch.name_at(self.study.terms.target_epsilon)


def _calibrated(chosen: Sequence[Method]) -> list[Method]:
    """Returns the methods that calibrate their noise to a target epsilon."""
    return [method for method in chosen if method.needs_target_epsilon]


def refuse_early(
    context: Context,
    parameters: RetrainParameters,
    terms: ComparisonSettings,
    chosen: Sequence[Method],
) -> Estimate:
    """Makes the checks that need no work, before Prefect's server starts, and
    returns the estimate.
    """
    names = [branch.name for branch in _calibrated(chosen)]
    if names and terms.target_epsilon is None:
        raise Missing(
            f"--epsilon is missing: {', '.join(names)} need a target. Pass --epsilon NUMBER",
            kind="no-epsilon",
        )
    loads: dict[str, Workload] = {}
    for branch in chosen:
        loads |= workloads(branch, parameters, terms)
    return preflight.check(context, parameters, loads)


def estimate_seconds(estimate: Estimate, *, seeds: int) -> float:
    """Returns the seconds of a comparison, from the fits in the estimate."""
    fits = sum(map(estimate.of_kind, estimate.fits))
    return seeds * fits + estimate.preparing


def run(
    context: Context,
    parameters: RetrainParameters,
    terms: ComparisonSettings,
    chosen: Sequence[Method],
    *,
    run_step: RunStep,
    seeds: int = 1,
    epsilons: Sequence[float] = (),
    run_on_workers: RunOnWorkers | None = None,
) -> list[Group]:
    """Fits and scores everything that is not finished yet.

    Args:
        seeds: number of seeds, starting at the run's seed.
        epsilons: additional targets, for branches that have a target.
        run_on_workers: if set, runs all branches at all seeds first. This process then runs the
            rest.
    """
    refuse_early(context, parameters, terms, chosen)
    stages = _Stages(context, run_step)
    study = Study.of(context, parameters, terms, chosen, stages.run)
    studies = [(study, chosen)]
    calibrated = _calibrated(chosen)
    studies += [
        (study.retargeted(e), calibrated)
        for e in dict.fromkeys(epsilons)
        if e != terms.target_epsilon and calibrated
    ]
    numbers = range(parameters.seed, parameters.seed + seeds)
    groups = []
    for seed_study, branches in studies:
        if run_on_workers is not None:
            run_on_workers(
                [seed_study.experiment(branch, seed) for branch in branches for seed in numbers]
            )
        for branch in branches:
            groups.append(
                Group(
                    seed_study,
                    *stages.timed([seed_study.experiment(branch, seed) for seed in numbers]),
                )
            )
    return groups


def write_plans(groups: Sequence[Group]) -> dict[str, str]:
    """Writes release plans for the outcomes of the first seed. It is always the first, so that no
    seed is chosen by its score.
    """
    files: dict[str, str] = {}
    for group in groups:
        study, outcome = group.study, group.outcomes[0]
        if outcome.claim.guarantee_kind == "none":
            continue
        plan = plan_release(study, outcome)
        if plan.has_bundle(study.context.store):
            file = publish.save_plan(study.context, plan, study.parameters.release).file
            Origin(parameters=study.parameters, terms=study.terms, branch=outcome.branch.name).save(
                file
            )
            files[group.name] = str(file)
    return files


class _Stages:
    """Runs each step once, and stores in the workspace how long each took."""

    def __init__(self, context: Context, run_step: RunStep) -> None:
        self._store, self._run_step = context.store, run_step
        self._file = context.workspace.private / "comparisons" / "seconds.json"
        self._seconds: dict[str, float] = (
            json.loads(self._file.read_text()) if self._file.is_file() else {}
        )
        self._finished: dict[str, ArtifactRef] = {}
        self._taken: set[str] = set()

    def run(self, step: Step) -> ArtifactRef:
        key = f"{step.name} {step.key(self._store)}"
        if key not in self._finished:
            reused, started = step.find(self._store) is not None, time.monotonic()
            ref = self._finished[key] = self._run_step(step)
            if not reused:
                self._seconds[ref.sha256] = round(time.monotonic() - started, 3)
        self._taken.add(self._finished[key].sha256)
        return self._finished[key]

    def timed(self, experiments: Sequence[Experiment]) -> tuple[tuple[Outcome, ...], float | None]:
        """Returns the outcomes and the seconds of their stages, or None if a stage
        was never timed here.
        """
        self._taken = set()
        outcomes = tuple(experiment.run() for experiment in experiments)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._file, json.dumps(self._seconds).encode())
        all_timed = self._taken <= self._seconds.keys()
        return outcomes, sum(self._seconds[digest] for digest in self._taken) if all_timed else None
