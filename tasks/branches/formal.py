"""Runs the stages of a formal release, from a file of records to one private fit with its scores.

ingest -> titles -> features -> plan (the noise that meets the target) -> fit -> predictions ->
scores
"""

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from mechanisms.swag_ppm import SwagPpm
from storage.artifacts import ArtifactRef
from storage.errors import InputError
from tasks.branches.branch import Branch, Terms, choose, first_fault, standard_branches
from tasks.branches.experiment import Outcome, Study
from tasks.branches.swag_chain import prepare
from tasks.fitting import fits, scores
from tasks.parameters import FormalParameters, RetrainParameters
from tasks.running.stage import Context, Step


def formal_branch(parameters: RetrainParameters) -> tuple[Branch, Terms]:
    """Returns the branch that a formal training run releases, with its settings, and its terms."""
    release = parameters.formal
    assert release is not None
    if release.target_epsilon is None:
        raise InputError(
            "formal.target_epsilon is missing. Give what the release may cost: --epsilon NUMBER"
        )
    (branch,) = choose(release.branch, parameters, standard_branches())
    if not branch.mechanism.has_target or isinstance(branch.mechanism, SwagPpm):
        raise InputError(
            f"formal.branch: {release.branch} cannot be released formally. Choose another branch"
        )
    return _with_release_settings(branch, release), Terms(
        target_epsilon=release.target_epsilon, delta=release.delta
    )


def _with_release_settings(branch: Branch, release: FormalParameters) -> Branch:
    mechanism, own = branch.mechanism, release.mechanism
    if own.keys() & {"kind", "target_epsilon"}:
        raise InputError(
            "formal.mechanism cannot set kind or target_epsilon. Use formal.branch and --epsilon"
        )
    try:
        settled = type(mechanism).model_validate(mechanism.model_dump() | own)
    except ValidationError as error:
        raise InputError(first_fault(error, "formal.mechanism")) from None
    # the release's settings replace the branch's settings on tokens too
    on_tokens = branch.on_tokens | own if branch.on_tokens else branch.on_tokens
    return branch.model_copy(update={"mechanism": settled, "on_tokens": on_tokens})


def run(
    context: Context, parameters: RetrainParameters, do: Callable[[Step], ArtifactRef]
) -> tuple[Study, Outcome]:
    """Fits and scores what is not fitted and scored already."""
    branch, terms = formal_branch(parameters)
    study = Study.of(context, parameters, terms, [branch], do)
    return study, study.experiment(branch).run()


def find_stages(
    context: Context, parameters: RetrainParameters, find: Callable[[Step], ArtifactRef | None]
) -> ArtifactRef | None:
    """Passes the stages that `run` would take to `find`, which runs nothing; returns the data set,
    if it exists.
    """
    branch, terms = formal_branch(parameters)
    model, seed, mechanism = branch.model(parameters), parameters.fit.seed, branch.mechanism
    dataset, prepared = prepare(parameters, [model], find)
    noise: ArtifactRef | None = None
    if (
        dataset is None or prepared is None
    ):  # the noise depends on the number of records, which ingest will count
        find(Step("plan", f"plan ({branch.name})", {}, {"dataset": None}, _never))
    else:
        facts = context.store.figures(dataset)
        study = Study(context, parameters, terms, dataset, prepared, facts, _never)
        noise = find(study.experiment(branch).plan())
    if noise is not None:
        mechanism = fits.plan_of(context.store.open(noise)).mechanism
    stored: Any = {
        "dataset": dataset,
        "prepared": prepared,
    }  # an input of None marks a step that does not exist yet
    planned: Any = {"planned": noise}
    fitted: Any = find(
        fits.fit(branch.name, branch.mechanism, model, seed=seed, **planned, **stored)
    )
    predictions: Any = find(
        fits.predict(branch.name, mechanism, model, seed=seed, fitted=fitted, **stored)
    )
    find(scores.score(branch.name, seed=seed, predictions=predictions, **stored))
    return dataset


def _never(work: object) -> Any:
    raise RuntimeError("a dry run must not run a step")
