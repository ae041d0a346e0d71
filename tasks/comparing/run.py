"""All branches on the same records: one ingest, one preparation, then branches times seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from mechanisms.errors import DrawsRefused
from storage.artifacts import ArtifactRef
from storage.errors import InputError
from tasks.branches import one_fit, swag_chain
from tasks.branches import plan as branch_plan
from tasks.branches.branch import Branch, CompareParameters, standard
from tasks.branches.origin import Origin
from tasks.branches.outcome import Outcome, Study, runner_of
from tasks.comparing.summary import matched
from tasks.fitting import data, prior
from tasks.parameters import RetrainParameters
from tasks.releasing import preflight, publish
from tasks.releasing.estimate import Estimate
from tasks.running.stage import Context, Step

Do = Callable[[Step], ArtifactRef]
SideBySide = Callable[[Sequence[Step]], object]
"""Runs independent steps, several at once."""
Elsewhere = Callable[[Study, Sequence[tuple[Branch, int]]], object]
"""Has workers run branches at seeds; their stages are finished when it returns."""


@dataclass(frozen=True)
class Compared:
    """Every branch at every seed, with the study that they share."""

    study: Study
    seeds: tuple[int, ...]
    outcomes: list[Outcome]
    further: Mapping[float, list[Outcome]] = field(default_factory=dict)
    """Branches that aim at an epsilon, at others than the study's."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Branches whose draws were refused at one seed or another, by title, and why: they have no outcomes."""


def refuse_early(
    context: Context, parameters: RetrainParameters, settings: CompareParameters, chosen: Sequence[Branch]
) -> Estimate:
    """What needs no work to be refused; the command asks it before Prefect's server starts. Returns what it would take.

    Raises:
        InputError, MechanismError, StorageError: name the option, file or column and what to do.
    """
    if settings.slots > 1 and not parameters.model.linear_head:
        raise InputError("--slots: more than 1 needs model.trainable=head, pooling=mean; dropout masks share one seed")
    if not parameters.pseudo_posterior.reweight and any(swag_chain.reweights(branch) for branch in chosen):
        raise InputError("--branches: swag-ppm-reweighted needs pseudo_posterior.reweight=true")
    single = [branch.name for branch in chosen if runner_of(branch.mechanism, one_fit.run) is one_fit.run]
    refused = [branch.name for branch in chosen if not branch.mechanism.several]
    if parameters.data.ingest.fields and refused:
        raise InputError(f"--branches: {refused[0]} codes one field, and data.ingest.fields names several")
    passes = {branch.name: branch.passes(parameters, settings) for branch in chosen if branch.name in single}
    return preflight.check(context, parameters).with_fits(passes)


def expected(estimate: Estimate, settings: CompareParameters, chosen: Sequence[Branch]) -> float:
    """Seconds of a comparison of which nothing is finished."""
    single = [branch.name for branch in chosen if runner_of(branch.mechanism, one_fit.run) is one_fit.run]
    chains = int(len(single) < len(chosen) or any(branch.takes_target_from_records(settings) for branch in chosen))
    encoding = 0.0 if chains else estimate.of_kind("features")
    return encoding + settings.seeds * (chains * estimate.seconds + sum(map(estimate.of_kind, single)))


def run(
    context: Context,
    parameters: RetrainParameters,
    settings: CompareParameters,
    chosen: Sequence[Branch],
    *,
    do: Do,
    side_by_side: SideBySide | None = None,
    elsewhere: Elsewhere | None = None,
) -> Compared:
    """Fit and score what is not fitted and scored already.

    Args:
        do: runs one step.
        side_by_side: fits of branches that are one fit go through it first, where it is given.
        elsewhere: all branches at all seeds go through it first, where it is given; what it leaves out is run here.

    Raises:
        InputError: settings that contradict each other or the data.
        DrawsRefused: of every branch.
    """
    refuse_early(context, parameters, settings, chosen)
    dataset = do(data.ingest(parameters.data))
    for model in dict.fromkeys(branch.model(parameters) for branch in chosen):
        for step in prior.stages(model, parameters.data.whole_codelists):
            do(step)
    prepared = do(data.prepare(parameters.model, dataset, seed=parameters.fit.seed))
    facts = context.store.figures(dataset)
    study = Study(context, parameters, settings, dataset, prepared, facts, _once(context, do))
    for branch in chosen:
        study.mechanism(branch).check(study.task(branch))
    seeds = tuple(range(parameters.fit.seed, parameters.fit.seed + settings.seeds))
    study = study.aimed_at(_target(study, chosen, seeds, elsewhere))
    pairs = [(branch, seed) for branch in chosen for seed in seeds]
    if elsewhere is not None:
        elsewhere(study, pairs)
    if side_by_side is not None:
        single = [pair for pair in pairs if runner_of(pair[0].mechanism, one_fit.run) is one_fit.run]
        plans = {branch.name: study.do(one_fit.plan(study, branch)) for branch, _ in single}
        with suppress(DrawsRefused):  # fitted again below, where it is told whose they are
            side_by_side([one_fit.fit(study, branch, seed, planned=plans[branch.name]) for branch, seed in single])
    outcomes, refused = _outcomes(study, chosen, seeds)
    there = [branch for branch in chosen if branch.title not in refused]
    further, also = _further(study, there, seeds, elsewhere)
    return Compared(study, seeds, outcomes, further, refused | also)


def _outcomes(
    study: Study, chosen: Sequence[Branch], seeds: Sequence[int], *, said: str = ""
) -> tuple[list[Outcome], dict[str, str]]:
    """Of every branch at every seed; of one whose draws are refused at a seed none, but why, by its title.

    Raises:
        DrawsRefused: nothing is left.
    """
    outcomes: list[Outcome] = []
    refused: dict[str, str] = {}
    for branch in chosen:
        try:
            outcomes += [outcome_of(study, branch, seed) for seed in seeds]
        except DrawsRefused as error:
            refused[branch.title + said] = str(error)
    if refused and not outcomes and not said:
        raise DrawsRefused("; ".join(refused.values()))
    return outcomes, refused


def _further(
    study: Study, chosen: Sequence[Branch], seeds: Sequence[int], elsewhere: Elsewhere | None
) -> tuple[dict[float, list[Outcome]], dict[str, str]]:
    """What aims at an epsilon and has no delta of its own, at each further target that a person gave."""
    aiming = [
        branch
        for branch in chosen
        if study.mechanism(branch).aims
        and branch.delta is None
        and getattr(branch.mechanism, "target_epsilon", None) is None
    ]
    found: dict[float, list[Outcome]] = {}
    refused: dict[str, str] = {}
    for epsilon in dict.fromkeys(study.settings.epsilons):
        if epsilon != study.target and aiming:
            at = aimed(study, epsilon)
            if elsewhere is not None:
                elsewhere(at, [(branch, seed) for branch in aiming for seed in seeds])
            found[epsilon], of_these = _outcomes(at, aiming, seeds, said=f" at epsilon {epsilon:g}")
            refused |= of_these
    return {epsilon: outcomes for epsilon, outcomes in found.items() if outcomes}, refused


def aimed(study: Study, epsilon: float) -> Study:
    """The study at a target that a person gave."""
    settings = study.settings.model_copy(update={"target_epsilon": epsilon})
    return replace(study, settings=settings, target=epsilon)


def outcome_of(study: Study, branch: Branch, seed: int) -> Outcome:
    """One branch at one seed."""
    return runner_of(branch.mechanism, one_fit.run)(study, branch, seed)


def plans(compared: Compared, *, prefect_run_id: str | None) -> dict[str, str]:
    """Release plans of the first seed's outcomes: always that one, so that no seed is chosen by its score.

    None of what aims at an epsilon that was taken from the records (`match`).
    """
    study = compared.study
    files: dict[str, str] = {}
    for outcome in compared.outcomes:
        claimed = outcome.claim.guarantee_kind != "none" and outcome.branch.releasable
        if outcome.branch.takes_target_from_records(study.settings):
            continue
        if claimed and outcome.seed == compared.seeds[0]:
            plan = branch_plan.planned(study, outcome, prefect_run_id=prefect_run_id)
            file = publish.keep_plan(study.context, plan, study.parameters.release)[1]
            Origin(parameters=study.parameters, compare=study.settings, branch=outcome.branch.name).save(file)
            files[outcome.branch.name] = str(file)
    for epsilon, outcomes in compared.further.items():
        at = Compared(aimed(study, epsilon), compared.seeds, outcomes)
        made = plans(at, prefect_run_id=prefect_run_id)
        files |= {plan_name(name, epsilon): file for name, file in made.items()}
    return files


def plan_name(branch: str, epsilon: float | None) -> str:
    """By which a comparison's plan is found: the branch, and the epsilon where it is a further one."""
    return branch if epsilon is None else f"{branch} at epsilon {epsilon:g}"


def _once(context: Context, do: Do) -> Do:
    """`do`, for each step once: rounds of a chain share what comes before them."""
    finished: dict[str, ArtifactRef] = {}

    def run_once(step: Step) -> ArtifactRef:
        key = f"{step.name} {step.key(context.store)}"
        if key not in finished:
            finished[key] = do(step)
        return finished[key]

    return run_once


def _target(study: Study, chosen: Sequence[Branch], seeds: Sequence[int], elsewhere: Elsewhere | None) -> float | None:
    """Epsilon for the branches that aim at one: as given, or what SWAG-PPM claims at the largest, rounded up."""
    if not any(study.mechanism(branch).aims for branch in chosen):
        return None
    if study.settings.target_epsilon != "match":
        return study.settings.target_epsilon
    weighted = standard()["swag-ppm"]
    if elsewhere is not None:
        elsewhere(study, [(weighted, seed) for seed in seeds])
    claims = [swag_chain.fitted(study, weighted, seed).claim.epsilon for seed in seeds]
    return matched([epsilon for epsilon in claims if epsilon is not None])
