"""All rivals on the same records: one ingest, then branches times seeds, each a task run of its own.

SWAG-PPM comes from the retrain flow's own stages, once a seed, so that what a retrain has finished is reused here and
the other way round. With target `match` the formal rivals get the epsilon that SWAG-PPM came out with, rounded up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, cast

from prefect import Task, flow
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture
from prefect.runtime import flow_run
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.utilities.annotations import quote
from pydantic import BaseModel, ConfigDict

from flows.retrain import Chain, chain
from storage.artifacts import ArtifactRef
from storage.errors import InputError
from tasks import branch_stages, comparison, comparison_report, data, preflight, progress
from tasks.account import swag_ppm_event
from tasks.branches import Branch, CompareParameters, choose
from tasks.comparison import BranchSummary, Outcome
from tasks.failures import private_errors
from tasks.parameters import RetrainParameters
from tasks.progress import Listener
from tasks.stage import Context, Step, run_step, submit


class CompareResult(BaseModel):
    """What a comparison returns: aggregates and where the report lies."""

    model_config = ConfigDict(frozen=True)

    report: str
    target_epsilon: float | None
    delta: float
    seeds: tuple[int, ...]
    branches: tuple[BranchSummary, ...]


@flow(
    name="compare",
    description="SWAG-PPM and its rivals on the same records, on equal terms. Internal: nothing is released.",
    persist_result=False,
    result_serializer="json",
    log_prints=False,
    validate_parameters=False,
)
def compare(
    parameters: RetrainParameters,
    settings: CompareParameters,
    branches: str = "all",
    home: str = "workspace",
    device: str = "auto",
) -> CompareResult:
    """Run every branch at every seed, write the report, and record each claim as internal.

    Args:
        parameters: data, model and the SWAG-PPM fit; `fit.seed` is the first seed, the others follow it.
        settings: target, delta, seeds and the rivals' common settings.
        branches: names by comma, or `all`.

    Raises:
        InputError: an unknown branch, a batch larger than the data, or settings that contradict each other.
    """
    context = Context(home=str(Path(home).expanduser().resolve()), device=device)
    with private_errors("compare"):
        chosen = choose(branches, model=parameters.model)
        _check(parameters, settings, chosen)
        _, unit = comparison.unit_of(parameters)
        context.workspace.create()
        preflight.check(context, parameters)
        dataset = _need(submit(context, data.ingest(parameters.data)))
        facts = context.store.figures(dataset)
        if settings.batch_size > facts["train"] and any(b.family == "dp-sgd" and not b.tuned for b in chosen):
            raise InputError(
                f"--batch-size: {settings.batch_size} is larger than the data ({facts['train']} training records)"
            )
        prepared = _need(submit(context, data.prepare(parameters.model, dataset, seed=parameters.fit.seed)))
        seeds = tuple(range(parameters.fit.seed, parameters.fit.seed + settings.seeds))
        chains = _chains(context, parameters, settings, chosen, seeds)
        target = _target(context, settings, chosen, chains, unit=unit)
        outcomes = _run(context, parameters, settings, chosen, chains, seeds, dataset, prepared, facts, target)
        claimed = [(o, comparison.claim(o, parameters, settings, facts)) for o in outcomes]
        comparison.record(
            context,
            parameters,
            settings,
            claimed,
            facts=facts,
            prefect_run_id=str(flow_run.get_id() or "") or None,
        )
        summaries = comparison.summarise(claimed)
        report = comparison_report.write(
            context,
            parameters,
            settings,
            outcomes=outcomes,
            summaries=summaries,
            facts=facts,
            target=target,
            prepared=prepared,
            measured=chains[seeds[0]].measured if chains else {},
            weights=chains[seeds[0]].measured.get("weighted") if chains else None,
        )
        return CompareResult(
            report=str(report),
            target_epsilon=target,
            delta=settings.delta,
            seeds=seeds,
            branches=tuple(summaries),
        )


def _check(parameters: RetrainParameters, settings: CompareParameters, chosen: Sequence[Branch]) -> None:
    if settings.slots > 1 and not (parameters.model.trainable == "head" and parameters.model.pooling == "mean"):
        raise InputError("--slots: more than 1 needs model.trainable=head, pooling=mean; dropout masks share one seed")
    reweighted = any(branch.name == "swag-ppm-reweighted" for branch in chosen)
    if reweighted and not parameters.pseudo_posterior.reweight:
        raise InputError("--branches: swag-ppm-reweighted needs pseudo_posterior.reweight=true")


def _chains(
    context: Context,
    parameters: RetrainParameters,
    settings: CompareParameters,
    chosen: Sequence[Branch],
    seeds: Sequence[int],
) -> dict[int, Chain]:
    """SWAG-PPM at each seed, where a branch or the target asks for it."""
    formal = any(branch.kind == "formal" for branch in chosen)
    if not any(branch.family == "swag" for branch in chosen) and not (formal and settings.target_epsilon == "match"):
        return {}
    made = {}
    for seed in seeds:
        fit = parameters.fit.model_copy(update={"seed": seed})
        made[seed] = chain(parameters.model_copy(update={"fit": fit}), lambda step: submit(context, step))
    return made


def _target(
    context: Context, settings: CompareParameters, chosen: Sequence[Branch], chains: dict[int, Chain], *, unit: int
) -> float | None:
    if not any(branch.kind == "formal" for branch in chosen):
        return None
    if settings.target_epsilon != "match":
        return settings.target_epsilon
    measured = [_need(made.measured["weighted"]) for made in chains.values()]
    return comparison.matched([unit * context.store.figures(ref)["epsilon"] for ref in measured])


def _run(
    context: Context,
    parameters: RetrainParameters,
    settings: CompareParameters,
    chosen: Sequence[Branch],
    chains: dict[int, Chain],
    seeds: Sequence[int],
    dataset: ArtifactRef,
    prepared: ArtifactRef,
    facts: dict[str, Any],
    target: float | None,
) -> list[Outcome]:
    """Every branch at every seed. The noise is solved first, once a branch; then `slots` fits run at once."""
    store = context.store
    _, unit = comparison.unit_of(parameters)
    noise: dict[str, ArtifactRef] = {}
    for branch in chosen:
        if branch.kind == "formal" and target is not None:
            step = branch_stages.calibrate(
                branch, parameters.model, settings, target=target, records=facts["train"], records_per_unit=unit
            )
            noise[branch.name] = _need(submit(context, step))
    fits: dict[tuple[str, int], Step] = {
        (branch.name, seed): branch_stages.fit(
            branch,
            parameters.model,
            parameters.fit,
            settings,
            seed=seed,
            dataset=dataset,
            prepared=prepared,
            calibrated=noise.get(branch.name),
            target=target,
        )
        for branch in chosen
        if branch.family != "swag"
        for seed in seeds
    }
    fitted = _side_by_side(context, fits, slots=settings.slots)
    outcomes = []
    for branch in chosen:
        for seed in seeds:
            if branch.family == "swag":
                name = "reweighted" if branch.name == "swag-ppm-reweighted" else "weighted"
                ref = _need(chains[seed].posteriors[name])
                event: Any = _swag_event(context, parameters, chains[seed], name)
            else:
                ref = fitted[branch.name, seed]
                event = branch_stages.event_of(ref.path)
            measured = _need(
                submit(
                    context,
                    branch_stages.measure(
                        branch,
                        parameters.model,
                        parameters.fit,
                        seed=seed,
                        dataset=dataset,
                        prepared=prepared,
                        fitted=ref,
                    ),
                )
            )
            outcomes.append(
                Outcome(
                    branch=branch,
                    seed=seed,
                    event=event,
                    fitted=ref,
                    measured=measured,
                    figures=store.figures(measured),
                    losses=store.figures(ref).get("losses", []),
                    cost=store.figures(noise[branch.name]) if branch.name in noise else {},
                )
            )
    return outcomes


def _swag_event(context: Context, parameters: RetrainParameters, made: Chain, name: str) -> Any:
    moments = context.store.figures(_need(made.posteriors[name]))
    sensitivity = context.store.figures(_need(made.measured[name]))["sensitivity"]
    event = swag_ppm_event(parameters, snapshots=moments["snapshots"], rank=moments["rank"], sensitivity=sensitivity)
    return event.model_copy(update={"reweighted": name == "reweighted"})


def _side_by_side(
    context: Context, steps: dict[tuple[str, int], Step], *, slots: int
) -> dict[tuple[str, int], ArtifactRef]:
    """Run steps as task runs, at most `slots` at once."""
    if slots == 1:
        return {key: _need(submit(context, step)) for key, step in steps.items()}
    # read by all of them, and Python's parser, which finds it, is not safe in several threads: find it here, once
    _ = [step.code for step in steps.values()]
    done: dict[tuple[str, int], ArtifactRef] = {}
    with ThreadPoolTaskRunner(max_workers=slots) as runner:
        running: dict[tuple[str, int], PrefectFuture[Any]] = {}
        for key, step in steps.items():
            run = Task(
                run_step,
                name=step.name,
                task_run_name=step.label,
                retries=0,
                persist_result=False,
                result_serializer="json",
                cache_policy=NO_CACHE,
                log_prints=False,
            )
            running[key] = runner.submit(run, parameters={"context": context, "step": cast(Step, quote(step))})
        for key, future in running.items():
            done[key] = future.result()
    return done


class OneAtATime:
    """Lets one thread at a time speak to a listener; bars of stages side by side would overwrite each other."""

    def __init__(self, inner: Listener, *, bars: bool) -> None:
        self._inner, self._bars, self._lock = inner, bars, Lock()

    def started(self, label: str) -> None:
        """Pass it on where stages run one after another."""
        if self._bars:
            self._inner.started(label)

    def report(self, label: str, done: int, total: int | None) -> None:
        """Likewise."""
        if self._bars:
            self._inner.report(label, done, total)

    def finished(self, label: str, figures: Any, *, reused: bool, seconds: float) -> None:
        """Pass it on, in turn."""
        with self._lock:
            self._inner.finished(label, figures, reused=reused, seconds=seconds)


@contextmanager
def heard_by(listener: Listener, *, slots: int) -> Iterator[None]:
    """Tell this listener of the stages inside."""
    with progress.listening(OneAtATime(listener, bars=slots == 1)):
        yield


def _need(ref: ArtifactRef | None) -> ArtifactRef:
    if ref is None:
        raise RuntimeError("a stage left no output")
    return ref
