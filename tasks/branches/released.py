"""Names the branch that a training run releases, and finds its stages without running them."""

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from mechanisms.swag_ppm import SwagPpm
from storage.artifacts import ArtifactRef
from storage.errors import InputError
from tasks.branches.branch import Branch, Terms, choose, first_fault, standard_branches
from tasks.branches.experiment import Experiment, Study, prepare
from tasks.parameters import FormalParameters, RetrainParameters
from tasks.running.stage import Context, Step


def released_branch(parameters: RetrainParameters) -> tuple[Branch, Terms]:
    """Returns the branch that a training run releases, with its settings, and its terms."""
    release, known = parameters.formal, standard_branches()
    if release is None:
        last = SwagPpm(round=parameters.rounds[-1])
        return next(branch for branch in known.values() if branch.mechanism == last), Terms()
    if release.target_epsilon is None:
        raise InputError(
            "formal.target_epsilon is missing. Give what the release may cost: --epsilon NUMBER"
        )
    (branch,) = choose(release.branch, parameters, known)
    if not branch.mechanism.has_target:
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


def find_stages(
    context: Context, parameters: RetrainParameters, find: Callable[[Step], ArtifactRef | None]
) -> tuple[Experiment, ArtifactRef | None]:
    """Passes the stages of a training run to `find`, which runs nothing; returns the experiment,
    whose records are None where they were not read yet, and its fit, if it exists.
    """
    branch, terms = released_branch(parameters)
    dataset, prepared = prepare(parameters, [branch.model(parameters)], find)
    known: Any = {"dataset": dataset, "prepared": prepared}
    facts = {} if dataset is None else context.store.figures(dataset)

    def never(step: Step) -> Any:
        raise RuntimeError("a dry run must not run a step")

    study = Study(context, parameters, terms, **known, facts=facts, do=never)
    experiment = study.experiment(branch)
    return experiment, experiment.stages(find, score_all=True)[-1].fitted
