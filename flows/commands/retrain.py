"""`autocoder retrain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from flows.settings import before_prefect, home_of


def retrain(
    data: Annotated[
        Path | None, typer.Option("--data", help="Records: CSV, ZIP holding one CSV, or Parquet.", show_default=False)
    ] = None,
    codelist: Annotated[
        Path | None,
        typer.Option("--codelist", help="Published classification, CSV with code and title.", show_default=False),
    ] = None,
    profile: Annotated[
        str, typer.Option("--profile", help="demo, osha-head, paper, or the path of a YAML file.")
    ] = "osha-head",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any parameter: key=value, such as fit.adamw.epochs=3. May be repeated."),
    ] = None,
    home: Annotated[
        Path | None, typer.Option("--home", help="Workspace folder. [default: $AUTOCODER_HOME or ./workspace]")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the stages, which would be reused, expected time and disk.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Run the whole method on a file of records and release one draw.

    Interrupted or killed, the same command goes on where it stopped. Finished stages are reused.

    [bold]Examples[/bold]

      autocoder demo-data --out demo

      autocoder retrain --profile demo --data demo/injuries.csv --codelist demo/codelist.csv

      autocoder retrain --data injuries.zip --codelist oiics201_nature.csv --dry-run
    """
    from flows.profiles import parameters

    workspace = home_of(home)
    chosen = parameters(profile, settings or [], data=data, codelist=codelist)
    before_prefect(workspace, make_home=not dry_run)

    import flows.retrain as job
    from flows.console import ConsoleListener
    from tasks.progress import listening
    from tasks.stage import Context

    if dry_run:
        _show_dry_run(
            job.dry_run(chosen, Context(home=str(workspace), device=device)), chosen, workspace, device, as_json
        )
        return
    with ConsoleListener(quiet=quiet) as listener, listening(listener):
        result = job.retrain(parameters=chosen, home=str(workspace), device=device)
    if as_json:
        typer.echo(result.model_dump_json(indent=2))
    elif result.release is None:
        typer.echo(f"release plan: {result.plan}")
    else:
        typer.echo(result.release.bundle)


def _show_dry_run(steps: list[Any], chosen: Any, workspace: Path, device: str, as_json: bool) -> None:
    from tasks.preflight import check
    from tasks.stage import Context

    estimate = check(Context(home=str(workspace), device=device), chosen)
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "stages": [{"stage": step.label, "reused": reused} for step, reused in steps],
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
    table.add_row("release", f"one draw, label `{chosen.release.label}`" if chosen.release.enabled else "off")
    console = Console()
    console.print(table)
    share = sum(not reused for _, reused in steps) / len(steps)
    console.print(
        f"If all were computed: about {estimate.seconds / 60:.0f} min and {estimate.disk_bytes / 1e6:,.0f} MB "
        f"(rough; {share:.0%} of the stages are to compute)"
    )
