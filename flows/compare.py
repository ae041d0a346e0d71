"""All rivals on the same records: one ingest, then branches times seeds, each a task run of its own.

SWAG-PPM comes from the retrain flow's own stages, once a seed, so that what a retrain has finished is reused here and
the other way round. With target `match` the formal rivals and the bounded likelihoods get the epsilon that SWAG-PPM
came out with, rounded up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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

from flows.server.settings import home_of
from mechanisms.privacy.events import Claim
from storage.artifacts import ArtifactRef
from storage.errors import InputError
from tasks.branches import one_fit
from tasks.branches import plan as branch_plan
from tasks.branches.branch import Branch, CompareParameters, choose, of_round
from tasks.branches.swag_chain import Chain, chain
from tasks.comparing import report as comparison_report
from tasks.comparing import summary
from tasks.comparing.summary import BranchSummary, Outcome
from tasks.fitting import data
from tasks.parameters import FanOut, RetrainParameters
from tasks.releasing import claims, preflight
from tasks.releasing.claims import privacy_unit, swag_event
from tasks.running import progress
from tasks.running.failures import private_errors
from tasks.running.progress import Listener
from tasks.running.stage import Context, Device, Step, run_step, submit
from tasks.running.worker_metrics import MetricsListener


class CompareResult(BaseModel):
    """What a comparison returns: aggregates and where the report lies."""

    model_config = ConfigDict(frozen=True)

    report: str
    target_epsilon: float | None
    delta: float
    seeds: tuple[int, ...]
    branches: tuple[BranchSummary, ...]
    plans: dict[str, str]
    """Release plan of each branch that has a claim, at the first seed: what `autocoder release` takes."""


@flow(
    name="compare",
    description="SWAG-PPM and its rivals on the same records, on equal terms. Internal: nothing is released.",
    persist_result=False,
    result_serializer="json",
    log_prints=False,
)
def compare(
    parameters: RetrainParameters,
    settings: CompareParameters,
    branches: str = "all",
    home: str | None = None,
    device: Device = "auto",
    fan_out: FanOut | None = None,
) -> CompareResult:
    """Run every branch at every seed, write the report, and record each claim as internal.

    Args:
        parameters: data, model and the SWAG-PPM fit; `fit.seed` is the first seed, the others follow it.
        settings: target, delta, seeds and the rivals' common settings.
        branches: names by comma, or `all`.
        home: workspace folder; empty: the worker's own (AUTOCODER_HOME).
        device: `auto`, `cpu` or `cuda`.
        fan_out: whether SWAG-PPM's passes over draws are spread over workers; it does not change what comes out.

    Raises:
        InputError: an unknown branch, a batch larger than the data, or settings that contradict each other.
    """
    context = Context(home=str(home_of(Path(home) if home else None)), device=device, fan_out=fan_out or FanOut())
    measured = MetricsListener(context.workspace.private, "compare")
    with private_errors("compare"), progress.listening(measured):
        context.workspace.create()
        done = fitted(context, parameters, settings, choose(branches, model=parameters.model))
        claimed, chains, facts = done.claimed, done.chains, done.facts
        dataset, prepared, target, seeds = done.dataset, done.prepared, done.target, tuple(done.seeds)
        summary.record(
            context,
            parameters,
            settings,
            claimed,
            facts=facts,
            prefect_run_id=str(flow_run.get_id() or "") or None,
        )
        plans = _plans(context, parameters, settings, claimed, chains, dataset, prepared)
        summaries = summary.summarise(claimed)
        report = comparison_report.write(
            context,
            parameters,
            settings,
            outcomes=[outcome for outcome, _ in claimed],
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
            plans=plans,
        )


@dataclass(frozen=True)
class Fitted:
    """Every branch at every seed, fitted, measured on the test half, and with its claim."""

    dataset: ArtifactRef
    prepared: ArtifactRef
    facts: dict[str, Any]
    seeds: Sequence[int]
    chains: dict[int, Chain]
    target: float | None
    claimed: list[tuple[Outcome, Claim]]


def fitted(
    context: Context, parameters: RetrainParameters, settings: CompareParameters, chosen: Sequence[Branch]
) -> Fitted:
    """Fit what is not fitted already.

    Raises:
        InputError: a batch larger than the data, or settings that contradict each other.
    """
    refuse_early(context, parameters, settings, chosen)
    _, unit = privacy_unit(parameters.data.ingest)
    dataset = _need(submit(context, data.ingest(parameters.data)))
    facts = context.store.figures(dataset)
    if settings.batch_size > facts["train"] and any(b.family == "dp-sgd" and not b.tuned for b in chosen):
        raise InputError(
            f"--batch-size: {settings.batch_size} is larger than the data ({facts['train']} training records)"
        )
    prepared = _need(submit(context, data.prepare(parameters.model, dataset, seed=parameters.fit.seed)))
    seeds = tuple(range(parameters.fit.seed, parameters.fit.seed + settings.seeds))
    chains = _chains(context, parameters, settings, chosen, seeds)
    target = _target(context, parameters, settings, chosen, chains, facts)
    _add_bounded(context, parameters, chosen, chains, seeds, target, unit=unit)
    outcomes = _run(context, parameters, settings, chosen, chains, seeds, dataset, prepared, facts, target)
    claimed = [(o, summary.claim(o, parameters, settings, facts)) for o in outcomes]
    return Fitted(dataset, prepared, facts, seeds, chains, target, claimed)


def refuse_early(
    context: Context, parameters: RetrainParameters, settings: CompareParameters, chosen: Sequence[Branch]
) -> None:
    """What needs no work to be refused; the command asks it before Prefect's server starts.

    Raises:
        InputError, MechanismError, StorageError: name the option, file or column and what to do.
    """
    if settings.slots > 1 and not (parameters.model.trainable == "head" and parameters.model.pooling == "mean"):
        raise InputError("--slots: more than 1 needs model.trainable=head, pooling=mean; dropout masks share one seed")
    reweighted = any(branch.name == "swag-ppm-reweighted" for branch in chosen)
    if reweighted and not parameters.pseudo_posterior.reweight:
        raise InputError("--branches: swag-ppm-reweighted needs pseudo_posterior.reweight=true")
    preflight.check(context, parameters)


def _chains(
    context: Context,
    parameters: RetrainParameters,
    settings: CompareParameters,
    chosen: Sequence[Branch],
    seeds: Sequence[int],
) -> dict[int, Chain]:
    """SWAG-PPM at each seed, where a branch or the target asks for it."""
    wanted = any(branch.family == "swag" and not branch.bounded for branch in chosen)
    if not wanted and not (_aimed(chosen) and settings.target_epsilon == "match"):
        return {}
    weighted = Branch("swag-ppm", "", "swag")
    return {
        seed: chain(
            of_round(parameters, weighted, seed=seed, target=None, records_per_unit=1),
            lambda step: submit(context, step),
        )
        for seed in seeds
    }


def _aimed(chosen: Sequence[Branch]) -> bool:
    """Whether some branch needs a target."""
    return any(branch.kind == "formal" or branch.bounded for branch in chosen)


def _add_bounded(
    context: Context,
    parameters: RetrainParameters,
    chosen: Sequence[Branch],
    chains: dict[int, Chain],
    seeds: Sequence[int],
    target: float | None,
    *,
    unit: int,
) -> None:
    """Fit the bounded likelihoods, whose bound the target sets, and add their rounds to the chains."""
    for branch in chosen:
        for seed in seeds if branch.bounded else ():
            settings = of_round(parameters, branch, seed=seed, target=target, records_per_unit=unit)
            made = chain(settings, lambda step: submit(context, step))
            known = chains.get(seed, made)
            chains[seed] = replace(
                known, posteriors=made.posteriors | known.posteriors, measured=made.measured | known.measured
            )


def _target(
    context: Context,
    parameters: RetrainParameters,
    settings: CompareParameters,
    chosen: Sequence[Branch],
    chains: dict[int, Chain],
    facts: dict[str, Any],
) -> float | None:
    if not _aimed(chosen):
        return None
    if settings.target_epsilon != "match":
        return settings.target_epsilon
    events = [_swag_event(context, parameters, made, "weighted") for made in chains.values()]
    return summary.matched([claims.claim(parameters, event, facts).epsilon or 0.0 for event in events])


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
    _, unit = privacy_unit(parameters.data.ingest)
    noise: dict[str, ArtifactRef] = {}
    for branch in chosen:
        if branch.kind == "formal" and target is not None:
            step = one_fit.calibrate(
                branch, parameters.model, settings, target=target, records=facts["train"], records_per_unit=unit
            )
            noise[branch.name] = _need(submit(context, step))
    fits: dict[tuple[str, int], Step] = {
        (branch.name, seed): one_fit.fit(
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
                ref = _need(chains[seed].posteriors[str(branch.round)])
                settled = of_round(parameters, branch, seed=seed, target=target, records_per_unit=unit)
                event: Any = _swag_event(context, settled, chains[seed], str(branch.round))
            else:
                ref = fitted[branch.name, seed]
                event = one_fit.event_of(ref.path)
            measured = _need(
                submit(
                    context,
                    one_fit.measure(
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


def _plans(
    context: Context,
    parameters: RetrainParameters,
    settings: CompareParameters,
    claimed: Sequence[tuple[Outcome, Claim]],
    chains: dict[int, Chain],
    dataset: ArtifactRef,
    prepared: ArtifactRef,
) -> dict[str, str]:
    """Release plans of the first seed's outcomes: always that one, so that no seed is chosen by its score."""
    files = {}
    for outcome, claim in claimed:
        if claim.guarantee_kind == "none" or outcome.seed != parameters.fit.seed:
            continue
        measured = None
        if outcome.branch.family == "swag":
            measured = chains[outcome.seed].measured[str(outcome.branch.round)]
        plan = branch_plan.planned(
            context,
            parameters,
            settings,
            outcome,
            claim,
            dataset=dataset,
            prepared=prepared,
            measured=measured,
            prefect_run_id=str(flow_run.get_id() or "") or None,
        )
        files[outcome.branch.name] = str(plan.save(context))
    return files


def _swag_event(context: Context, parameters: RetrainParameters, made: Chain, name: str) -> Any:
    moments, figures = (context.store.figures(_need(refs[name])) for refs in (made.posteriors, made.measured))
    return swag_event(parameters, name, snapshots=moments["snapshots"], rank=moments["rank"], figures=figures)


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


class OneAtATime(Listener):
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
