"""Runs all branches on the same records: one ingest, one preparation, then branches times seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mechanisms.swag_ppm import SwagPpm
from storage.artifacts import ArtifactRef
from storage.errors import InputError
from tasks.branches import plan as branch_plan
from tasks.branches.branch import Branch, CompareParameters, Terms, standard_branches
from tasks.branches.experiment import Do, Experiment, Outcome, Study, has_one_fit
from tasks.branches.plan import Origin
from tasks.comparing.summary import round_up_target
from tasks.parameters import RetrainParameters
from tasks.releasing import preflight, publish
from tasks.releasing.preflight import Estimate
from tasks.running.stage import Context, Step

RunInParallel = Callable[[Sequence[Step]], object]
"""Runs independent steps, several at once."""
RunOnWorkers = Callable[[Sequence[Experiment]], object]
"""Runs experiments on workers; their stages are finished when it returns."""


@dataclass(frozen=True)
class Comparison:
    """Holds the outcomes of every branch at every seed, with the study that they share."""

    study: Study
    seeds: tuple[int, ...]
    outcomes: list[Outcome]
    further: Mapping[float, list[Outcome]] = field(default_factory=dict)
    """Outcomes of branches with a target epsilon, at each further target."""


def refuse_early(
    context: Context, parameters: RetrainParameters, terms: Terms, chosen: Sequence[Branch], *, slots: int = 1
) -> Estimate:
    """Refuses what needs no work to be refused, before Prefect's server starts; returns the estimate."""
    if slots > 1 and not parameters.model.linear_head:
        raise InputError("--slots above 1 needs model.trainable=head and pooling=mean. Set them, or --slots 1")
    reweighted = [b for b in chosen if isinstance(b.mechanism, SwagPpm) and b.mechanism.round == "reweighted"]
    if reweighted and not parameters.pseudo_posterior.reweight:
        raise InputError("--branches: swag-ppm-reweighted needs pseudo_posterior.reweight=true. Set it")
    single = [branch for branch in chosen if has_one_fit(branch.mechanism)]
    passes = {branch.name: branch.epochs_for(parameters, terms) for branch in single}
    return preflight.check(context, parameters).with_fits(passes)


def estimate_seconds(estimate: Estimate, settings: CompareParameters, chosen: Sequence[Branch]) -> float:
    """Estimates the seconds of a comparison with no finished stage."""
    single = [branch.name for branch in chosen if has_one_fit(branch.mechanism)]
    chains = int(len(single) < len(chosen) or any(branch.takes_target_from_records(settings) for branch in chosen))
    encoding = 0.0 if chains else estimate.of_kind("features")
    return encoding + settings.seeds * (chains * estimate.seconds + sum(map(estimate.of_kind, single)))


def run(
    context: Context,
    parameters: RetrainParameters,
    terms: Terms,
    chosen: Sequence[Branch],
    *,
    do: Do,
    seeds: int = 1,
    epsilons: Sequence[float] = (),
    run_in_parallel: RunInParallel | None = None,
    run_on_workers: RunOnWorkers | None = None,
) -> Comparison:
    """Fits and scores what is not fitted and scored already.

    Args:
        seeds: how many, from the run's on.
        run_in_parallel: runs the fits of branches that are one fit first, if given.
        run_on_workers: runs all branches at all seeds first, if given; this run does what it leaves out.

    Raises:
        InputError: settings that contradict each other or the data.
    """
    refuse_early(context, parameters, terms, chosen)
    study, first = Study.of(context, parameters, terms, chosen, _once(context, do)), parameters.fit.seed
    numbers = tuple(range(first, first + seeds))
    study = replace(study, target=_target(study, chosen, numbers, run_on_workers))
    experiments = [study.at(branch, seed) for branch in chosen for seed in numbers]
    if run_on_workers is not None:
        run_on_workers(experiments)
    if run_in_parallel is not None:
        single = [one for one in experiments if has_one_fit(one.branch.mechanism)]
        noise_plans = {one.branch.name: study.do(one.plan()) for one in single}
        run_in_parallel([one.fit(planned=noise_plans[one.branch.name]) for one in single])
    outcomes = [one.run() for one in experiments]
    return Comparison(study, numbers, outcomes, _further(study, chosen, numbers, epsilons, run_on_workers))


def _further(
    study: Study,
    chosen: Sequence[Branch],
    seeds: Sequence[int],
    epsilons: Sequence[float],
    run_on_workers: RunOnWorkers | None,
) -> dict[float, list[Outcome]]:
    """Runs branches that aim at an epsilon and set no delta, at each further target."""
    aiming = [
        branch
        for branch in chosen
        if study.at(branch).mechanism.has_target
        and branch.delta is None
        and getattr(branch.mechanism, "target_epsilon", None) is None
    ]
    further: dict[float, list[Outcome]] = {}
    for epsilon in dict.fromkeys(epsilons):
        if epsilon != study.target and aiming:
            retargeted = study.retargeted(epsilon)
            experiments = [retargeted.at(branch, seed) for branch in aiming for seed in seeds]
            if run_on_workers is not None:
                run_on_workers(experiments)
            further[epsilon] = [one.run() for one in experiments]
    return further


def write_plans(comparison: Comparison, *, prefect_run_id: str | None) -> dict[str, str]:
    """Writes release plans of the first seed's outcomes: always that one, so that no seed is chosen by its score.

    Branches whose target was taken from the records (`match`) get none, nor do models without a bundle.
    """
    study = comparison.study
    files: dict[str, str] = {}
    for outcome in comparison.outcomes:
        branch, claimed = outcome.branch, outcome.claim.guarantee_kind != "none"
        possible = claimed and branch.releasable and not branch.takes_target_from_records(study.terms)
        if not possible or outcome.seed != comparison.seeds[0]:
            continue
        plan = branch_plan.plan_release(study, outcome, prefect_run_id=prefect_run_id)
        if plan.has_bundle(study.context.store):
            file = publish.save_plan(study.context, plan, study.parameters.release)[1]
            Origin(parameters=study.parameters, terms=study.terms, branch=branch.name).save(file)
            files[branch.name] = str(file)
    for epsilon, outcomes in comparison.further.items():
        at = Comparison(study.retargeted(epsilon), comparison.seeds, outcomes)
        further_plans = write_plans(at, prefect_run_id=prefect_run_id)
        files |= {plan_name(name, epsilon): file for name, file in further_plans.items()}
    return files


def plan_name(branch: str, epsilon: float | None) -> str:
    """Returns the name of a comparison's plan: the branch, with the epsilon of a further target."""
    return branch if epsilon is None else f"{branch} at epsilon {epsilon:g}"


def _once(context: Context, do: Do) -> Do:
    """Returns `do` with a cache of steps: rounds of a chain share the steps before them."""
    finished: dict[str, ArtifactRef] = {}

    def run_once(step: Step) -> ArtifactRef:
        key = f"{step.name} {step.key(context.store)}"
        if key not in finished:
            finished[key] = do(step)
        return finished[key]

    return run_once


def _target(
    study: Study, chosen: Sequence[Branch], seeds: Sequence[int], run_on_workers: RunOnWorkers | None
) -> float | None:
    """Returns the target epsilon: as given, or the largest that SWAG-PPM claims, rounded up."""
    if not any(study.at(branch).mechanism.has_target for branch in chosen):
        return None
    if study.target is not None:
        return study.target
    weighted = [study.at(standard_branches()["swag-ppm"], seed) for seed in seeds]
    if run_on_workers is not None:
        run_on_workers(weighted)
    claims = [one.claim(one.fit_rounds()[1]).epsilon for one in weighted]
    return round_up_target([epsilon for epsilon in claims if epsilon is not None])
