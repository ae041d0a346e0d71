"""`autocoder diagnose`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from flows.commands import options
from flows.server.settings import before_prefect
from flows.server.temporary import own_server


@dataclass(frozen=True)
class StudyOptions:
    """How closely to look."""

    leave_out: Annotated[
        int, typer.Option(min=0, max=10_000, help="Records to leave out, one refit each; 0 for none.")
    ] = 50
    refits: Annotated[
        bool, typer.Option("--refits/--no-refits", help="Rerun the chain at two other learning rates and two seeds.")
    ] = True
    study_draws: Annotated[int, typer.Option("--draws", min=10, max=100_000, help="Draws of each study.")] = 100
    horizon: Annotated[int, typer.Option(min=1000, max=10**9, help="Draws to extrapolate the maximum to.")] = 50_000


def diagnose(
    plan: Annotated[
        Path | None,
        typer.Argument(help="Plan that retrain wrote: looked at with the settings that it was made with."),
    ] = None,
    *,
    run: options.RunOptions,
    studies: StudyOptions,
    output: options.OutputOptions,
) -> None:
    """Look closely at a retrain: is its epsilon settled, its posterior one, and what does a single record do?

    Give its plan, or the retrain's own options: its finished stages are reused. Writes one private page for a review
    board, and releases nothing. Interrupted, the same command goes on where it stopped.

    [bold]Examples[/bold]

      autocoder diagnose workspace/private/plans/0123456789abcdef.json

      autocoder diagnose --data injuries.zip --codelist oiics201_nature.csv

      autocoder diagnose --profile demo --data demo/injuries.csv --codelist demo/codelist.csv --leave-out 10 --no-refits
    """
    if plan is not None:
        options.refuse_beside_a_plan(run)
        workspace = options.plans_home(plan, run.home)
        before_prefect(workspace, make_home=True)
        from tasks.branches.origin import Origin

        origin = Origin.of(plan)[1]
        origin.require_retrain(plan)
        parameters, run = origin.parameters, replace(run, home=workspace)
    else:
        options.require_plan_or_records(run)
        parameters = run.parameters()
    context = run.context()

    import flows.diagnose as job
    from tasks.diagnosing.run import refuse_early, to_compute
    from tasks.diagnosing.stages import DiagnoseParameters
    from tasks.running.failures import private_errors

    settings = DiagnoseParameters(**asdict(studies))
    with private_errors("diagnose"):
        estimate = refuse_early(context, parameters, settings)
        missing = None if parameters.formal is not None else to_compute(context, parameters, settings)
    with output.progress() as console, own_server():
        if missing is not None:  # of a formal posterior's sampler nobody knows beforehand when it has mixed
            console.expect("these diagnostics", estimate.of_labels(missing), measured=estimate.measured)
        result = job.diagnose_retrain(parameters=parameters, settings=settings, home=context.home, device=run.device)
    output.answer(result, result.report)
