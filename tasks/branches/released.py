"""Identifies the method that a training run releases, and finds its stages without running them."""

from collections.abc import Callable
from typing import Any

from storage.artifacts import ArtifactRef
from storage.errors import Contradiction, Missing
from tasks.branches.branch import ComparisonSettings, model_for, obstacle
from tasks.branches.experiment import Experiment, Study, prepare
from tasks.fitting.ingest import ingest_figures, ingest_records
from tasks.method import Method
from tasks.parameters import RetrainParameters
from tasks.running.stage import Context, Step


def released_branch(parameters: RetrainParameters) -> tuple[Method, ComparisonSettings]:
    """Returns the method that a training run releases, and its settings."""
    method = parameters.method
    if fault := obstacle(method, parameters):
        raise Contradiction(f"method: {method.name} {fault.text}", kind=fault.kind)
    if method.guarantee_kind == "none":
        raise Contradiction(
            f"method: {method.name} protects nothing, and cannot be released. Choose another",
            kind="unprotected-method",
        )
    terms = terms_of(method)
    if method.mechanism.needs_target_epsilon and terms.target_epsilon is None:
        raise Missing(
            "method.target_epsilon is missing. Specify the release's epsilon: --epsilon NUMBER",
            kind="no-target-epsilon",
        )
    # target and delta are in the settings, as in a comparison, so that both share their stages
    mechanism = method.mechanism.without_target()[0]
    return method.model_copy(update={"mechanism": mechanism}), terms


def terms_of(method: Method) -> ComparisonSettings:
    """Returns the settings of a release: the target and delta that its noise is calibrated to."""
    _, target, delta = method.mechanism.without_target()
    return ComparisonSettings(target_epsilon=target, delta=delta)


def find_stages(
    context: Context, parameters: RetrainParameters, find: Callable[[Step], ArtifactRef | None]
) -> tuple[Experiment, ArtifactRef | None]:
    """Passes the stages of a training run to `find`, which runs nothing. Returns the experiment,
    with None for records that were not read yet, and its fit if it exists.
    """
    method, terms = released_branch(parameters)
    dataset = find(ingest_records(parameters.data))
    prepared = prepare(parameters, dataset, [model_for(method, parameters)], find)
    facts = None if dataset is None else ingest_figures(context.store, dataset)
    inputs: Any = {"dataset": dataset, "prepared": prepared, "facts": facts}

    def never(step: Step) -> Any:
        raise RuntimeError("a dry run must not run a step")

    study = Study(context, parameters, terms, **inputs, run_step=never)
    experiment = study.experiment(method)
    return experiment, experiment.stages(find, score_all=True)[-1].fitted
