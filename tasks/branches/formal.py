"""The stages of a formal release, from a file of records to one private fit, scored: a branch, retrained by itself.

ingest -> titles -> features -> plan (the noise that meets the target) -> fit -> predictions -> scores
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import ValidationError

from mechanisms.mechanism import Task
from mechanisms.privacy.separately import Separately, priced
from storage.artifacts import ArtifactRef
from storage.errors import InputError
from tasks.branches import one_fit, plan
from tasks.branches.branch import Branch, CompareParameters, choose, standard
from tasks.branches.outcome import Outcome, Study, runner_of
from tasks.fitting import data, fits, prior, scores
from tasks.parameters import FormalParameters, RetrainParameters
from tasks.releasing.claims import method_digest, privacy_unit, release_key
from tasks.releasing.delta import usual_delta
from tasks.releasing.plan import PlannedRelease
from tasks.running.stage import Context, Step

_ELSEWHERE = frozenset({"kind", "target_epsilon"})
"""Settings that say which mechanism it is and what it may cost."""
Ref = TypeVar("Ref", ArtifactRef, ArtifactRef | None)


def asked_for(parameters: RetrainParameters) -> FormalParameters:
    """The formal release of a retrain that has one.

    Raises:
        InputError: the branch is not there or cannot be released so, or no epsilon is given.
    """
    wanted = parameters.formal
    assert wanted is not None
    if wanted.target_epsilon is None:
        raise InputError("formal.target_epsilon: say what a release may cost: --target-epsilon NUMBER")
    known = standard()
    if wanted.branch not in known:
        raise InputError(f"formal.branch: no branch {wanted.branch}; there are {', '.join(known)}")
    (branch,) = choose(wanted.branch, model=parameters.model, data=parameters.data)
    if (
        not branch.releasable
        or not branch.mechanism.aims
        or runner_of(branch.mechanism, one_fit.run) is not one_fit.run
    ):
        raise InputError(f"formal.branch: {wanted.branch} is no formal fit of one stage that aims at an epsilon")
    _settled(branch, wanted)
    return wanted


def branch_of(parameters: RetrainParameters) -> tuple[Branch, CompareParameters]:
    """The branch that is released, and the settings that it would have in a comparison.

    Raises:
        InputError: what `asked_for` refuses.
    """
    wanted = asked_for(parameters)
    assert wanted.target_epsilon is not None
    settings = CompareParameters(target_epsilon=wanted.target_epsilon, delta=wanted.delta, seeds=1)
    return _settled(standard()[wanted.branch], wanted), settings


def _settled(branch: Branch, wanted: FormalParameters) -> Branch:
    """The branch with the release's own settings of its mechanism.

    Raises:
        InputError: names the setting.
    """
    mechanism = branch.mechanism
    if not wanted.mechanism:
        return branch
    there = sorted(set(type(mechanism).model_fields) - _ELSEWHERE)
    for name in wanted.mechanism:
        if name in _ELSEWHERE:
            raise InputError(f"formal.mechanism.{name}: that is said by formal.branch and formal.target_epsilon")
        if name not in there:
            raise InputError(f"formal.mechanism.{name}: {branch.name} has no such setting; it has {', '.join(there)}")
    try:
        settled = type(mechanism).model_validate(mechanism.model_dump() | wanted.mechanism)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(("formal.mechanism", *(str(part) for part in first["loc"])))
        raise InputError(f"{where}: {first['msg']}") from None
    # what the branch has otherwise on tokens gives way too, to what was asked for
    own = branch.on_tokens | wanted.mechanism if branch.on_tokens else branch.on_tokens
    return branch.model_copy(update={"mechanism": settled, "on_tokens": own})


def run(context: Context, parameters: RetrainParameters, do: Callable[[Step], ArtifactRef]) -> tuple[Study, Outcome]:
    """Fit and score what is not fitted and scored already.

    Raises:
        InputError: what `branch_of` refuses.
    """
    branch, settings = branch_of(parameters)
    dataset, prepared = _prepared(parameters, branch, do)
    facts = context.store.figures(dataset)
    study = Study(context, parameters, settings, dataset, prepared, facts, do).aimed_at(_target(settings))
    study.mechanism(branch).check(study.task(branch))
    return study, one_fit.run(study, branch, parameters.fit.seed)


def separately(context: Context, parameters: RetrainParameters, *, records: int) -> Separately | None:
    """What one release a field would cost in the place of one of them all; no record is read for it.

    Args:
        records: about how many train; the price does not hang on it.
    """
    branch, settings = branch_of(parameters)
    fields = parameters.data.ingest.fields
    task = Task(
        records=records,
        classes=len(fields),
        records_per_unit=privacy_unit(parameters.data.ingest)[1],
        target_epsilon=_target(settings),
        delta=settings.delta or usual_delta(context, parameters),
        fields=(1,) * len(fields),
    )
    planned = branch.settled(parameters, settings).plan(task)
    assert planned.event is not None
    return priced(planned.event, fields=len(fields), delta=task.delta, records_per_unit=task.records_per_unit)


def planned(study: Study, outcome: Outcome, *, prefect_run_id: str | None) -> PlannedRelease:
    """The release of that fit: the same records, method and label have one, for ever."""
    parameters, fingerprint = study.parameters, study.facts["fingerprint"]
    return plan.of_fit(
        study,
        outcome,
        outcome.claim,
        method=method_digest(parameters),
        key=release_key(parameters, fingerprint),
        prefect_run_id=prefect_run_id,
    )


def look(
    context: Context, parameters: RetrainParameters, find: Callable[[Step], ArtifactRef | None]
) -> ArtifactRef | None:
    """The stages that `run` would take, told to `find`, which looks and runs nothing; the data set, if it is there."""
    branch, settings = branch_of(parameters)
    model, seed, mechanism = branch.model(parameters), parameters.fit.seed, branch.mechanism
    dataset, prepared = _prepared(parameters, branch, find)
    noise: ArtifactRef | None = None
    if dataset is None or prepared is None:  # the noise depends on the number of records, which is not known yet
        find(Step("plan", f"plan ({branch.name})", {}, {"dataset": None}, _never))
    else:
        facts = context.store.figures(dataset)
        study = Study(context, parameters, settings, dataset, prepared, facts, _never).aimed_at(_target(settings))
        noise = find(one_fit.plan(study, branch))
    if noise is not None:
        mechanism = fits.plan_of(context.store.open(noise)).mechanism
    made: Any = {"dataset": dataset, "prepared": prepared}
    fitted: Any = find(fits.fit(branch.name, branch.mechanism, model, seed=seed, planned=_any(noise), **made))
    predictions: Any = find(fits.predict(branch.name, mechanism, model, seed=seed, fitted=fitted, **made))
    find(scores.score(branch.name, seed=seed, predictions=predictions, **made))
    return dataset


def _prepared(parameters: RetrainParameters, branch: Branch, do: Callable[[Step], Ref]) -> tuple[Ref, Ref]:
    """Records and features."""
    dataset = do(data.ingest(parameters.data))
    for step in prior.stages(branch.model(parameters), parameters.data.whole_codelists):
        do(step)
    return dataset, do(data.prepare(parameters.model, dataset, seed=parameters.fit.seed))


def _target(settings: CompareParameters) -> float:
    assert settings.target_epsilon != "match"
    return settings.target_epsilon


def _any(ref: ArtifactRef | None) -> Any:
    """A reference that a dry run may lack: a step with an input of None is one that does not exist yet."""
    return ref


def _never(work: object) -> Any:
    raise RuntimeError("a dry run ran a step")
