"""The main job: from a file of records to one released draw.

ingest -> features or tokens -> fine-tune -> SWAG -> risk weights
       -> fine-tune (weighted) -> SWAG (weighted) -> sensitivity
       -> reweight -> fine-tune (reweighted) -> SWAG (reweighted) -> sensitivity
       -> evaluate -> release
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prefect import flow
from prefect.runtime import flow_run
from pydantic import BaseModel, ConfigDict, Field

from storage.artifacts import ArtifactRef
from tasks import data, evaluate, posterior, preflight, publish, report, train
from tasks.account import release_plan
from tasks.failures import private_errors
from tasks.parameters import RetrainParameters
from tasks.progress import listening
from tasks.publish import Released, Sources
from tasks.stage import Context, Step, submit


@dataclass(frozen=True)
class Chain:
    """References of what a retrain made; None where a dry run found nothing."""

    dataset: ArtifactRef | None
    prepared: ArtifactRef | None
    posteriors: dict[str, ArtifactRef | None]
    weights: ArtifactRef | None
    measured: dict[str, ArtifactRef | None]
    evaluated: ArtifactRef | None


class RetrainResult(BaseModel):
    """What a retrain returns: references and the figures of the release, nothing of a record."""

    model_config = ConfigDict(frozen=True)

    plan: str = Field(description="path of the release plan")
    release: Released | None


def chain(parameters: RetrainParameters, do: Callable[[Step], ArtifactRef | None]) -> Chain:
    """The stages in order. `do` runs a step, or, in a dry run, looks whether it is finished already."""
    model, fit, config = parameters.model, parameters.fit, parameters.pseudo_posterior
    dataset = do(data.ingest(parameters.data))
    prepared = do(data.prepare(model, dataset, seed=fit.seed))

    def posterior_of(name: str, weights: ArtifactRef | None) -> ArtifactRef | None:
        weighted = name != "base"
        common = {"dataset": dataset, "prepared": prepared, "weights": weights}
        tuned = do(train.fine_tune(name, model, fit, weighted=weighted, **common))
        return do(train.collect_swag(name, model, fit, weighted=weighted, tuned=tuned, **common))

    posteriors = {"base": posterior_of("base", None)}
    weights = do(posterior.risks(model, fit, config, dataset=dataset, prepared=prepared, posterior=posteriors["base"]))
    measured: dict[str, ArtifactRef | None] = {"base": weights}
    for name in parameters.rounds[1:]:
        if name == "reweighted":
            weights = do(posterior.reweight(config, measured=measured["weighted"]))
        posteriors[name] = posterior_of(name, weights)
        measured[name] = do(
            posterior.sensitivity(
                name,
                model,
                fit,
                config,
                dataset=dataset,
                prepared=prepared,
                posterior=posteriors[name],
                weights=weights,
            )
        )
    evaluated = do(evaluate.evaluate(model, fit, dataset=dataset, prepared=prepared, posteriors=posteriors))
    return Chain(dataset, prepared, posteriors, weights, measured, evaluated)


@flow(
    name="retrain",
    description="Train an autocoder on confidential narratives and release one private draw of it (SWAG-PPM).",
    persist_result=False,
    result_serializer="json",
    log_prints=False,
)
def retrain(parameters: RetrainParameters, home: str = "workspace", device: str = "auto") -> RetrainResult:
    """Run the whole method; stages that are finished for the same inputs, parameters and code are reused.

    Args:
        parameters: data, model, fit, pseudo posterior and release.
        home: workspace folder, which holds the private files, the bundles and the ledger.
        device: `auto`, `cpu` or `cuda`.
    """
    context = Context(home=str(Path(home).expanduser().resolve()), device=device)
    with private_errors("retrain"), listening(report.PrefectListener()):
        context.workspace.create()
        preflight.check(context, parameters)
        made = chain(parameters, lambda step: submit(context, step))
        return _finish(context, parameters, made)


def _finish(context: Context, parameters: RetrainParameters, made: Chain) -> RetrainResult:
    """Plan, record what was measured, release, and lay the figures out in the UI."""
    last = parameters.rounds[-1]
    drawn_from, measured = made.posteriors[last], made.measured[last]
    if not (made.dataset and made.prepared and measured and made.evaluated and drawn_from):
        raise RuntimeError("a stage left no output")  # submit returns a reference or raises
    plan = release_plan(
        parameters,
        context.store,
        dataset=made.dataset,
        posterior=drawn_from,
        measured=measured,
        prefect_run_id=str(flow_run.get_id() or "") or None,
    )
    plan_file = report.write_plan(context, plan)
    publish.record_internal(context, parameters, plan, evaluated=made.evaluated, measured=made.measured)
    released = None
    if parameters.release.enabled:
        sources = Sources(made.dataset, made.prepared, drawn_from, measured)
        report.publish_budget(context, parameters)  # before too: a refusal is when it is wanted
        released = publish.release(context, parameters, plan, sources)
    report.publish_artifacts(context, parameters, plan, released, evaluated=made.evaluated, measured=measured)
    return RetrainResult(plan=str(plan_file), release=released)


def dry_run(parameters: RetrainParameters, context: Context) -> list[tuple[Step, bool]]:
    """The steps a retrain would take, each with whether its output is there already. Runs nothing."""
    steps: list[tuple[Step, bool]] = []

    def look(step: Step) -> ArtifactRef | None:
        found = step.find(context.store)
        steps.append((step, found is not None))
        return found

    with private_errors("dry run"):
        preflight.check(context, parameters)
        chain(parameters, look)
    return steps
