"""All rivals on the same records: one ingest, then branches times seeds, each stage a task run of its own.

SWAG-PPM comes from the retrain flow's own stages, once a seed, so that what a retrain has finished is reused here and
the other way round. With target `match` the branches that aim at an epsilon get the one that SWAG-PPM came out with,
rounded up.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

from prefect import flow
from prefect.runtime import flow_run
from pydantic import BaseModel

from flows.server.form import OnDevice, RetrainForm, Workspace, refuse_borrowed_names, section, titled
from flows.server.settings import home_of
from tasks.branches.branch import CompareParameters, choose
from tasks.comparing import protocols, shards, summary
from tasks.comparing import report as comparison_report
from tasks.comparing import run as comparison
from tasks.comparing.decision import Decided
from tasks.comparing.judged import judge
from tasks.comparing.summary import BranchSummary
from tasks.parameters import FanOut, RetrainParameters
from tasks.running import progress
from tasks.running.failures import private_errors
from tasks.running.stage import Context, submit, submit_all
from tasks.running.timings import TimingsListener
from tasks.running.worker_metrics import MetricsListener

CompareSection: Any = section(CompareParameters)


class Taken(BaseModel, frozen=True):
    """A comparison on the records that one protocol takes."""

    recommendation: str
    target_epsilon: float | None
    branches: tuple[BranchSummary, ...]
    further: dict[str, tuple[BranchSummary, ...]]
    """What aims at an epsilon, at each further target."""
    refused: dict[str, str] = {}
    """Why branches are missing: their draws were refused; by title."""


class CompareResult(BaseModel, frozen=True):
    """What a comparison returns: aggregates and where the report lies."""

    report: str
    decision: str
    """The officer's page, beside the report."""
    recommendation: str
    """In one sentence; of the first protocol."""
    target_epsilon: float | None
    delta: float
    seeds: tuple[int, ...]
    branches: tuple[BranchSummary, ...]
    plans: dict[str, str]
    """Release plan of each branch that has a claim, at the first seed: what `autocoder release` takes. None
    of what aims at an epsilon that was taken from the records."""
    protocols: dict[str, Taken]
    """All of it under each protocol, by name; `own` where the records are taken as the profile says."""


@flow(
    name="compare",
    description="SWAG-PPM and its rivals on the same records, on equal terms. Internal: nothing is released.",
    persist_result=False,
    result_serializer="json",
    log_prints=False,
)
def compare(
    parameters: Annotated[RetrainForm, titled("Records and SWAG-PPM")],
    settings: Annotated[CompareSection, titled("Rivals")],  # type: ignore[valid-type]
    branches: Annotated[str, titled("Branches")] = "all",
    home: Workspace = None,
    device: OnDevice = "auto",
    fan_out: Annotated[FanOut | None, titled("Shards")] = None,
    spread: Annotated[bool, titled("Branches to workers")] = False,
) -> CompareResult:
    """Run every branch at every seed, write the report, and record each claim as internal.

    Args:
        parameters: data, model and the SWAG-PPM fit; its seed is the first, the others follow it.
        settings: target, delta, seeds, the rivals' common settings, and branches of one's own.
        branches: names by comma, or `all`.
        home: workspace folder; empty: the worker's own (AUTOCODER_HOME).
        device: `auto`, `cpu` or `cuda`.
        fan_out: whether SWAG-PPM's passes over draws are spread over workers; it does not change what comes out.
        spread: whether each branch at each seed is a run of its own, on whichever worker is free; patience and
            attempts are those of the shards. It does not change what comes out.

    Raises:
        InputError: an unknown branch, a batch larger than the data, or settings that contradict each other.
    """
    context = Context(home=str(home_of(Path(home) if home else None)), device=device, fan_out=fan_out or FanOut())
    metrics = MetricsListener(context.workspace.private, "compare")
    with private_errors("compare"):
        context.workspace.create()
        wanted, rivals = parameters.parameters(), CompareParameters.model_validate(settings.model_dump())
        refuse_borrowed_names(wanted)
        chosen = choose(branches, model=wanted.model, data=wanted.data, known=rivals.known)
        if spread:
            shards.preflight(context, rivals)
        every = _under_each(wanted, rivals)
        estimates = [comparison.refuse_early(context, taken, rivals, chosen) for taken in every]
    with private_errors("compare"), progress.listening(metrics):
        run_id = str(flow_run.get_id() or "") or None
        decided: list[Decided] = []
        plans: dict[str, str] = {}
        for taken, estimate in zip(every, estimates, strict=True):
            with progress.listening(TimingsListener(context.workspace.private, estimate.stages)):
                compared = comparison.run(
                    context,
                    taken,
                    rivals,
                    chosen,
                    do=partial(submit, context),
                    side_by_side=partial(submit_all, context, slots=rivals.slots) if rivals.slots > 1 else None,
                    elsewhere=partial(shards.finish, context.fan_out, progress.reporter("branches"))
                    if spread
                    else None,
                )
            summary.record(compared.study, compared.outcomes, prefect_run_id=run_id)
            for epsilon, outcomes in compared.further.items():
                summary.record(comparison.aimed(compared.study, epsilon), outcomes, prefect_run_id=run_id)
            own = comparison.plans(compared, prefect_run_id=run_id)
            decided.append(Decided.of(compared, judge(compared, own)))
            plans |= own if not plans else {f"{name}, {_named(taken)}": file for name, file in own.items()}
        report = comparison_report.write(decided)
        study, first = decided[0].compared.study, decided[0].compared
        return CompareResult(
            report=str(report),
            decision=str(report.with_name("decision.html")),
            recommendation=decided[0].recommendation.sentence,
            target_epsilon=study.target,
            delta=study.usual_delta,
            seeds=first.seeds,
            branches=tuple(summary.summarise(first.outcomes)),
            plans=plans,
            protocols={
                _named(one.compared.study.parameters): Taken(
                    recommendation=one.recommendation.sentence,
                    target_epsilon=one.compared.study.target,
                    branches=tuple(summary.summarise(one.compared.outcomes)),
                    further={
                        f"{epsilon:g}": tuple(summary.summarise(outcomes))
                        for epsilon, outcomes in one.compared.further.items()
                    },
                    refused=dict(one.compared.refused),
                )
                for one in decided
            },
        )


def _under_each(parameters: RetrainParameters, settings: CompareParameters) -> list[RetrainParameters]:
    """The run's parameters under every protocol that is asked for; as they are where none is."""
    return [protocols.under(parameters, name) for name in dict.fromkeys(settings.protocols)] or [parameters]


def _named(parameters: RetrainParameters) -> str:
    return protocols.of(parameters.data.ingest) or "own"
