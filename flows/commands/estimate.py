"""Defines `autocoder estimate`: counts by code with intervals, from all rows coded and a sample coded by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from flows.commands import options
from flows.commands.terminal import Console, say
from storage.errors import InputError
from tasks.running.failures import private_errors

if TYPE_CHECKING:
    from tasks.coding.estimates import Estimates, Interval

_SHOWN = 15


def estimate(
    reading: options.ReadingOptions,
    coded: Annotated[Path, typer.Argument(help="Table that `autocoder code` wrote.")],
    sample: Annotated[Path, typer.Option(help="Sample from `autocoder qa draw`, with human_code filled in.")],
    out: Annotated[Path | None, typer.Option(help="Table to write: .csv, .parquet or .jsonl.")] = None,
    by: Annotated[
        str, typer.Option(help="Columns that form groups, with commas: quarter,state.", show_default="none")
    ] = "",
    prefix: options.Prefix = "",
    plot: Annotated[Path | None, typer.Option(help="Also draw the largest codes: .png, .svg or .pdf.")] = None,
    codelist: options.PublishedList = None,
    allow_unlisted: options.AllowUnlisted = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace existing outputs.")] = False,
    as_json: options.AsJson = False,
) -> None:
    r"""Estimate the counts and shares of codes, with 95 % intervals.

    The model's own counts are biased: its errors do not cancel. A random sample coded by hand corrects them and says
    how far off the result may be; the codes of all rows make it more exact than the sample alone (prediction-powered
    inference). The estimate is right however the model errs. The table holds the counts of one file: keep it as
    confidential as that file until your rules of disclosure are applied.

    Examples

      autocoder qa draw coded.csv --out sample.csv --hours 20

      autocoder estimate coded.csv --sample sample.csv --by quarter,state \
          --out counts.csv --plot counts.png
    """
    if plot is not None:
        options.require_figure(plot)
    for option, file in (("--out", out), ("--plot", plot)):
        if file is not None:
            options.require_writable(option, file)
            if file.exists() and not overwrite:
                raise InputError(f"{option}: {file} exists. Name another file, or replace it with --overwrite.")
    with private_errors("estimate"):
        from tasks.coding import estimates as measure

        counted = measure.estimate(
            coded,
            sample,
            by=[name.strip() for name in by.split(",") if name.strip()],
            prefix=prefix,
            listed=options.listed_codes(codelist),
            allow_unlisted=allow_unlisted,
            read=reading.read,
        )
        if out is not None:
            measure.write_table(counted, out)
        if plot is not None:
            measure.plot(counted, plot)
    if as_json:
        say(json.dumps(counted.as_dict(), indent=2))
    else:
        _show(counted)
    say(counted.people, err=True)
    for line in counted.warnings():
        say(f"warning: {line}", err=True)


def _show(counted: Estimates) -> None:
    largest = sorted(counted.totals, key=lambda one: -one.machine)
    title = f"{counted.sampled:,} rows coded by hand of {largest[0].rows if largest else 0:,}; 95 % intervals"
    table = Table(title=title)
    for name in ("code", "model's count", "estimate"):
        table.add_column(name, justify="left" if name == "code" else "right")
    for one in largest[:_SHOWN]:
        table.add_row(one.code, f"{one.machine:,}", _interval(one.estimate))
    Console().print(table)
    if len(largest) > _SHOWN:
        say(f"{len(largest) - _SHOWN} more codes are in --out")


def _interval(one: Interval | None) -> str:
    return "none" if one is None else f"{one.value:,.0f} ({one.low:,.0f} to {one.high:,.0f})"
