"""Compares branches on the same records: one ingest, then every branch at every seed, each stage as
a task run.

SWAG-PPM uses the stages of the training flow, so a comparison and a training run reuse each
other's.
"""

from functools import partial

from pydantic import BaseModel

from flows.server.form import RecordsForm, parameters_of_run
from tasks.branches.branch import CompareParameters, choose
from tasks.comparing import results, summary
from tasks.comparing import run as comparison
from tasks.comparing.distribute import finish_on_workers
from tasks.comparing.summary import BranchSummary
from tasks.parameters import RetrainParameters
from tasks.running import progress
from tasks.running.failures import private_errors
from tasks.running.run import Run
from tasks.running.stage import Context, submit
from tasks.running.timings import TimingsListener
from tasks.running.worker_metrics import MetricsListener


class CompareResult(BaseModel, frozen=True):
    folder: str
    """Folder with `results.json`, `results.md` and `results.svg`."""
    branches: tuple[BranchSummary, ...]
    """Each branch, then the branches with a target at each further target."""
    plans: dict[str, str]
    """Release plan of each branch with a claim, at the first seed, for `autocoder release`."""


def compare_form(
    form: RecordsForm, settings: CompareParameters, branches: str, run: Run
) -> CompareResult:
    context = form.run().context(run)
    with private_errors("compare"):
        parameters = parameters_of_run(form, run)
    return compare(parameters, settings, branches, context)


def compare(
    parameters: RetrainParameters, settings: CompareParameters, branches: str, context: Context
) -> CompareResult:
    """Runs every branch at every seed, writes the results, and records each claim as internal.

    Args:
        branches: names separated by commas, or `all`.
    """
    with private_errors("compare"):
        context.workspace.create()
        chosen = choose(branches, parameters, settings.all_branches)
        stages = comparison.refuse_early(context, parameters, settings, chosen).stages
    private = context.workspace.private
    listeners = MetricsListener(private, "compare"), TimingsListener(private, stages)
    with private_errors("compare"), progress.listening(*listeners):
        groups = comparison.run(
            context,
            parameters,
            settings,
            chosen,
            seeds=settings.seeds,
            run_step=partial(submit, context),
            epsilons=settings.epsilons,
            run_on_workers=finish_on_workers if context.engine else None,
        )
        for group in groups:
            summary.record_claims(group.study, group.outcomes)
        plans = comparison.write_plans(groups)
        summaries = summary.summarise(groups, context)
        folder = results.write(groups, summaries)
        return CompareResult(folder=str(folder), branches=tuple(summaries), plans=plans)
