"""`autocoder compare`."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.commands import options
from flows.server.settings import before_prefect, home_of


def compare(
    data: options.Data = None,
    codelist: options.Codelist = None,
    profile: options.Profile = "osha-head",
    settings: options.Settings = None,
    home: options.Home = None,
    device: options.Device = "auto",
    branches: Annotated[str, typer.Option("--branches", help="Names by comma, or `all`.")] = "all",
    target: Annotated[
        str, typer.Option("--target-epsilon", help="A number, or `match`: what SWAG-PPM came out with, rounded up.")
    ] = "match",
    delta: Annotated[float, typer.Option("--delta", help="Of the formal claims.")] = 1e-4,
    seeds: Annotated[int, typer.Option("--seeds", help="Runs of each branch, from fit.seed on.")] = 5,
    epochs: Annotated[int, typer.Option("--epochs", help="Of the non-private and DP-SGD fits.")] = 30,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Of DP-SGD in the paper's setting.")] = 512,
    slots: Annotated[int, typer.Option("--slots", help="Branches at once.")] = 1,
    results: options.Results = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare SWAG-PPM with its rivals on the same records. Nothing is released; the report is internal.

    For each branch that has a claim it leaves a release plan, which `autocoder release` takes.

    [bold]Example[/bold]

      autocoder compare --data injuries.csv --codelist oiics201_nature.csv --branches non-private,swag-ppm,formal-head
    """
    from flows.commands.profiles import explain, own_branches, parameters

    workspace = home_of(home)
    chosen = parameters(profile, settings or [], data=data, codelist=codelist)

    from pydantic import ValidationError

    from storage.errors import InputError
    from tasks.branches.branch import CompareParameters, choose

    try:
        shared = CompareParameters.model_validate(
            {
                "target_epsilon": target if target == "match" else _number(target),
                "delta": delta,
                "seeds": seeds,
                "epochs": epochs,
                "batch_size": batch_size,
                "slots": slots,
                "branches": own_branches(profile),
            }
        )
    except ValidationError as error:
        raise InputError("compare: " + "; ".join(explain(entry) for entry in error.errors())) from None
    wanted = choose(branches, model=chosen.model, known=shared.known)
    if results is not None:
        options.require_place("--results", results)
    before_prefect(workspace, make_home=True)

    import flows.compare as job
    from flows.commands.console import ConsoleListener
    from tasks.comparing.run import refuse_early
    from tasks.running.failures import private_errors
    from tasks.running.progress import OneAtATime, listening
    from tasks.running.stage import Context

    with private_errors("compare"):
        refuse_early(Context(home=str(workspace), device=device), chosen, shared, wanted)
    with ConsoleListener(quiet=quiet) as console, listening(OneAtATime(console, bars=shared.slots == 1)):
        result = job.compare(parameters=chosen, settings=shared, branches=branches, home=str(workspace), device=device)
    if results is not None:
        from tasks.comparing.results import write

        write(results, result.report, result.branches, parameters=chosen, settings=shared, target=result.target_epsilon)
    if as_json:
        typer.echo(result.model_dump_json(indent=2))
        return
    typer.echo(result.report)
    for name, plan in result.plans.items():
        typer.echo(f"release plan of {name}: {plan}")


def _number(text: str) -> float:
    from storage.errors import InputError

    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 < value <= 1000:
        raise InputError(f"--target-epsilon: {text} is neither `match` nor a number above 0 and up to 1000")
    return value
