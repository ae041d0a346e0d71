"""Compares branches on the same records: one ingest, then branches times seeds, each stage as a task run.

SWAG-PPM comes from the stages of the retrain flow, once per seed: a comparison and a retrain reuse each other's.
With target `match` the branches that aim at an epsilon get that of SWAG-PPM, rounded up.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pydantic import BaseModel

from flows.server.form import RecordsForm, parameters_of_run
from storage.errors import InputError
from tasks.branches.branch import CompareParameters, choose
from tasks.comparing import protocols, spread, summary
from tasks.comparing import report as comparison_report
from tasks.comparing import run as comparison
from tasks.comparing.assessment import assess
from tasks.comparing.decision import Decision
from tasks.comparing.summary import BranchSummary
from tasks.parameters import RetrainParameters
from tasks.running import progress
from tasks.running.failures import private_errors
from tasks.running.run import Run
from tasks.running.stage import Context, submit, submit_all
from tasks.running.timings import TimingsListener
from tasks.running.worker_metrics import MetricsListener


class ProtocolResult(BaseModel, frozen=True):
    """Holds a comparison on the records that one protocol takes."""

    recommendation: str
    target_epsilon: float | None
    branches: tuple[BranchSummary, ...]
    further: dict[str, tuple[BranchSummary, ...]]
    """What aims at an epsilon, at each further target."""


class CompareResult(BaseModel, frozen=True):
    """Holds the aggregates of a comparison and the path of its report."""

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
    """Release plan of each branch that has a claim, at the first seed: what `autocoder release` takes. Empty
    for branches whose epsilon was taken from the records."""
    protocols: dict[str, ProtocolResult]
    """The comparison under each protocol, by name; `own`: records as the profile takes them."""


def compare_form(form: RecordsForm, settings: CompareParameters, branches: str, run: Run) -> CompareResult:
    """Runs a comparison with a form of Prefect's page."""
    context = form.run().context(run)
    return _run(lambda: parameters_of_run(form, run), settings, branches, context=context)


def compare(
    parameters: RetrainParameters, settings: CompareParameters, branches: str, context: Context
) -> CompareResult:
    """Runs every branch at every seed, writes the report, and records each claim as internal.

    Args:
        branches: names by comma, or `all`.
    """
    return _run(lambda: parameters, settings, branches, context=context)


def _run(
    parameters: Callable[[], RetrainParameters],
    rivals: CompareParameters,
    branches: str,
    *,
    context: Context,
) -> CompareResult:
    """Runs a comparison whose parameters are read inside, so that an error of theirs is the run's.

    Raises:
        InputError: a branch is unknown, a batch is larger than the data, or settings contradict each other.
    """
    metrics = MetricsListener(context.workspace.private, "compare")
    with private_errors("compare"):
        context.workspace.create()
        run_parameters = parameters()
        chosen = choose(branches, model=run_parameters.model, data=run_parameters.data, branches=rivals.all_branches)
        if context.engine and rivals.slots > 1:
            raise InputError("--slots: an engine's workers take a branch each. Leave it at 1 with --engine.")
        every = under_each(run_parameters, rivals)
        estimates = [comparison.refuse_early(context, one, rivals, chosen, slots=rivals.slots) for one in every]
    with private_errors("compare"), progress.listening(metrics):
        run = context.run.id
        decided: list[Decision] = []
        plans: dict[str, str] = {}
        for taken, estimate in zip(every, estimates, strict=True):
            with progress.listening(TimingsListener(context.workspace.private, estimate.stages)):
                compared = comparison.run(
                    context,
                    taken,
                    rivals,
                    chosen,
                    seeds=rivals.seeds,
                    do=partial(submit, context),
                    epsilons=rivals.epsilons,
                    run_in_parallel=partial(submit_all, context, slots=rivals.slots) if rivals.slots > 1 else None,
                    run_on_workers=spread.finish if context.engine else None,
                )
            summary.record_claims(compared.study, compared.outcomes, prefect_run_id=run)
            for epsilon, outcomes in compared.further.items():
                summary.record_claims(compared.study.retargeted(epsilon), outcomes, prefect_run_id=run)
            branch_plans = comparison.write_plans(compared, prefect_run_id=run)
            decided.append(Decision.of(compared, assess(compared, branch_plans)))
            plans |= (
                branch_plans if not plans else {f"{name}, {_named(taken)}": file for name, file in branch_plans.items()}
            )
        report = comparison_report.write(decided)
        results = {_named(one.comparison.study.parameters): _result(one, context) for one in decided}
        compared, first = decided[0].comparison, next(iter(results.values()))
        return CompareResult(
            report=str(report),
            decision=str(report.with_name("decision.html")),
            recommendation=first.recommendation,
            target_epsilon=first.target_epsilon,
            delta=compared.study.default_delta,
            seeds=compared.seeds,
            branches=first.branches,
            plans=plans,
            protocols=results,
        )


def _result(decided: Decision, context: Context) -> ProtocolResult:
    compared = decided.comparison
    return ProtocolResult(
        recommendation=decided.recommendation.sentence,
        target_epsilon=compared.study.target,
        branches=tuple(summary.summarise(compared.outcomes, context)),
        further={
            f"{epsilon:g}": tuple(summary.summarise(outcomes, context))
            for epsilon, outcomes in compared.further.items()
        },
    )


def under_each(parameters: RetrainParameters, settings: CompareParameters) -> list[RetrainParameters]:
    """Returns the parameters under every requested protocol; unchanged without one."""
    return [protocols.apply_protocol(parameters, name) for name in dict.fromkeys(settings.protocols)] or [parameters]


def _named(parameters: RetrainParameters) -> str:
    return protocols.protocol_of(parameters.data.ingest) or "own"
