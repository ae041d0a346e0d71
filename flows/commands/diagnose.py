"""`autocoder diagnose`."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.commands import options
from flows.server.settings import before_prefect, home_of


def diagnose(
    data: options.Data = None,
    codelist: options.Codelist = None,
    profile: options.Profile = "osha-head",
    settings: options.Settings = None,
    leave_out: Annotated[
        int, typer.Option("--leave-out", min=0, max=10_000, help="Records to leave out, one refit each; 0 for none.")
    ] = 50,
    refits: Annotated[
        bool, typer.Option("--refits/--no-refits", help="Rerun the chain at two other learning rates and two seeds.")
    ] = True,
    draws: Annotated[int, typer.Option("--draws", min=10, max=100_000, help="Draws of each study.")] = 100,
    horizon: Annotated[
        int, typer.Option("--horizon", min=1000, max=10**9, help="Draws to extrapolate the maximum to.")
    ] = 50_000,
    home: options.Home = None,
    device: options.Device = "auto",
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Look closely at a retrain: is its epsilon settled, its posterior one, and what does a single record do?

    Give the retrain's own options: its finished stages are reused. Writes one private page for a review board, and
    releases nothing. Interrupted, the same command goes on where it stopped.

    [bold]Examples[/bold]

      autocoder diagnose --data injuries.zip --codelist oiics201_nature.csv

      autocoder diagnose --profile demo --data demo/injuries.csv --codelist demo/codelist.csv --leave-out 10 --no-refits
    """
    from flows.commands.profiles import parameters

    workspace = home_of(home)
    chosen = parameters(profile, settings or [], data=data, codelist=codelist)
    before_prefect(workspace, make_home=True)

    import flows.diagnose as job
    from flows.commands.console import ConsoleListener
    from tasks.diagnosing.stages import DiagnoseParameters
    from tasks.running.failures import private_errors
    from tasks.running.progress import listening
    from tasks.running.stage import Context

    closely = DiagnoseParameters(leave_out=leave_out, refits=refits, study_draws=draws, horizon=horizon)
    with private_errors("diagnose"):
        job.refuse_early(Context(home=str(workspace), device=device), chosen, closely)
    with ConsoleListener(quiet=quiet) as listener, listening(listener):
        done = job.diagnose(parameters=chosen, settings=closely, home=str(workspace), device=device)
    typer.echo(done.model_dump_json(indent=2) if as_json else done.report)
