"""Defines `autocoder diagnose`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from flows.commands import options
from flows.server.run_flow import run_command
from tasks.running.failures import private_errors


@dataclass(frozen=True)
class StudyOptions:
    """Sets the effort of the studies."""

    leave_out: Annotated[
        int, typer.Option(min=0, max=10_000, help="Records to leave out, one refit each; 0 for none.")
    ] = 50
    refits: Annotated[
        bool, typer.Option("--refits/--no-refits", help="Rerun the chain at two other learning rates and two seeds.")
    ] = True
    study_draws: Annotated[int, typer.Option("--draws", min=10, max=100_000, help="Draws per study.")] = 100
    horizon: Annotated[int, typer.Option(min=1000, max=10**9, help="Draws to extrapolate the maximum to.")] = 50_000


def diagnose(
    plan: Annotated[
        Path | None,
        typer.Argument(help="Plan from retrain, diagnosed with its own settings."),
    ] = None,
    *,
    run: options.RunOptions,
    studies: StudyOptions,
    output: options.OutputOptions,
) -> None:
    r"""Diagnose a retrain: is its epsilon stable, its posterior sound, and how much does a single record matter?

    Give its plan, or the options of the retrain; finished stages are reused. Writes one private page for a review
    board, and releases nothing. After an interruption, run the same command to resume.

    [bold]Examples[/bold]

      autocoder diagnose workspace/private/plans/0123456789abcdef.json

      autocoder diagnose --profile demo --data demo/injuries.csv \
          --codelist demo/codelist.csv --leave-out 10 --no-refits
    """
    if plan is not None:
        options.refuse_with_plan(run)
        context = replace(run, home=options.home_of_plan(plan, run.home)).context()
        from tasks.branches.plan import Origin

        origin = Origin.of(plan)[1]
        origin.require_retrain(plan)
        parameters = origin.parameters
    else:
        options.require_plan_or_records(run)
        parameters = run.parameters()
        context = run.context()

    import flows.diagnose as job
    from tasks.diagnosing.run import refuse_early, to_compute
    from tasks.diagnosing.stages import DiagnoseParameters

    settings = DiagnoseParameters(**asdict(studies))
    with private_errors("diagnose"):
        estimate = refuse_early(context, parameters, settings)
        missing = to_compute(context, parameters, settings)
    with output.progress() as console:
        console.expect("these diagnostics", estimate.of_labels(missing), measured=estimate.measured)
        result = run_command(
            partial(job.diagnose, parameters, settings),
            context,
            name="diagnose",
            label=parameters.data.population,
            parameters={"retrain": parameters, "settings": settings},
        )
    output.answer(result, result.report)
