"""Runs the stages of a formal release, from a file of records to one private fit with its scores.

ingest -> titles -> features -> plan (the noise that meets the target) -> fit -> predictions -> scores
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from storage.artifacts import ArtifactRef
from storage.errors import InputError
from tasks.branches import plan
from tasks.branches.branch import Branch, Terms, choose, standard_branches
from tasks.branches.experiment import Outcome, Study, has_one_fit
from tasks.branches.swag_chain import prepare
from tasks.fitting import fits, scores
from tasks.parameters import FormalParameters, RetrainParameters
from tasks.releasing.claims import release_method
from tasks.releasing.plan import PlannedRelease
from tasks.running.stage import Context, Step

_GIVEN_BY_BRANCH_AND_TARGET = frozenset({"kind", "target_epsilon"})
"""Settings that `formal.branch` and `formal.target_epsilon` fix."""


def formal_branch(parameters: RetrainParameters) -> tuple[Branch, Terms]:
    """Returns the branch that a formal retrain releases, with its settings, and its terms.

    Raises:
        InputError: the branch does not exist or cannot be released so, a setting is wrong, or no epsilon is given.
    """
    release = parameters.formal
    assert release is not None
    if release.target_epsilon is None:
        raise InputError("formal.target_epsilon is missing. Give what the release may cost: --epsilon NUMBER")
    branches = standard_branches()
    if release.branch not in branches:
        raise InputError(f"formal.branch: branch {release.branch} does not exist. Choose one of {', '.join(branches)}")
    (branch,) = choose(release.branch, model=parameters.model, data=parameters.data)
    if not branch.releasable or not branch.mechanism.has_target or not has_one_fit(branch.mechanism):
        raise InputError(f"formal.branch: {release.branch} cannot be released formally. Choose another branch")
    return _with_release_settings(branch, release), Terms(target_epsilon=release.target_epsilon, delta=release.delta)


def _with_release_settings(branch: Branch, release: FormalParameters) -> Branch:
    """Returns the branch with the release's settings of its mechanism."""
    mechanism = branch.mechanism
    if not release.mechanism:
        return branch
    names = sorted(set(type(mechanism).model_fields) - _GIVEN_BY_BRANCH_AND_TARGET)
    for name in release.mechanism:
        if name in _GIVEN_BY_BRANCH_AND_TARGET:
            raise InputError(f"formal.mechanism.{name} cannot be set here. Use formal.branch and formal.target_epsilon")
        if name not in names:
            raise InputError(
                f"formal.mechanism.{name}: {branch.name} has no setting of this name. It has {', '.join(names)}"
            )
    try:
        settled = type(mechanism).model_validate(mechanism.model_dump() | release.mechanism)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(("formal.mechanism", *(str(part) for part in first["loc"])))
        raise InputError(f"{where}: {first['msg']}") from None
    # the release's settings replace the branch's settings on tokens too
    on_tokens = branch.on_tokens | release.mechanism if branch.on_tokens else branch.on_tokens
    return branch.model_copy(update={"mechanism": settled, "on_tokens": on_tokens})


def run(context: Context, parameters: RetrainParameters, do: Callable[[Step], ArtifactRef]) -> tuple[Study, Outcome]:
    """Fits and scores what is not fitted and scored already."""
    branch, terms = formal_branch(parameters)
    study = Study.of(context, parameters, terms, [branch], do)
    return study, study.at(branch).run()


def plan_release(study: Study, outcome: Outcome, *, prefect_run_id: str | None) -> PlannedRelease:
    """Plans the release of that fit. The same records, method and label always have the same one."""
    method = release_method(study.parameters)
    return plan.plan_fit(study, outcome, outcome.claim, method=method, prefect_run_id=prefect_run_id)


def find_stages(
    context: Context, parameters: RetrainParameters, find: Callable[[Step], ArtifactRef | None]
) -> ArtifactRef | None:
    """Passes the stages that `run` would take to `find`, which runs nothing; returns the data set, if it exists."""
    branch, terms = formal_branch(parameters)
    model, seed, mechanism = branch.model(parameters), parameters.fit.seed, branch.mechanism
    dataset, prepared = prepare(parameters, [model], find)
    noise: ArtifactRef | None = None
    if dataset is None or prepared is None:  # the noise depends on the number of records, which ingest will count
        find(Step("plan", f"plan ({branch.name})", {}, {"dataset": None}, _never))
    else:
        facts = context.store.figures(dataset)
        study = Study(context, parameters, terms, dataset, prepared, facts, _never, terms.given_epsilon)
        noise = find(study.at(branch).plan())
    if noise is not None:
        mechanism = fits.plan_of(context.store.open(noise)).mechanism
    made: Any = {"dataset": dataset, "prepared": prepared}  # an input of None marks a step that does not exist yet
    planned: Any = {"planned": noise}
    fitted: Any = find(fits.fit(branch.name, branch.mechanism, model, seed=seed, **planned, **made))
    predictions: Any = find(fits.predict(branch.name, mechanism, model, seed=seed, fitted=fitted, **made))
    find(scores.score(branch.name, seed=seed, predictions=predictions, **made))
    return dataset


def _never(work: object) -> Any:
    raise RuntimeError("a dry run must not run a step")
