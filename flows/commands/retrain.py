"""`autocoder retrain`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.commands import options
from flows.server.settings import before_prefect, home_of


def retrain(
    data: options.Data = None,
    codelist: options.Codelist = None,
    profile: options.Profile = "osha-head",
    settings: options.Settings = None,
    target_epsilon: Annotated[
        float | None,
        typer.Option(
            "--target-epsilon",
            help="Epsilon to reach: c and k are searched for it; with mechanism censored or both it is the bound.",
            show_default=False,
        ),
    ] = None,
    home: options.Home = None,
    device: options.Device = "auto",
    shards: Annotated[
        int,
        typer.Option(
            "--shards",
            min=1,
            max=10_000,
            help="Parts of each pass over draws that workers compute; needs PREFECT_API_URL and `autocoder deploy`.",
        ),
    ] = 1,
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage",
            help="Folder or s3://bucket/prefix where machines share finished stages. [default: $AUTOCODER_STORAGE]",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the stages, which would be reused, expected time and disk.")
    ] = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Run the whole method on a file of records and release one draw.

    Interrupted or killed, the same command goes on where it stopped. Finished stages are reused.

    [bold]Examples[/bold]

      autocoder demo-data --out demo

      autocoder retrain --profile demo --data demo/injuries.csv --codelist demo/codelist.csv

      autocoder retrain --data injuries.zip --codelist oiics201_nature.csv --dry-run

      autocoder retrain --data injuries.zip --codelist oiics201_nature.csv --target-epsilon 4
    """
    from flows.commands.profiles import parameters

    workspace = home_of(home)
    if target_epsilon is not None:
        settings = [*(settings or []), f"pseudo_posterior.target_epsilon={target_epsilon}"]
    chosen = parameters(profile, settings or [], data=data, codelist=codelist)
    if storage is not None:
        os.environ["AUTOCODER_STORAGE"] = storage
    before_prefect(workspace, make_home=not dry_run)

    import flows.retrain as job
    from flows.commands.console import ConsoleListener
    from tasks.parameters import FanOut
    from tasks.releasing import preflight
    from tasks.running.failures import private_errors
    from tasks.running.progress import listening
    from tasks.running.stage import Context

    fan_out = FanOut(shards=shards)
    context = Context(home=str(workspace), device=device, fan_out=fan_out)
    if dry_run:
        steps, row = job.dry_run(chosen, context)
        _show_dry_run(steps, row, chosen, workspace, device, as_json)
        return
    with private_errors("retrain"):
        preflight.check(context, chosen)  # the flow looks too, but only once Prefect's server has started
    with ConsoleListener(quiet=quiet) as listener, listening(listener):
        result = job.retrain(parameters=chosen, home=str(workspace), device=device, fan_out=fan_out)
    if as_json:
        typer.echo(result.model_dump_json(indent=2))
    elif result.release is None:
        typer.echo(f"release plan: {result.plan}")
    else:
        typer.echo(result.release.bundle)


def _show_dry_run(steps: list[Any], row: Any, chosen: Any, workspace: Path, device: str, as_json: bool) -> None:
    from tasks.branches.search import searches
    from tasks.releasing.preflight import check
    from tasks.running.stage import Context

    sought = _search(chosen) if searches(chosen) else None
    estimate = check(Context(home=str(workspace), device=device), chosen)
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "stages": [{"stage": step.label, "reused": reused} for step, reused in steps],
                    "search": sought,
                    "release": None if row is None else {"release_id": row.release_id, "state": row.state},
                    "estimated_seconds": round(estimate.seconds),
                    "estimated_disk_bytes": estimate.disk_bytes,
                },
                indent=2,
            )
        )
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Plan in {workspace}")
    table.add_column("stage")
    table.add_column("output")
    for step, reused in steps:
        table.add_row(step.label, "[cyan]there, reused[/cyan]" if reused else "to compute")
    if sought is not None:
        table.add_row("search", sought)
    table.add_row("release", _release(chosen, row))
    console = Console()
    console.print(table)
    share = sum(not reused for _, reused in steps) / len(steps)
    console.print(
        f"If all were computed: about {estimate.seconds / 60:.0f} min and {estimate.disk_bytes / 1e6:,.0f} MB "
        f"(rough; {share:.0%} of the stages {'shown ' if sought else ''}are to compute"
        f"{'; with a search that needs two fits' if sought else ''})"
    )


def _search(chosen: Any) -> str:
    """What is not known before the first fit."""
    from mechanisms.posterior.target import MAX_FITS

    config = chosen.pseudo_posterior
    names = "weighted and reweighted" if config.reweight else "weighted"
    sought = "c and k" if config.reweight else "c"
    return (
        f"{sought} for epsilon {config.target_epsilon:g}: {names} fits, decided one by one, at most {MAX_FITS}; "
        "finished ones are reused"
    )


def _release(chosen: Any, row: Any) -> str:
    if not chosen.release.enabled:
        return "off"
    if row is None:
        return f"one draw, label `{chosen.release.label}`"
    if row.state == "committed":
        return f"[cyan]there: {row.release_id}[/cyan]; nothing more is drawn or spent"
    if row.state == "burned":
        return f"[red]burned: {row.release_id}[/red]; another release.label spends again"
    return f"{row.state}: {row.release_id}; goes on without spending again"
