"""`autocoder retrain`."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands import options
from flows.commands.terminal import say
from flows.server.temporary import own_server

if TYPE_CHECKING:
    from storage.ledger import Row
    from tasks.parameters import RetrainParameters
    from tasks.running.stage import Context


def retrain(
    run: options.RunOptions,
    output: options.OutputOptions,
    target_epsilon: Annotated[
        float | None,
        typer.Option(
            help="Epsilon to reach. A formal profile adds the noise that it takes; with SWAG-PPM c and k are searched "
            "for it, or, with mechanism censored or both, it is the bound."
        ),
    ] = None,
    shards: Annotated[
        int,
        typer.Option(
            min=1,
            max=10_000,
            help="Parts of each pass over draws that workers compute; needs PREFECT_API_URL and `autocoder deploy`.",
        ),
    ] = 1,
    storage: Annotated[
        str | None,
        typer.Option(
            help="Folder or s3://bucket/prefix where machines share finished stages.", show_default="$AUTOCODER_STORAGE"
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the stages, which would be reused, expected time and disk.")
    ] = False,
) -> None:
    """Run the whole method on a file of records and release it once: one draw, or one formally private fit.

    Interrupted or killed, the same command goes on where it stopped. Finished stages are reused.

    [bold]Examples[/bold]

      autocoder demo-data --out demo

      autocoder retrain --profile demo --data demo/injuries.csv --codelist demo/codelist.csv

      autocoder retrain --profile osha-formal --data injuries.zip --codelist oiics201_nature.csv --target-epsilon 5

      autocoder retrain --data injuries.zip --codelist oiics201_nature.csv --dry-run

      autocoder retrain --data injuries.zip --codelist oiics201_nature.csv --target-epsilon 4
    """
    section = "formal" if run.formal else "pseudo_posterior"
    target = () if target_epsilon is None else (f"{section}.target_epsilon={target_epsilon}",)
    parameters = run.parameters(*target)
    if storage is not None:
        os.environ["AUTOCODER_STORAGE"] = storage

    from tasks.parameters import FanOut

    context = run.context(make_home=not dry_run, fan_out=FanOut(shards=shards))

    import flows.retrain as job
    from tasks.retraining import run as retraining
    from tasks.running.failures import private_errors

    if dry_run:
        steps, row = retraining.dry_run(parameters, context)
        _show_dry_run({step.label: reused for step, reused in steps}, row, parameters, context, output)
        return
    with private_errors("retrain"):
        retraining.refuse_early(context, parameters)  # the flow looks too, but only once Prefect's server has started
    with output.progress(), own_server():
        result = job.retrain(parameters=parameters, home=context.home, device=run.device, fan_out=context.fan_out)
    output.answer(result, f"release plan: {result.plan}" if result.release is None else result.release.bundle)


def _show_dry_run(
    stages: dict[str, bool],
    row: Row | None,
    parameters: RetrainParameters,
    context: Context,
    output: options.OutputOptions,
) -> None:
    """The stages by label, each with whether its output is there, and what they would take."""
    from tasks.branches.search import searches
    from tasks.releasing.preflight import check

    search = _search(parameters) if parameters.formal is None and searches(parameters) else None
    estimate = check(context, parameters)
    if output.as_json:
        content = {
            "stages": [{"stage": label, "reused": reused} for label, reused in stages.items()],
            "search": search,
            "release": None if row is None else {"release_id": row.release_id, "state": row.state},
            "estimated_seconds": round(estimate.seconds),
            "estimated_disk_bytes": estimate.disk_bytes,
        }
        say(json.dumps(content, indent=2))
        return
    from rich.table import Table
    from rich.text import Text

    from flows.commands.terminal import Console

    table = Table("stage", "output", title=f"Plan in {context.home}")
    for label, reused in stages.items():
        table.add_row(label, Text("there, reused", "cyan") if reused else "to compute")
    if search is not None:
        table.add_row("search", search)
    table.add_row("release", _release(parameters, row))
    console = Console()
    console.print(table)
    share = sum(not reused for reused in stages.values()) / len(stages)
    console.print(
        f"If all were computed: about {estimate.seconds / 60:.0f} min and {estimate.disk_bytes / 1e6:,.0f} MB "
        f"(rough; {share:.0%} of the stages {'shown ' if search else ''}are to compute"
        f"{'; with a search that needs two fits' if search else ''})"
    )


def _search(parameters: RetrainParameters) -> str:
    """What is not known before the first fit."""
    from mechanisms.posterior.target import MAX_FITS

    config = parameters.pseudo_posterior
    names, constants = ("weighted and reweighted", "c and k") if config.reweight else ("weighted", "c")
    return (
        f"{constants} for epsilon {config.target_epsilon:g}: {names} fits, decided one by one, at most {MAX_FITS}; "
        "finished ones are reused"
    )


def _release(parameters: RetrainParameters, row: Row | None) -> str:
    if not parameters.release.enabled:
        return "off"
    if row is None:
        return f"one draw, label `{parameters.release.label}`"
    if row.state == "committed":
        return f"there: {row.release_id}; nothing more is drawn or spent"
    if row.state == "burned":
        return f"burned: {row.release_id}; another release.label spends again"
    return f"{row.state}: {row.release_id}; goes on without spending again"
